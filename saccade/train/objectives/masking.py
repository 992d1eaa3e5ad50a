"""Which tokens of a target are hidden from a writer that learns to fill them in; END never is.

A text of n words and END has n places that can be hidden. R texts; in a padded batch they are its rows, in a packed one
its texts.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.batching.batch import Tokens
from saccade.layers.memory import Memory
from saccade.layers.packing import layout_of
from saccade.model.writers.fill import MASK, FillWriter

AT_ONCE = 2048  # tokens whose logits are held at once


def hidden_tokens(
    writer: FillWriter, target: Tokens, memory: Memory, generator: torch.Generator, *, glancing: float, shown: float
) -> Bool[Tensor, "B T"]:
    """A share `glancing` of the texts by a first look, the others at random."""
    layout = layout_of(target.mask)
    words = layout.lengths - 1
    noise = torch.rand(2, len(words), generator=generator, device=words.device)
    counts = any_number(words, noise[0])
    if glancing:
        missed = layout.sum(wrong_tokens(writer, target, memory))
        counts = torch.where(noise[1] < glancing, unseen(words, missed, shown), counts)
    places = torch.rand(len(words), layout.longest, generator=generator, device=words.device)
    return layout.pack(chosen_places(places, words, counts)) & layout.keep


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
def wrong_tokens(writer: FillWriter, target: Tokens, memory: Memory) -> Bool[Tensor, "B T"]:
    """Where the writer's first thought, when nothing is written yet, is another token than the target's."""
    words = target.ids.masked_fill(are_words(target), MASK)
    hidden = writer(words, target.mask, memory)
    parts = [writer.head(rows).argmax(-1) for rows in hidden.flatten(0, 1).split(AT_ONCE)]
    return (torch.cat(parts).view_as(target.ids) != target.ids) & are_words(target)


def are_words(target: Tokens) -> Bool[Tensor, "B T"]:
    """Every real token but END, the last of its text."""
    layout = layout_of(target.mask)
    places = torch.arange(target.ids.shape[1], device=target.ids.device) if layout.places is None else layout.places
    return layout.keep & (places < layout.spread(layout.lengths) - 1)
