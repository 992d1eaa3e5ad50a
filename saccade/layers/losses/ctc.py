"""Connectionist temporal classification: a letter or a blank for each state (Graves et al. 2006).

How likely a beginning of a text is, which beams need, follows Watanabe et al. 2017, algorithm 2.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def silent_padding(log_probs: Float[Tensor, "B S V"], mask: Bool[Tensor, "B S"], blank: int) -> Float[Tensor, "B S V"]:
    """The same, where padding is surely blank: what is said before it stays as likely as it was."""
    sure = torch.full_like(log_probs[0, 0], -torch.inf)
    sure[blank] = 0.0
    return torch.where(mask[..., None], log_probs, sure)


class Beginnings(NamedTuple):
    """For each row a beginning of a text, and how likely it is that states 1 ... t say just that.

    `spoken` where its last letter is said at t, `blank` where a blank is; position 0 stands before the first state.
    """

    log_probs: Float[Tensor, "B S V"]
    spoken: Float[Tensor, "B S1"]
    blank: Float[Tensor, "B S1"]
    last: Int[Tensor, " B"]  # letter, -1 before the first one

    def reorder(self, indices: Int[Tensor, " C"]) -> "Beginnings":
        return Beginnings(*(part.index_select(0, indices) for part in self))


def begin(log_probs: Float[Tensor, "B S V"], *, blank: int) -> Beginnings:
    """Before the first letter: nothing but blanks was said."""
    silence = F.pad(log_probs[..., blank].cumsum(1), (1, 0))
    last = torch.full_like(silence[:, 0], -1, dtype=torch.long)
    return Beginnings(log_probs, torch.full_like(silence, -torch.inf), silence, last)


def next_letters(state: Beginnings, *, blank: int, end: int) -> Float[Tensor, "B V"]:
    """log P(the text goes on with this letter, or ends | it begins so), for every letter; the blank is none."""
    log_probs, spoken, quiet, last = state
    before = torch.logaddexp(spoken, quiet)
    ways = torch.logsumexp(before[:, :-1, None] + log_probs, 1)
    # A letter that comes twice needs a blank in between.
    again = last.clamp(min=0)[:, None]
    twice = torch.logsumexp(
        quiet[:, :-1] + log_probs.gather(2, again[:, None].expand(-1, log_probs.shape[1], 1))[..., 0], 1
    )
    ways = torch.where((last >= 0)[:, None], ways.scatter(1, again, twice[:, None]), ways)
    ways[:, end] = before[:, -1]
    ways[:, blank] = -torch.inf
    return ways - ways.logsumexp(1, keepdim=True)


def advance(state: Beginnings, letters: Int[Tensor, " B"], *, blank: int) -> Beginnings:
    """The beginnings with one more letter."""
    log_probs, spoken, quiet, last = state
    said = log_probs.gather(2, letters[:, None, None].expand(-1, log_probs.shape[1], 1))[..., 0]
    silent = log_probs[..., blank]
    same = (letters == last)[:, None]
    enters = torch.where(same, quiet, torch.logaddexp(spoken, quiet))[:, :-1] + said
    now_spoken = torch.full_like(quiet[:, 0], -torch.inf)
    now_quiet = now_spoken
    rows = [(now_spoken, now_quiet)]
    for t in range(log_probs.shape[1]):
        now_quiet = torch.logaddexp(now_quiet, now_spoken) + silent[:, t]
        now_spoken = torch.logaddexp(now_spoken + said[:, t], enters[:, t])
        rows.append((now_spoken, now_quiet))
    now, then = (torch.stack(part, 1) for part in zip(*rows, strict=True))
    return Beginnings(log_probs, spoken=now, blank=then, last=letters)
