"""`saccade evaluate` and `saccade compare`: score outputs against references."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, Plugins, check_overrides, is_override, parse_corpora
from saccade.cli.predict import Engine, Precision, build_decoding, load_predictor, report_truncated
from saccade.cli.prompts import Examples, Options, TemplateText, evaluate_tasks, parse_prompt_options
from saccade.cli.table import align_columns
from saccade.config.plugins import Kinds, load_plugins
from saccade.errors import SaccadeError
from saccade.runs import find_run
from saccade.score import MAX_EMBEDDED_PAIRS

if TYPE_CHECKING:
    from saccade.config.schema import Corpus
    from saccade.predict.predictors.predictor import Predictor
    from saccade.score.evaluate import Evaluation
    from saccade.score.result import Result


Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="SRC [TGT]",
        help="Two aligned files, one file with source and target columns, or plain text; "
        f"embedded:NAME is {MAX_EMBEDDED_PAIRS:,} pairs. Repeatable.",
    ),
]
OptionalRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Folder or name of a run; RUN,RUN is an ensemble.")
]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="Folders or names of the runs to compare.")]
DecodingOverrides = Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="Decoding settings, such as beam=5.")]
Hyp = Annotated[
    str | None, typer.Option("--hyp", metavar="FILE", help="Score the outputs (hypotheses) in FILE instead of a run.")
]
Ref = Annotated[str | None, typer.Option("--ref", metavar="FILE", help="References for --hyp, line by line.")]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Score case-insensitively; noted in the signature.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the outputs to FILE; for language models, the log-probabilities of all tokens.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="Comma-separated metrics; default: bleu,chrf,ter,gleu,accuracy. Also wer, cer, letters, rouge1, rouge2, "
        "rougeL; captions: bleu-1 to bleu-4, cider; labels: accuracy, f1, ...; language models: hit@10, ndcg@10, "
        "valid; your own: --plugin. TER is slow where words repeat.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="Metric to compare: bleu, accuracy, wer, cer, letters, rougeL; captions: bleu-4, accuracy; labels: "
        "accuracy, f1, matthews, pearson, spearman; your own: --plugin.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="NAMES", help="Columns of --data, such as english,german; by number without a header."
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]
Latex = Annotated[bool, typer.Option("--latex", help="Print a LaTeX table.")]


def evaluate(  # noqa: PLR0913  # the options of a command are its parameters
    run: OptionalRun = None,
    overrides: DecodingOverrides = [],  # noqa: B006  # typer copies it
    data: Data = [],  # noqa: B006
    columns: Columns = None,
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
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Score a run on test data (default: its validation data), or a file of outputs with --hyp and --ref."""
    names, prompt = None if metrics is None else metrics.split(","), parse_prompt_options(template, examples, options)
    result: Result
    if hyp is not None or ref is not None:
        result = score_files(hyp, ref, run, metrics=names, lowercase=lowercase, kinds=load_plugins(*plugin))
    elif run is None:
        raise SaccadeError("evaluate needs a RUN, or --hyp FILE and --ref FILE")
    else:
        predictor = load_predictor(run.split(","), engine=engine, precision=precision, plugins=plugin)
        if prompt is not None:
            if columns is not None:
                raise SaccadeError("--columns is not for --template, which names columns itself; leave it out")
            result = evaluate_tasks(
                predictor, prompt, data, overrides, options=options, metrics=names, lowercase=lowercase
            )
        else:
            name = run.split(",")[0]
            result = score_run(
                predictor, choose_data(name, data, columns, predictor.recipe.kinds), check_overrides(overrides),
                metrics=names, lowercase=lowercase, keep_outputs=output is not None,
            )  # fmt: skip
            report_truncated(result.truncated_lengths, len(result.hypotheses), predictor.recipe)
    if output is not None:
        output.write_text("".join(f"{' '.join(text.splitlines())}\n" for text in result.hypotheses), encoding="utf-8")
    print(json.dumps(result.to_dict(), indent=2) if as_json else f"{align_columns(result.rows())}\n{result.summary()}")


def compare(
    runs: Runs,
    data: Data = [],  # noqa: B006
    columns: Columns = None,
    metric: Metric = None,
    markdown: Markdown = False,
    latex: Latex = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Compare runs on the same data (default: the first run's validation data), with confidence intervals and speed."""
    from saccade.score import table
    from saccade.score.api import compare as compare_runs

    for name in runs:
        if is_override(name) and not find_run(name).exists():
            raise SaccadeError(f"compare takes no settings, got '{name}'; each run is decoded with its own")
    kinds = load_plugins(*plugin)
    chosen = choose_data(runs[0], data, columns, kinds) if data else None
    comparison = compare_runs(runs, chosen, metric=metric, kinds=kinds)
    if as_json:
        print(json.dumps(comparison.to_dict(), indent=2))
    elif markdown or latex:
        print(table.to_markdown(comparison) if markdown else table.to_latex(comparison))
    else:
        print(f"{align_columns(table.to_cells(comparison))}\n\n{table.format_note(comparison)}")
    if broken := comparison.broken_runs:
        raise SaccadeError(f"left out {len(broken)} of {len(runs)} runs: {'; '.join(broken)}")


def score_files(
    hyp: str | None, ref: str | None, run: str | None, *, metrics: Sequence[str] | None, lowercase: bool, kinds: Kinds
) -> Evaluation:
    if hyp is None or ref is None or run is not None:
        raise SaccadeError("--hyp FILE and --ref FILE must be given together and without a run")
    from saccade.score.evaluate import evaluate_files

    return evaluate_files(hyp, ref, metrics=metrics, lowercase=lowercase, kinds=kinds)


def score_run(
    predictor: Predictor,
    corpora: Sequence[Corpus],
    overrides: Sequence[str],
    *,
    metrics: Sequence[str] | None,
    lowercase: bool,
    keep_outputs: bool,
) -> Result:
    from saccade.score.evaluate import evaluate_corpora

    return evaluate_corpora(
        predictor,
        corpora,
        metrics=metrics,
        lowercase=lowercase,
        decoding=build_decoding(predictor.recipe, overrides),
        synthetic_count=MAX_EMBEDDED_PAIRS,
        keep_token_scores=keep_outputs,
    )


def choose_data(run: str, data: Sequence[str], columns: str | None, kinds: Kinds) -> list[Corpus]:
    """Choose the corpora to score a run on, and print which columns of the given tables are read."""
    from saccade.data.sources.given import to_corpora
    from saccade.score.pairs import choose_corpora, describe_columns

    if columns is not None and not data:
        raise SaccadeError("--columns names the columns of a file that is given by --data")
    chosen = choose_corpora(find_run(run), to_corpora(parse_corpora(data), columns), kinds)
    for line in describe_columns(find_run(run), chosen, kinds) if data else ():
        print(line, file=sys.stderr)
    return chosen
