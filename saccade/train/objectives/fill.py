"""The objective of non-autoregressive writers: masked target tokens, and the length of the output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.memory import Memory
from saccade.layers.packing import get_batch_layout
from saccade.model.model import Model
from saccade.model.writers.fill import MASK, FillWriter
from saccade.train.batches.pack import double_batch
from saccade.train.objectives import masking
from saccade.train.objectives.terms import Term, compute_r_drop_losses, compute_token_losses

LENGTH_WEIGHT = 0.1  # weight of the length loss (Ghazvininejad et al. 2019, in their code)


def fill_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    label_smoothing: float = 0.1,
    glancing: float = 0.5,
    reveal_ratio: float = 0.5,
    alpha: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of masked target tokens given all others, and of the length (CMLM, Ghazvininejad et al. 2019).

    With `alpha`, two passes with the same mask and different dropout must agree, as in `r_drop_loss`.
    """
    target, writer = batch["target"], model.writer
    memory = model.read(double_batch(batch) if alpha else batch)
    first = get_first_pass(memory, batch) if alpha else memory
    masked = masking.choose_masked_tokens(
        writer, target, first, generator, glancing=glancing, reveal_ratio=reveal_ratio
    )
    canvas = Batch({"canvas": Tokens(target.ids.masked_fill(masked, MASK), target.mask)}, {"canvas": 0})
    inputs = (double_batch(canvas) if alpha else canvas)["canvas"]
    (states, _), count = model.write(inputs.ids, inputs.mask, memory), masked.sum()
    length_loss, sequences = compute_length_loss(writer, memory, target)
    terms = {"length": Term(length_loss, sequences, weight * LENGTH_WEIGHT)}
    if not alpha:
        smoothed, nll = compute_token_losses(writer, states, target.ids, masked, label_smoothing)
        return {"fill": Term(smoothed, count, weight), **terms, "nll": Term(nll, count, 0.0)}
    smoothed, nll, divergence = compute_r_drop_losses(writer, states, target.ids, masked, label_smoothing, alpha)
    return {
        "fill": Term(smoothed / 2, count, weight),
        "consistency": Term(divergence, count, weight * alpha / 2),
        **terms,
        "nll": Term(nll / 2, count, 0.0),
    }


def compute_length_loss(writer: FillWriter, memory: Memory, target: Tokens) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of the lengths of real sequences, averaged over passes, and their number."""
    logits, min_length = writer.predict_lengths(memory)
    layout = get_batch_layout(target.mask)
    real, lengths = layout.real_sequences, layout.lengths
    passes = len(logits) // len(real)
    classes = (lengths.repeat(passes) - min_length).clamp(0, logits.shape[1] - 1)
    losses = F.cross_entropy(to_loss_dtype(logits), classes, reduction="none")
    return (losses * real.repeat(passes)).sum() / passes, real.sum()


def get_first_pass(memory: Memory, batch: Batch) -> Memory:
    """Return the memory of the first half of a doubled batch."""
    mask = batch["source"].mask
    return Memory(get_batch_layout(mask).take_first_half(memory.states), mask)
