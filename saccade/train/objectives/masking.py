"""Chooses which target tokens are masked for a non-autoregressive writer; END never is.

Shapes: R is the number of sequences in a padded or packed batch; `words` is the number of tokens of each without END.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.batching.batch import Tokens
from saccade.layers.memory import Memory
from saccade.layers.packing import get_batch_layout
from saccade.model.writers.fill import MASK, FillWriter

LOGIT_CHUNK = 2048  # tokens whose logits are in memory at once


def choose_masked_tokens(
    writer: FillWriter,
    target: Tokens,
    memory: Memory,
    generator: torch.Generator,
    *,
    glancing: float,
    reveal_ratio: float,
) -> Bool[Tensor, "B T"]:
    """Choose tokens at random; for a share `glancing` of the sequences, their number depends on a first prediction."""
    layout = get_batch_layout(target.mask)
    words = layout.lengths - 1
    noise = torch.rand(2, len(words), generator=generator, device=words.device)
    counts = sample_mask_counts(words, noise[0])
    if glancing:
        errors = layout.sum_per_sequence(find_wrong_tokens(writer, target, memory))
        counts = torch.where(noise[1] < glancing, compute_glancing_counts(words, errors, reveal_ratio), counts)
    position_noise = torch.rand(len(words), layout.max_length, generator=generator, device=words.device)
    return layout.pack(choose_positions(position_noise, words, counts)) & layout.keep


def sample_mask_counts(words: Int[Tensor, " R"], noise: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Number of masked tokens of each sequence, uniform from 1 to `words` (Ghazvininejad et al. 2019)."""
    return torch.minimum(1 + (noise * words).long(), words)


def compute_glancing_counts(
    words: Int[Tensor, " R"], errors: Int[Tensor, " R"], reveal_ratio: float
) -> Int[Tensor, " R"]:
    """Number of masked tokens when `reveal_ratio` tokens are revealed for each wrong one (GLAT, Qian et al. 2021)."""
    return words - (reveal_ratio * errors).long()


def choose_positions(
    noise: Float[Tensor, "R L"], words: Int[Tensor, " R"], counts: Int[Tensor, " R"]
) -> Bool[Tensor, "R L"]:
    """Choose `counts` of the first `words` positions of each sequence: those with the smallest noise."""
    outside = torch.arange(noise.shape[1], device=noise.device) >= words[:, None]
    ranks = noise.masked_fill(outside, 2.0).argsort(1).argsort(1)
    return ranks < counts[:, None]


@torch.no_grad()
def find_wrong_tokens(writer: FillWriter, target: Tokens, memory: Memory) -> Bool[Tensor, "B T"]:
    """Where the writer's prediction from a fully masked canvas differs from the target."""
    canvas = target.ids.masked_fill(get_maskable(target), MASK)
    hidden = writer(canvas, target.mask, memory)
    parts = [writer.head(rows).argmax(-1) for rows in hidden.flatten(0, 1).split(LOGIT_CHUNK)]
    return (torch.cat(parts).view_as(target.ids) != target.ids) & get_maskable(target)


def get_maskable(target: Tokens) -> Bool[Tensor, "B T"]:
    """All real tokens except END, the last of each sequence."""
    layout = get_batch_layout(target.mask)
    positions = layout.token_positions
    if positions is None:
        positions = torch.arange(target.ids.shape[1], device=target.ids.device)
    return layout.keep & (positions < layout.broadcast_to_tokens(layout.lengths) - 1)
