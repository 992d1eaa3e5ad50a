"""Training. The package itself can be called: `saccade.train(recipe, ...)`; see the function `train` below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saccade.callables import make_callable

if TYPE_CHECKING:
    from saccade.train.api import train

__all__ = ["Interrupted", "train"]


def __getattr__(name: str) -> Any:
    """Import names on first use, so that importing this package does not import torch."""
    if name == "train":
        from saccade.train.api import train

        return train
    if name == "Interrupted":
        from saccade.train.signals import Interrupted

        return Interrupted
    raise AttributeError(f"module 'saccade.train' has no attribute '{name}'")


make_callable(__name__)
