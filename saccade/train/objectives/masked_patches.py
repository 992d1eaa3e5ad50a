"""The objective of masked image modelling, which pretrains a reader of pictures without labels."""

from __future__ import annotations

import torch

from saccade.data.batching.batch import Batch
from saccade.model.model import Model
from saccade.model.writers.patches import compute_patch_errors
from saccade.train.objectives.terms import Term


def masked_patch_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    mask_ratio: float = 0.6,
    normalize_pixels: bool = True,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Mean squared error of the pixels of masked patches (He et al. 2022, section 3)."""
    errors = compute_patch_errors(
        model, batch["source"], generator, mask_ratio=mask_ratio, normalize_pixels=normalize_pixels
    )
    return {"patches": Term((errors.squared_errors * errors.is_masked).sum(), errors.is_masked.sum(), weight)}
