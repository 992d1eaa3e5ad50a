"""`saccade backtranslate`: synthetic training data from monolingual target text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import Json, Plugins, check_overrides
from saccade.cli.predict import Beam, Engine, Precision, Runs, build_decoding, load_predictor
from saccade.runs import WEIGHTS, find_run

DecodingOverrides = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE", help="Decoding settings, such as beam=5 or sample=true top_k=10.")
]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="FILE",
        help="Text in the target language, one sentence per line; embedded:NAME is the target side of 1,000 pairs. "
        "Repeatable.",
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE.tsv", help="The corpus: synthetic source and real target; --data of train."
    ),
]
Tag = Annotated[str, typer.Option("--tag", metavar="TEXT", help="Put before each synthetic source, such as '<BT>'.")]
MaxRatio = Annotated[
    float,
    typer.Option(
        "--max-ratio", min=1.0, help="Leave out pairs whose numbers of tokens differ by more than this factor."
    ),
]
Noise = Annotated[
    float,
    typer.Option(
        "--noise", min=0.0, max=0.9, help="Probability that noise drops, and that it replaces, a word of the source."
    ),
]


def backtranslate(  # noqa: PLR0913  # the options of a command are its parameters
    run: Runs,
    input: Inputs,
    output: Output,
    overrides: DecodingOverrides = [],  # noqa: B006  # typer copies it
    beam: Beam = None,
    tag: Tag = "",
    max_ratio: MaxRatio = 3.0,
    noise: Noise = 0.0,
    engine: Engine = "auto",
    precision: Precision = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Translate monolingual target text with a target-to-source run to a corpus of synthetic sources and real targets.

    An interrupted command continues where it stopped if it is given again.
    """
    from saccade.data.sources.pairs import hash_file
    from saccade.predict import backtranslate as library

    words, runs = check_overrides(overrides), [find_run(name) for name in run.split(",") if name]
    predictor = load_predictor([str(folder) for folder in runs], engine=engine, precision=precision, plugins=plugin)
    options = library.BacktranslationOptions(
        build_decoding(predictor.recipe, words, beam=beam), tag=tag, max_ratio=max_ratio, noise=noise
    )
    key = " ".join([*(hash_file(folder / WEIGHTS) for folder in runs), precision])
    progress = library.backtranslate(
        predictor, input, output, options=options, run_key=key, report=lambda line: print(line, file=sys.stderr)
    )
    counts = {"lines": progress.lines, "pairs": progress.pairs, "left_out": dict(progress.left_out)}
    print(json.dumps(counts) if as_json else f"{output}: {progress.describe()}")
