"""Training. The package itself can be called: `saccade.train(recipe, ...)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

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


class CallablePackage(ModuleType):
    """A module that can be called: `saccade.train` is both this package and the function."""

    @property
    def __call__(self) -> Any:
        from saccade.train.api import train

        return train


sys.modules[__name__].__class__ = CallablePackage
