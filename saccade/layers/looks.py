"""What a writer looked at while it learns, for what is learned of its looks: with gradients, and for whoever asks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Looks(NamedTuple):
    """Those of all steps of a text."""

    weights: Float[Tensor, "B T S"]
    drawn: Int[Tensor, "B T"] | None = None  # of hard looks: which state was looked at; negative where all were


HEARD: ContextVar[list[Looks] | None] = ContextVar("heard", default=None)


@contextmanager
def hearing_looks() -> Iterator[list[Looks]]:
    """Yields the looks of every text that is written inside of the block, in this thread."""
    heard: list[Looks] = []
    token = HEARD.set(heard)
    try:
        yield heard
    finally:
        HEARD.reset(token)


def tell_looks(*parts: Sequence[Tensor]) -> None:
    """Gives the weights of the steps of a text, and what was drawn by them, to whoever listens."""
    heard = HEARD.get()
    if heard is not None:
        heard.append(Looks(*(torch.cat(tuple(part), 1) for part in parts)))
