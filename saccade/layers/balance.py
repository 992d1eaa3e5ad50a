"""How evenly experts are used: what they chose is told here, and whoever trains or measures listens.

Two losses of Shazeer et al. 2017 (section 4, appendix A), the squared coefficients of variation of the importance of
the experts (the sum of their weights) and of their load (how many positions they get, as a smooth function of the
gate). They were taken, and not the product of share and probability of later papers, since they belong to noisy gating:
with its noise the load itself has a gradient. Without noise only the importance has one.

Padding is not counted. It passes the experts as every position does, and nobody reads what they give for it.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.packing import Packing

Uses = dict[Any, Float[Tensor, "3 E"]]  # of each group of experts: importance, load and positions, summed


class Choice(NamedTuple):
    """Which experts each position passes: N positions, E experts, k of them for each."""

    experts: Int[Tensor, "N k"]
    weights: Float[Tensor, "N k"]  # of each position they sum to 1
    load: Float[Tensor, "N E"]  # the probability that an expert is chosen, were the noise drawn again


_listeners: dict[int, list[tuple[bool, Uses]]] = {}  # by thread; with or without gradients


@contextmanager
def listening() -> Iterator[Uses]:
    """Yields how the experts are used in every forward pass inside the block, in this thread.

    Who learns hears nothing of passes without gradients, in which an objective only looks or writes.
    """
    me, heard = threading.get_ident(), Uses()
    _listeners.setdefault(me, []).append((torch.is_grad_enabled(), heard))
    try:
        yield heard
    finally:
        _listeners[me].pop()
        if not _listeners[me]:
            del _listeners[me]


def tell(experts: Any, choice: Choice, real: Bool[Tensor, "..."] | Packing | None) -> None:
    """Says what was chosen, at positions of which some are `real`; outside of regions, for a graph tells nobody."""
    listeners = [uses for grad, uses in _listeners.get(threading.get_ident(), ()) if grad == torch.is_grad_enabled()]
    if not listeners:
        return
    nothing = torch.zeros_like(choice.load)
    importance = nothing.scatter(1, choice.experts, choice.weights)
    each = torch.stack((importance, choice.load, nothing.scatter(1, choice.experts, 1.0)))
    if real is not None:
        each = each * (real.keep if isinstance(real, Packing) else real).flatten()[:, None]
    uses = each.sum(1)
    for heard in listeners:
        heard[experts] = heard[experts] + uses if experts in heard else uses


def unevenness(values: Float[Tensor, " E"]) -> Float[Tensor, ""]:
    """The squared coefficient of variation, (standard deviation / mean)^2."""
    return values.var(correction=0) / values.mean().square().clamp(min=1e-10)


def balance_loss(uses: Mapping[Any, Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """Sum over all groups of experts of weight * (CV(importance)^2 + CV(load)^2)."""
    parts = [one.balance * (unevenness(used[0]) + unevenness(used[1])) for one, used in uses.items()]
    return torch.stack(parts).sum()


def relative_load(used: Float[Tensor, "3 E"]) -> Float[Tensor, " E"]:
    """How many positions each expert got, in units of their mean."""
    positions = used[2].detach()
    return positions / positions.mean().clamp(min=1e-10)


def busiest(uses: Mapping[Any, Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """The largest relative load of all experts."""
    return torch.stack([relative_load(used).max() for used in uses.values()]).max()
