"""Which tokens of a target are hidden from a writer that learns to fill them in; END never is.

A text of n words and END has n places that can be hidden. R texts; in a padded batch they are its rows, in a packed one
its texts.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.batching.batch import Tokens
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.writers.fill import MASK

AT_ONCE = 2048  # tokens whose logits are held at once


def hidden_tokens(
    writer: Any, target: Tokens, memory: Memory, generator: torch.Generator, *, glancing: float, shown: float
) -> Bool[Tensor, "B T"]:
    """A share `glancing` of the texts by a first look, the others at random."""
    words = lengths_of(target.mask) - 1
    noise = torch.rand(2, len(words), generator=generator, device=words.device)
    counts = any_number(words, noise[0])
    if glancing:
        missed = sums_of(wrong_tokens(writer, target, memory), target.mask)
        counts = torch.where(noise[1] < glancing, unseen(words, missed, shown), counts)
    width = target.mask.longest if isinstance(target.mask, Packing) else target.ids.shape[1]
    places = torch.rand(len(words), width, generator=generator, device=words.device)
    return by_token(chosen_places(places, words, counts), target.mask)


def any_number(words: Int[Tensor, " R"], noise: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """From 1 to n hidden tokens, each number as likely as any other (Ghazvininejad et al. 2019)."""
    return torch.minimum(1 + (noise * words).long(), words)


def unseen(words: Int[Tensor, " R"], missed: Int[Tensor, " R"], shown: float) -> Int[Tensor, " R"]:
    """What is left where `shown` tokens are shown for each missed one (glancing, Qian et al. 2021)."""
    return words - (shown * missed).long()


def chosen_places(
    noise: Float[Tensor, "R L"], words: Int[Tensor, " R"], counts: Int[Tensor, " R"]
) -> Bool[Tensor, "R L"]:
    """`counts` of the first `words` places of each text: those with the least noise."""
    outside = torch.arange(noise.shape[1], device=noise.device) >= words[:, None]
    ranks = noise.masked_fill(outside, 2.0).argsort(1).argsort(1)
    return ranks < counts[:, None]


@torch.no_grad()
def wrong_tokens(writer: Any, target: Tokens, memory: Memory) -> Bool[Tensor, "B T"]:
    """Where the writer's first thought, when nothing is written yet, is another token than the target's."""
    words = target.ids.masked_fill(are_words(target), MASK)
    hidden = writer(words, target.mask, memory)
    parts = [writer.head(rows).argmax(-1) for rows in hidden.flatten(0, 1).split(AT_ONCE)]
    return (torch.cat(parts).view_as(target.ids) != target.ids) & are_words(target)


def are_words(target: Tokens) -> Bool[Tensor, "B T"]:
    """Every real token but END, the last of its text."""
    if isinstance(target.mask, Packing):
        last = lengths_of(target.mask)[target.mask.texts] - 1
        return target.mask.keep & (target.mask.positions < last)
    return target.mask & (torch.arange(target.ids.shape[1], device=target.ids.device) < target.mask.sum(1)[:, None] - 1)


# ---- texts and their tokens, padded or packed


def lengths_of(mask: Bool[Tensor, "B T"] | Packing) -> Int[Tensor, " R"]:
    return mask.offsets.diff().long() if isinstance(mask, Packing) else mask.sum(1)


def real_texts(mask: Bool[Tensor, "B T"] | Packing) -> Bool[Tensor, " R"]:
    """Those that do not only fill up a packed row."""
    if isinstance(mask, Packing):
        count = ((mask.texts + 1) * mask.keep).amax()
        return torch.arange(len(mask.offsets) - 1, device=mask.texts.device) < count
    return mask.any(1)


def sums_of(tokens: Bool[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing) -> Int[Tensor, " R"]:
    """How many are true in each text."""
    if isinstance(mask, Packing):
        zeros = torch.zeros(len(mask.offsets) - 1, dtype=torch.long, device=tokens.device)
        return zeros.index_add(0, mask.texts[0], tokens[0].long())
    return tokens.sum(1)


def by_token(places: Bool[Tensor, "R L"], mask: Bool[Tensor, "B T"] | Packing) -> Bool[Tensor, "B T"]:
    """What is said about each place of each text, for each token of a batch; False for what is not real."""
    return places[mask.texts, mask.positions] & mask.keep if isinstance(mask, Packing) else places & mask
