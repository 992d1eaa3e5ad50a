"""Decoding by fertilities (Gu et al. 2018, section 3.3): which copies of the source a non-autoregressive writer gets.

The first candidate of a sentence has the most probable or the expected fertility of each source token; the others, for
noisy parallel decoding, have sampled ones. B sentences with L candidates each are R = B L rows of T positions, the last
real one of which is END.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.memory import Memory
from saccade.model.writers.fertility import FertilityWriter, copy_by_fertility, get_copyable, get_source_tokens

IMPOSSIBLE = -1e4  # log-probability of fertilities that cannot have the sum that is asked for


class Copies(NamedTuple):
    """Candidates: copied source tokens, their number with END, log P(fertilities), and whether no other is the same."""

    ids: Int[Tensor, "R T"]
    lengths: Int[Tensor, " R"]
    log_probs: Float[Tensor, " R"]
    valid: Bool[Tensor, " R"]


def propose_copies(
    writer: FertilityWriter,
    memory: Memory,
    limits: Int[Tensor, " B"],
    *,
    candidates: int,
    averages: bool,
    seed: int,
    min_length: int = 0,
    width: int | None = None,
) -> Copies:
    """Return the candidates of each sentence, with at least one token and at most as many as `limits` allows.

    Copies beyond the limit are cut off; if there are fewer than `min_length`, the last source token is copied more
    often. With a `width` that no candidate exceeds, nothing synchronizes with the device.
    """
    source, mask = get_source_tokens(memory)
    copyable = get_copyable(mask)[:, None]
    log_probs = writer.predict_fertilities(memory).float().log_softmax(-1)
    chosen = choose_fertilities(log_probs, candidates=candidates, averages=averages, seed=seed)
    chosen = torch.where(copyable, chosen, 0)  # (B, L, S)
    picked = log_probs[:, None].expand(-1, candidates, -1, -1).gather(3, chosen[..., None])[..., 0]
    same = (chosen[:, :, None] == chosen[:, None]).all(-1)  # (B, L, L)
    first = same.int().argmax(-1) == torch.arange(candidates, device=same.device)
    counts = torch.minimum(chosen.sum(-1).clamp(min=max(1, min_length)), limits[:, None]).flatten()
    source, mask = (x.repeat_interleave(candidates, 0) for x in (source, mask))
    ids = copy_by_fertility(source, mask, chosen.flatten(0, 1), counts, width or int(counts.max()) + 1)
    return Copies(ids, counts + 1, torch.where(copyable, picked, 0.0).sum(-1).flatten(), first.flatten())


def choose_fertilities(
    log_probs: Float[Tensor, "B S F"], *, candidates: int, averages: bool, seed: int
) -> Int[Tensor, "B L S"]:
    """Return the most probable fertilities, or the expected ones, rounded; then sampled ones."""
    classes = torch.arange(log_probs.shape[-1], device=log_probs.device)
    probs = log_probs.exp()
    best = (probs * classes).sum(-1).round().long() if averages else log_probs.argmax(-1)
    noise = make_noise(seed, candidates - 1, log_probs.shape[1], log_probs.device)
    below = noise[None, ..., None] > probs.cumsum(-1)[:, None]  # (B, L - 1, S, F)
    sampled = below.sum(-1).clamp(max=len(classes) - 1)
    return torch.cat((best[:, None], sampled), 1)


@lru_cache(maxsize=64)
def make_noise(seed: int, candidates: int, length: int, device: torch.device) -> Float[Tensor, "L S"]:
    """Uniform random numbers for sampling, the same for each sentence, whatever else is in its batch."""
    noise = np.random.default_rng(seed).random((length, candidates), dtype=np.float32)
    return torch.from_numpy(noise).T.contiguous().to(device)


def find_copies_of_length(
    writer: FertilityWriter, memory: Memory, counts: Int[Tensor, " B"], width: int
) -> tuple[Int[Tensor, "B T"], Float[Tensor, " B"]]:
    """Return the copies by the most probable fertilities with these sums, and log P(fertilities); by Viterbi search."""
    source, mask = get_source_tokens(memory)
    log_probs = writer.predict_fertilities(memory).float().log_softmax(-1)
    none = torch.full_like(log_probs, IMPOSSIBLE)
    none[..., 0] = 0.0  # positions without a fertility are copied no times
    log_probs = torch.where(get_copyable(mask)[..., None], log_probs, none)
    size = log_probs.shape[-1]
    best = torch.full((len(counts), int(counts.max()) + 1), IMPOSSIBLE, device=counts.device)
    best[:, 0] = 0.0
    choices = []
    for fertility in log_probs.unbind(1):
        before = F.pad(best, (size - 1, 0), value=IMPOSSIBLE).unfold(1, size, 1).flip(-1)  # [t, k]: sum t - k before
        best, choice = (before + fertility[:, None]).max(-1)
        choices.append(choice)
    chosen, left = [], counts[:, None]
    for choice in reversed(choices):
        chosen.append(choice.gather(1, left))
        left = (left - chosen[-1]).clamp(min=0)
    fertilities = torch.cat(chosen[::-1], 1)
    return copy_by_fertility(source, mask, fertilities, counts, width), best.gather(1, counts[:, None])[:, 0]
