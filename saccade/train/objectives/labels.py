"""Objectives of labels: a class for each text, a number for each text, a class for each word."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.labels import NONE
from saccade.layers.packing import layout_of
from saccade.model.model import Model
from saccade.train.augment.mixing import mixed
from saccade.train.objectives.terms import Term

WRAP = 2**32  # ids of numbers are 32 bits without a sign


def label(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    smoothing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of the class of each text or picture, with label smoothing where it is wanted.

    While it learns, a picture may be made of two, and is of both classes.
    """
    ids, _ = of_texts(batch["label"])
    if not (model.training and (mixup or cutmix)):
        return {"label": class_term(model.writer(model.read(batch)), ids, smoothing, weight)}
    batch, others, share = mixed(batch, generator, mixup=mixup, cutmix=cutmix)
    logits = model.writer(model.read(batch))
    first, second = (class_term(logits, wanted, smoothing, weight) for wanted in (ids, ids[others]))
    return {"label": first._replace(sum=share * first.sum + (1 - share) * second.sum)}


label.proven_on_pictures = True  # type: ignore[attr-defined]  # see `is_proven_on_pictures` in terms.py


def tag(
    model: Model, batch: Batch, generator: torch.Generator, *, smoothing: float = 0.0, weight: float = 1.0
) -> dict[str, Term]:
    """Cross-entropy of the class of each word, at its first piece."""
    logits = model.writer(model.read(batch))
    return {"tag": class_term(logits.flatten(0, 1), batch["label"].ids.flatten(), smoothing, weight)}


def regress(model: Model, batch: Batch, generator: torch.Generator, *, weight: float = 1.0) -> dict[str, Term]:
    """The mean of the squares of how far the numbers are missed."""
    values = model.writer(model.read(batch))[:, 0].float()
    ids, real = of_texts(batch["label"])
    missed = torch.where(real, values - numbers(ids), 0.0)
    return {"regress": Term((missed * missed).sum(), real.sum(), weight)}


def class_term(logits: Float[Tensor, "N C"], ids: Int[Tensor, " N"], smoothing: float, weight: float) -> Term:
    """The sum over all places where there is a class; ids are one more than its number."""
    real = ids != NONE
    losses = F.cross_entropy(logits.float(), (ids - 1).clamp(min=0), reduction="none", label_smoothing=smoothing)
    return Term(torch.where(real, losses, 0.0).sum(), real.sum(), weight)


def of_texts(labels: Tokens) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
    """The id of each text, NONE for one that only fills up a batch, and which are real."""
    layout = layout_of(labels.mask)
    real = layout.keep.flatten().index_select(0, layout.begins) & (layout.lengths > 0)
    return labels.ids.flatten().index_select(0, layout.begins).masked_fill(~real, NONE), real


def numbers(ids: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Bits as the numbers that they are."""
    return torch.where(ids >= WRAP // 2, ids - WRAP, ids).to(torch.int32).view(torch.float32)
