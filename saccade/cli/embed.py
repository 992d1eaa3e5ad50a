"""`saccade predict --embed`: vectors of texts."""

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

AT_ONCE = 1024  # lines

Embed = Annotated[
    str | None,
    typer.Option(
        "--embed",
        metavar="mean|first",
        help="Of an encoder: a vector of length 1 for each text, the mean of its states or the first; --output x.npy.",
    ),
]


def write_vectors(predictor: Predictor, lines: Iterable[str], *, pool: str, output: str | None) -> None:
    """A line of JSON for each text, or one array for all of them where the file is called .npy."""
    if not predictor.supports_embedding:
        raise SaccadeError(f'--embed is for encoders (task = "encode"), got task = "{predictor.recipe.task.name}"')
    encoder = cast("Encoder", predictor)
    if output is not None and output.endswith(".npy"):
        import numpy as np

        from saccade.files import atomic_write

        found, content = encoder.embed([line.rstrip("\r\n") for line in lines], pool=pool), io.BytesIO()  # type: ignore[arg-type]
        np.save(content, found)
        atomic_write(Path(output), content.getvalue())
        return
    described = _described(encoder, lines, pool)
    first = next(described, None)  # before an older file is emptied
    with open(output, "w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        for line in [] if first is None else [first]:
            print(line, file=file, flush=True)
        for line in described:
            print(line, file=file, flush=True)


def _described(encoder: Encoder, lines: Iterable[str], pool: str) -> Iterator[str]:
    left = iter(lines)
    while block := [line.rstrip("\r\n") for line in islice(left, AT_ONCE)]:
        for text, vector in zip(block, encoder.embed(block, pool=pool), strict=True):  # type: ignore[arg-type]
            yield json.dumps({"input": text, "embedding": [round(float(x), 6) for x in vector]}, ensure_ascii=False)
