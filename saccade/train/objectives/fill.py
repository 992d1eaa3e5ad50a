"""The objective of a writer that fills in all tokens at once: hidden target tokens, and the length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.layers.memory import Memory
from saccade.layers.packing import layout_of
from saccade.model.model import Model
from saccade.model.writers.fill import MASK, FillWriter
from saccade.train.batches.pack import double
from saccade.train.objectives import masking
from saccade.train.objectives.terms import Term, token_sums, twofold_sums

OF_LENGTH = 0.1  # weight of the length beside the tokens (Ghazvininejad et al. 2019, in their code)


def fill(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    smoothing: float = 0.1,
    glancing: float = 0.5,
    shown: float = 0.5,
    alpha: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of hidden target tokens given all others, and of the length (Ghazvininejad et al. 2019).

    With `alpha` two passes with the same tokens hidden and different dropout must agree, as in r_drop.
    """
    target, writer = batch["target"], model.writer
    memory = model.read(double(batch) if alpha else batch)
    first = first_of_two(memory, batch) if alpha else memory
    hidden = masking.hidden_tokens(writer, target, first, generator, glancing=glancing, shown=shown)
    canvas = Batch({"canvas": Tokens(target.ids.masked_fill(hidden, MASK), target.mask)}, {"canvas": 0})
    given = (double(canvas) if alpha else canvas)["canvas"]
    (states, _), count = model.write(given.ids, given.mask, memory), hidden.sum()
    long, texts = length_sums(writer, memory, target)
    terms = {"length": Term(long, texts, weight * OF_LENGTH)}
    if not alpha:
        smoothed, nll = token_sums(writer, states, target.ids, hidden, smoothing)
        return {"fill": Term(smoothed, count, weight), **terms, "nll": Term(nll, count, 0.0)}
    smoothed, nll, apart = twofold_sums(writer, states, target.ids, hidden, smoothing, alpha)
    return {
        "fill": Term(smoothed / 2, count, weight),
        "consistency": Term(apart, count, weight * alpha / 2),
        **terms,
        "nll": Term(nll / 2, count, 0.0),
    }


def length_sums(writer: FillWriter, memory: Memory, target: Tokens) -> tuple[Tensor, Tensor]:
    """The cross-entropy of the length of each real text, in the mean of its passes, and how many texts there are."""
    logits, shortest = writer.lengths(memory)
    layout = layout_of(target.mask)
    real, wanted = layout.real, layout.lengths
    passes = len(logits) // len(real)
    chosen = (wanted.repeat(passes) - shortest).clamp(0, logits.shape[1] - 1)
    losses = F.cross_entropy(logits.float(), chosen, reduction="none")
    return (losses * real.repeat(passes)).sum() / passes, real.sum()


def first_of_two(memory: Memory, batch: Batch) -> Memory:
    """What was read in the first pass of a doubled batch."""
    mask = batch["source"].mask
    return Memory(layout_of(mask).first_half(memory.states), mask)
