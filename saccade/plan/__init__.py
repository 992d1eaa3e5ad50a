"""Estimate the cost of a recipe before training: parameters, FLOPs, memory, time, money.

The package itself can be called: `saccade.plan(recipe, ...)`; see the function `plan` below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saccade.callables import make_callable

if TYPE_CHECKING:
    from saccade.plan.api import plan

__all__ = ["plan"]


def __getattr__(name: str) -> Any:
    """Import the function on first use, so that importing this package does not import torch."""
    if name == "plan":
        from saccade.plan.api import plan

        return plan
    raise AttributeError(f"module 'saccade.plan' has no attribute '{name}'")


make_callable(__name__)
