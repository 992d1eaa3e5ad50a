"""`saccade distill`: a corpus of a teacher's translations, from which a student learns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import Json, Plugins, check_overrides
from saccade.cli.backtranslate import DecodingOverrides, MaxRatio
from saccade.cli.predict import Beam, Engine, Precision, Runs, build_decoding, load_predictor
from saccade.errors import SaccadeError
from saccade.runs import WEIGHTS, find_run

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="FILE",
        help="Text in the source language, one sentence per line; embedded:NAME is the source side of 1,000 pairs. "
        "Repeatable. Default: the sources of the teacher's own training data.",
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE.tsv", help="The corpus: real source and the teacher's output; --data of train."
    ),
]


def distill(  # noqa: PLR0913  # the options of a command are its parameters
    run: Runs,
    output: Output,
    overrides: DecodingOverrides = [],  # noqa: B006  # typer copies it
    input: Inputs = [],  # noqa: B006
    beam: Beam = None,
    max_ratio: MaxRatio = 3.0,
    engine: Engine = "auto",
    precision: Precision = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Translate training sources with a teacher to the corpus that its student learns from (Kim and Rush 2016).

    An interrupted command continues where it stopped if it is given again. At the end it prints the command that trains
    a student.
    """
    from saccade.data.sources.pairs import hash_file
    from saccade.predict import backtranslate as library

    words, runs = check_overrides(overrides), [find_run(name) for name in run.split(",") if name]
    predictor = load_predictor([str(folder) for folder in runs], engine=engine, precision=precision, plugins=plugin)
    inputs: list[library.Input] = [*input] if input else [*predictor.recipe.data.train]
    if not inputs:
        raise SaccadeError(f"run '{runs[0]}' has no training data in its recipe; give source texts by --input FILE")
    options = library.DistillationOptions(build_decoding(predictor.recipe, words, beam=beam), max_ratio=max_ratio)
    key = " ".join([*(hash_file(folder / WEIGHTS) for folder in runs), precision])
    progress = library.backtranslate(
        predictor, inputs, output, options=options, run_key=key, report=lambda line: print(line, file=sys.stderr)
    )
    student = f"saccade train nat --data {output} --valid SRC TGT init={runs[0]} tokenizer.kind=init"
    counts = {"lines": progress.lines, "pairs": progress.pairs, "left_out": dict(progress.left_out), "next": student}
    print(json.dumps(counts) if as_json else f"{output}: {progress.describe()}\nnext: {student}")
