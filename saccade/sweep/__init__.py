"""Hyperparameter sweeps. The package itself can be called: `saccade.sweep(recipe, grid=...)`; see `api.sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saccade.callables import make_callable

if TYPE_CHECKING:
    from saccade.sweep.api import sweep

__all__ = ["sweep"]


def __getattr__(name: str) -> Any:
    """Import the function on first use, so that importing this package does not import torch."""
    if name == "sweep":
        from saccade.sweep.api import sweep

        return sweep
    raise AttributeError(f"module 'saccade.sweep' has no attribute '{name}'")


make_callable(__name__)
