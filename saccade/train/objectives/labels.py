"""Objectives of classification, regression and sequence labelling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.labels import NO_CLASS
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.packing import get_batch_layout
from saccade.model.model import Model
from saccade.train.augment.mixing import mix_pictures
from saccade.train.objectives.terms import Term

UINT32_RANGE = 2**32  # target numbers are stored as ids: the 32 bits of a float as an unsigned integer


def label_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    label_smoothing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of the class of each sequence or picture, with label smoothing.

    In training, `mixup` and `cutmix` mix pairs of pictures and their losses (0 disables them).
    """
    ids, _ = get_sequence_labels(batch["label"])
    if not (model.training and (mixup or cutmix)):
        return {"label": compute_class_term(model.writer(model.read(batch)), ids, label_smoothing, weight)}
    batch, others, share = mix_pictures(batch, generator, mixup=mixup, cutmix=cutmix)
    logits = model.writer(model.read(batch))
    first, second = (compute_class_term(logits, labels, label_smoothing, weight) for labels in (ids, ids[others]))
    return {"label": first._replace(sum=share * first.sum + (1 - share) * second.sum)}


label_loss.tested_on_picture_graphs = True  # type: ignore[attr-defined]  # see terms.py


def tag_loss(
    model: Model, batch: Batch, generator: torch.Generator, *, label_smoothing: float = 0.0, weight: float = 1.0
) -> dict[str, Term]:
    """Cross-entropy of the class of each word, at its first token."""
    logits = model.writer(model.read(batch))
    return {"tag": compute_class_term(logits.flatten(0, 1), batch["label"].ids.flatten(), label_smoothing, weight)}


def regression_loss(model: Model, batch: Batch, generator: torch.Generator, *, weight: float = 1.0) -> dict[str, Term]:
    """Mean squared error of the predicted numbers."""
    values = to_loss_dtype(model.writer(model.read(batch))[:, 0])
    ids, real = get_sequence_labels(batch["label"])
    errors = torch.where(real, values - decode_floats(ids), 0.0)
    return {"regress": Term((errors * errors).sum(), real.sum(), weight)}


def compute_class_term(
    logits: Float[Tensor, "N C"], ids: Int[Tensor, " N"], label_smoothing: float, weight: float
) -> Term:
    """Cross-entropy summed over positions that have a class; an id is the number of the class plus 1."""
    real = ids != NO_CLASS
    losses = F.cross_entropy(
        to_loss_dtype(logits), (ids - 1).clamp(min=0), reduction="none", label_smoothing=label_smoothing
    )
    return Term(torch.where(real, losses, 0.0).sum(), real.sum(), weight)


def get_sequence_labels(labels: Tokens) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
    """Return the label id of each sequence (NO_CLASS for padding sequences), and which sequences are real."""
    layout = get_batch_layout(labels.mask)
    real = layout.keep.flatten().index_select(0, layout.starts) & (layout.lengths > 0)
    return labels.ids.flatten().index_select(0, layout.starts).masked_fill(~real, NO_CLASS), real


def decode_floats(ids: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Reinterpret 32-bit integers as floats."""
    return torch.where(ids >= UINT32_RANGE // 2, ids - UINT32_RANGE, ids).to(torch.int32).view(torch.float32)
