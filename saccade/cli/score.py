"""`saccade evaluate` and `saccade compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, corpora, overrides
from saccade.cli.predict import Engine, Precision, load, settings
from saccade.cli.table import aligned
from saccade.errors import SaccadeError
from saccade.runs import RECIPE, find_run

if TYPE_CHECKING:
    from saccade.predict.predictor import Predictor
    from saccade.score.evaluate import Evaluation

EMBEDDED = 1_000  # pairs of embedded data; a corpus for training has many more, and each one has to be decoded

Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="SRC [TGT]",
        help=f"Two aligned files, or one with both sides; embedded:NAME is {EMBEDDED:,} pairs. Repeatable.",
    ),
]
RunOrNone = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Folder or name of a run; RUN,RUN is an ensemble.")
]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="Folders or names of runs.")]
Changes = Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="Decoding settings such as beam=5.")]
Hyp = Annotated[str | None, typer.Option("--hyp", metavar="FILE", help="Score this file instead of a run.")]
Ref = Annotated[str | None, typer.Option("--ref", metavar="FILE", help="What --hyp is scored against.")]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Ignore case; the signature says so.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the outputs in this file.")]
Metrics = Annotated[
    str, typer.Option("--metrics", metavar="NAMES", help="Only these, by commas; TER takes long where words repeat.")
]
Metric = Annotated[str, typer.Option("--metric", help="bleu or accuracy.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="A table for Markdown.")]
Latex = Annotated[bool, typer.Option("--latex", help="A table for LaTeX.")]


def evaluate(  # noqa: PLR0913  # the options of a verb are its parameters
    run: RunOrNone = None,
    changes: Changes = [],  # noqa: B006  # typer copies it
    data: Data = [],  # noqa: B006
    hyp: Hyp = None,
    ref: Ref = None,
    lowercase: Lowercase = False,
    metrics: Metrics = "bleu,chrf,ter,gleu,accuracy",
    output: Output = None,
    engine: Engine = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Score a run on pairs (without --data, on its validation data), or any two files with --hyp and --ref."""
    if hyp is not None or ref is not None:
        found = of_files(hyp, ref, run, metrics=metrics.split(","), lowercase=lowercase)
    elif run is None:
        raise SaccadeError("evaluate needs a RUN, or --hyp FILE and --ref FILE")
    else:
        predictor = load(run.split(","), engine=engine, precision=precision)
        found = of_run(
            predictor, run.split(",")[0], data, overrides(changes), metrics=metrics.split(","), lowercase=lowercase
        )
    if output is not None:
        output.write_text("".join(f"{' '.join(text.splitlines())}\n" for text in found.hypotheses), encoding="utf-8")
    print(json.dumps(found.to_dict(), indent=2) if as_json else as_table(found))


def compare(
    runs: Runs,
    data: Data = [],  # noqa: B006
    metric: Metric = "bleu",
    markdown: Markdown = False,
    latex: Latex = False,
    as_json: Json = False,
) -> None:
    """Compare runs on the same pairs (without --data, on the first run's validation data), with intervals and cost."""
    from saccade.score import table
    from saccade.score.compare import compare as compare_runs

    folders = [find_run(name) for name in runs]
    found = compare_runs(folders, read_test_pairs(folders[0], data), metric=metric)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    elif markdown or latex:
        print(table.markdown(found) if markdown else table.latex(found))
    else:
        print(f"{aligned(table.cells(found))}\n\n{table.note(found)}")


def of_files(
    hyp: str | None, ref: str | None, run: str | None, *, metrics: Sequence[str], lowercase: bool
) -> Evaluation:
    if hyp is None or ref is None or run is not None:
        raise SaccadeError("--hyp FILE and --ref FILE belong together, and take no run")
    from saccade.score.evaluate import evaluate_files

    return evaluate_files(hyp, ref, metrics=metrics, lowercase=lowercase)


def of_run(
    predictor: Predictor,
    name: str,
    data: Sequence[str],
    changes: Sequence[str],
    *,
    metrics: Sequence[str],
    lowercase: bool,
) -> Evaluation:
    from saccade.score.evaluate import evaluate as evaluate_pairs

    decoding, pairs = settings(predictor.recipe, changes), read_test_pairs(find_run(name), data)
    return evaluate_pairs(predictor, pairs, metrics=metrics, lowercase=lowercase, decoding=decoding)


def read_test_pairs(run: Path, data: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of --data, or else of the validation files that the run was trained with; of embedded data, some."""
    from saccade.config.load import load
    from saccade.config.schema import Corpus
    from saccade.data.sources import PREFIX, read_pairs

    chosen = [Corpus(files=tuple(files)) for files in corpora(data)]
    if not chosen:
        valid = load(run / RECIPE).data.valid
        chosen = list(valid) if isinstance(valid, tuple) else []
    if not chosen:
        raise SaccadeError(f"'{run}' has no validation files of its own; give --data SRC REF")
    pairs: list[tuple[str, str]] = []
    for corpus in chosen:
        made = corpus.files[0].startswith(PREFIX)
        pairs += islice(read_pairs(corpus), EMBEDDED if made and corpus.examples is None else None)
    return pairs


def as_table(found: Evaluation) -> str:
    rows = [(name, f"{score.value:.2f}", score.signature) for name, score in found.scores.items()]
    lines = aligned(rows)
    if found.speed is None:
        return f"{lines}\n{found.sentences:,} sentences"
    speed = found.speed
    return (
        f"{lines}\n{found.sentences:,} sentences in {speed.seconds:.1f} s: "
        f"{speed.sentences_per_second:,.1f} sentences/s, {speed.tokens_per_second:,.0f} tokens/s"
    )
