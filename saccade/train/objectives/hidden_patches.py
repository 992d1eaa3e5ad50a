"""Patches of pictures that are hidden, and drawn again: what a reader can learn without labels."""

from __future__ import annotations

import torch

from saccade.data.batching.batch import Batch
from saccade.model.model import Model
from saccade.model.writers.patches import missed_patches
from saccade.train.objectives.terms import Term


def patches(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    hidden: float = 0.6,
    normalised: bool = True,
    weight: float = 1.0,
) -> dict[str, Term]:
    """The mean square of how far the pixels of hidden patches are missed (He et al. 2022, section 3)."""
    missed = missed_patches(model, batch["source"], generator, hidden=hidden, normalised=normalised)
    return {"patches": Term((missed.squares * missed.hidden).sum(), missed.hidden.sum(), weight)}
