"""`saccade predict --embed`: sentence embeddings from an encoder."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.predict.predictors.encoder import Encoder
    from saccade.predict.predictors.predictor import Predictor

LINES_PER_BATCH = 1024

Embed = Annotated[
    str | None,
    typer.Option(
        "--embed",
        metavar="mean|first",
        help="Encoders: print one L2-normalized embedding per input, mean-pooled or of the first token; "
        "--output x.npy writes an array.",
    ),
]


def write_embeddings(predictor: Predictor, lines: Iterable[str], *, pool: str, output: str | None) -> None:
    """Write one JSON line per input with its L2-normalized embedding, or one array (inputs, dim) to a .npy file."""
    if not predictor.supports_embedding:
        raise SaccadeError(f'--embed is for encoders (task = "encode"), got task = "{predictor.recipe.task.name}"')
    encoder = cast("Encoder", predictor)
    if output is not None and output.endswith(".npy"):
        import numpy as np

        from saccade.files import atomic_write

        content = io.BytesIO()
        np.save(content, encoder.embed([line.rstrip("\r\n") for line in lines], pool=pool))  # type: ignore[arg-type]
        atomic_write(Path(output), content.getvalue())
        return
    json_lines = _generate_json_lines(encoder, lines, pool)
    first = next(json_lines, None)  # fails, if it does, before an older output file is truncated
    with open(output, "w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        for line in [] if first is None else [first]:
            print(line, file=file, flush=True)
        for line in json_lines:
            print(line, file=file, flush=True)


def _generate_json_lines(encoder: Encoder, lines: Iterable[str], pool: str) -> Iterator[str]:
    remaining = iter(lines)
    while batch := [line.rstrip("\r\n") for line in islice(remaining, LINES_PER_BATCH)]:
        for text, vector in zip(batch, encoder.embed(batch, pool=pool), strict=True):  # type: ignore[arg-type]
            yield json.dumps({"input": text, "embedding": [round(float(x), 6) for x in vector]}, ensure_ascii=False)
