"""What a writer looked at while it learns, for a penalty of its looks: with gradients, and for whoever asks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor

HEARD: ContextVar[list[Tensor] | None] = ContextVar("heard", default=None)


@contextmanager
def hearing_looks() -> Iterator[list[Tensor]]:
    """Yields the weights (B, T, S) of every text that is written inside of the block, in this thread."""
    heard: list[Tensor] = []
    token = HEARD.set(heard)
    try:
        yield heard
    finally:
        HEARD.reset(token)


def tell_looks(weights: Sequence[Float[Tensor, "B t S"]]) -> None:
    """Gives the weights of the steps of a text to whoever listens."""
    heard = HEARD.get()
    if heard is not None:
        heard.append(torch.cat(tuple(weights), 1))
