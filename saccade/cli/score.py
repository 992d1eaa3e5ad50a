"""`saccade evaluate` and `saccade compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, corpora, overrides
from saccade.cli.predict import Engine, Precision, load, settings, tell_cuts
from saccade.cli.prompts import Examples, Options, TemplateText, asked, evaluate_tasks
from saccade.cli.table import aligned
from saccade.errors import SaccadeError
from saccade.runs import find_run

if TYPE_CHECKING:
    from saccade.config.schema import Corpus
    from saccade.predict.predictors.predictor import Predictor
    from saccade.score.evaluate import Evaluation
    from saccade.score.result import Result

EMBEDDED = 1_000  # pairs of embedded data; a corpus for training has many more, and each one has to be decoded

Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="SRC [TGT]",
        help=f"Two aligned files, one with both sides, or text; embedded:NAME is {EMBEDDED:,} pairs. Repeatable.",
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
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Keep the outputs in FILE, or the values of all tokens."),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="By commas, of bleu, chrf, ter, gleu, accuracy: all of them; also wer, cer; captions: bleu-1 to bleu-4, "
        "cider; language models: hit@10, ndcg@10, valid. TER takes long where words repeat.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="bleu, accuracy; captions: bleu-4; sound: wer, cer; labels: accuracy, f1, matthews, pearson, spearman.",
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="A table for Markdown.")]
Latex = Annotated[bool, typer.Option("--latex", help="A table for LaTeX.")]


def evaluate(  # noqa: PLR0913  # the options of a verb are its parameters
    run: RunOrNone = None,
    changes: Changes = [],  # noqa: B006  # typer copies it
    data: Data = [],  # noqa: B006
    hyp: Hyp = None,
    ref: Ref = None,
    lowercase: Lowercase = False,
    metrics: Metrics = None,
    output: Output = None,
    engine: Engine = "auto",
    precision: Precision = "auto",
    template: TemplateText = None,
    examples: Examples = None,
    options: Options = "",
    as_json: Json = False,
) -> None:
    """Score a run on pairs or text (without --data, on its validation data), or two files with --hyp and --ref."""
    chosen, made = None if metrics is None else metrics.split(","), asked(template, examples, options)
    found: Result
    if hyp is not None or ref is not None:
        found = of_files(hyp, ref, run, metrics=chosen, lowercase=lowercase)
    elif run is None:
        raise SaccadeError("evaluate needs a RUN, or --hyp FILE and --ref FILE")
    else:
        predictor = load(run.split(","), engine=engine, precision=precision)
        if made is not None:
            found = evaluate_tasks(predictor, made, data, changes, options=options, metrics=chosen, lowercase=lowercase)
        else:
            found = of_run(
                predictor, run.split(",")[0], data, overrides(changes), metrics=chosen, lowercase=lowercase,
                keep=output is not None,
            )  # fmt: skip
            tell_cuts(found.cut, len(found.hypotheses), predictor.recipe)
    if output is not None:
        output.write_text("".join(f"{' '.join(text.splitlines())}\n" for text in found.hypotheses), encoding="utf-8")
    print(json.dumps(found.to_dict(), indent=2) if as_json else f"{aligned(found.rows())}\n{found.summary()}")


def compare(
    runs: Runs,
    data: Data = [],  # noqa: B006
    metric: Metric = None,
    markdown: Markdown = False,
    latex: Latex = False,
    as_json: Json = False,
) -> None:
    """Compare runs on the same pairs (without --data, on the first run's validation data), with intervals and cost."""
    from saccade.score import table
    from saccade.score.compare import check_comparable
    from saccade.score.compare import compare as compare_runs

    folders = [find_run(name) for name in runs]
    check_comparable(folders)
    found = compare_runs(folders, read_test_pairs(folders[0], data), metric=metric)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    elif markdown or latex:
        print(table.markdown(found) if markdown else table.latex(found))
    else:
        print(f"{aligned(table.cells(found))}\n\n{table.note(found)}")


def of_files(
    hyp: str | None, ref: str | None, run: str | None, *, metrics: Sequence[str] | None, lowercase: bool
) -> Evaluation:
    if hyp is None or ref is None or run is not None:
        raise SaccadeError("--hyp FILE and --ref FILE belong together, and take no run")
    from saccade.score.evaluate import ALL, evaluate_files

    return evaluate_files(hyp, ref, metrics=metrics or ALL, lowercase=lowercase)


def of_run(
    predictor: Predictor,
    name: str,
    data: Sequence[str],
    changes: Sequence[str],
    *,
    metrics: Sequence[str] | None,
    lowercase: bool,
    keep: bool,
) -> Result:
    from saccade.score.evaluate import evaluate_corpora

    decoding, chosen = settings(predictor.recipe, changes), chosen_corpora(find_run(name), data)
    return evaluate_corpora(
        predictor, chosen, metrics=metrics, lowercase=lowercase, decoding=decoding, made=EMBEDDED, keep=keep
    )


def chosen_corpora(run: Path, data: Sequence[str]) -> list[Corpus]:
    """What --data names, or else the validation files that the run was trained with."""
    from saccade.config.schema import Corpus
    from saccade.data.sources.labelled import like
    from saccade.score.pairs import recipe_of

    chosen, recipe = [Corpus(files=tuple(files)) for files in corpora(data)], recipe_of(run)
    if not chosen and recipe is not None:
        chosen = list(recipe.data.valid_corpora)
    if recipe is not None and recipe.task.predicts_labels and recipe.data.train:
        chosen = [like(corpus, recipe.data.train[0]) for corpus in chosen]
    if not chosen:
        files = "FOLDER" if recipe is not None and recipe.reader.medium else "SRC REF"
        raise SaccadeError(f"'{run}' has no validation files of its own; give --data {files}")
    return chosen


def read_test_pairs(run: Path, data: Sequence[str]) -> list[tuple[str, str]]:
    """What a run is asked, and what is right, whatever its task."""
    from saccade.score.pairs import pairs_of, recipe_of

    recipe, chosen = recipe_of(run), chosen_corpora(run, data)
    return pairs_of(chosen, made=EMBEDDED) if recipe is None else recipe.task.read_pairs(recipe, chosen, made=EMBEDDED)
