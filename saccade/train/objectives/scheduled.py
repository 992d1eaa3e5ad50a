"""Scheduled sampling: some of what a writer reads while it learns are its own words (Bengio et al. 2015)."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.protocols import HeadedWriter
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.model import Model
from saccade.model.writers.tokens import TokenWriter, shift_right
from saccade.predict.search.greedy import sampling
from saccade.train.objectives.terms import Term, real_tokens, token_sums

PIECE = 4096  # positions whose logits are held at once


def scheduled(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    sampled: float = 0.1,
    ctc: float = 0.0,
    smoothing: float = 0.1,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of every target token, where a share of those before it are drawn from the model.

    All are drawn at once, each after the true words before it, and then read in a second pass (Duckworth et al. 2019,
    one pass of sampling): so any writer can learn by it, and a text takes two passes and not one for each of its words.
    `ctc` is the share of the second writer on the same reader (Kim et al. 2017, equation 13).
    """
    target, memory, writer = batch["target"], model.read(batch), model.writer
    seen = shift_right(target.ids, START, target.mask)
    if sampled and model.training:
        seen = mixed(writer, seen, target.mask, memory, sampled, generator)
    (hidden, _), real = model.write(seen, target.mask, memory), real_tokens(target)
    smoothed, nll = token_sums(writer, hidden, target.ids, real, smoothing)
    count = real.sum()
    terms = {"next-token": Term(smoothed, count, weight * (1 - ctc)), "nll": Term(nll, count, 0.0)}
    if ctc:
        terms["ctc"] = Term(model.ctc.loss(memory, target), count, weight * ctc)
    return terms


@torch.no_grad()
def mixed(
    writer: TokenWriter,
    seen: Int[Tensor, "B T"],
    mask: Tensor | Packing,
    memory: Memory | None,
    sampled: float,
    generator: torch.Generator,
) -> Int[Tensor, "B T"]:
    """What a writer sees, a share of it replaced by what it would have said there itself."""
    drawn = drawn_words(writer, writer(seen, mask, memory), generator)
    chosen = torch.rand(seen.shape, generator=generator, device=seen.device) < sampled
    return torch.where(chosen & (seen != START), shift_right(drawn, START, mask), seen)


def drawn_words(writer: HeadedWriter, hidden: Tensor, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """A word for each position, by the probabilities that the writer gives it."""
    choose = sampling((), generator)
    parts = [choose(writer.head(part).float()) for part in hidden.flatten(0, 1).split(PIECE)]
    return torch.cat(parts).view(hidden.shape[:2])
