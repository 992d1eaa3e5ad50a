"""Connectionist temporal classification (CTC), a label or a blank for each frame (Graves et al. 2006).

Prefix probabilities for joint decoding with attention follow Watanabe et al. 2017, algorithm 2.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def force_blank_padding(
    log_probs: Float[Tensor, "B S V"], mask: Bool[Tensor, "B S"], blank: int
) -> Float[Tensor, "B S V"]:
    """Give padding frames probability 1 for the blank, which leaves the probabilities of label sequences unchanged."""
    blank_only = torch.full_like(log_probs[0, 0], -torch.inf)
    blank_only[blank] = 0.0
    return torch.where(mask[..., None], log_probs, blank_only)


class PrefixState(NamedTuple):
    """A prefix of labels per row, with the log-probabilities that frames 1 ... t emit exactly this prefix.

    `label_scores` where frame t emits its last label, `blank_scores` where frame t is blank; index 0 is the state
    before the first frame.
    """

    log_probs: Float[Tensor, "B S V"]
    label_scores: Float[Tensor, "B S1"]
    blank_scores: Float[Tensor, "B S1"]
    last: Int[Tensor, " B"]  # last label, -1 for the empty prefix

    def reorder(self, indices: Int[Tensor, " C"]) -> "PrefixState":
        return PrefixState(*(part.index_select(0, indices) for part in self))


def init_prefixes(log_probs: Float[Tensor, "B S V"], *, blank: int) -> PrefixState:
    """The empty prefix: all frames are blank."""
    blanks = F.pad(log_probs[..., blank].cumsum(1), (1, 0))
    last = torch.full_like(blanks[:, 0], -1, dtype=torch.long)
    return PrefixState(log_probs, torch.full_like(blanks, -torch.inf), blanks, last)


def score_next_labels(state: PrefixState, *, blank: int, end: int) -> Float[Tensor, "B V"]:
    """log P(next label | prefix) for every label and the end of the sequence; -inf for the blank."""
    log_probs, label_scores, blank_scores, last = state
    prefix = torch.logaddexp(label_scores, blank_scores)
    scores = torch.logsumexp(prefix[:, :-1, None] + log_probs, 1)
    # A repeated label needs a blank in between.
    repeated = last.clamp(min=0)[:, None]
    after_blank = torch.logsumexp(
        blank_scores[:, :-1] + log_probs.gather(2, repeated[:, None].expand(-1, log_probs.shape[1], 1))[..., 0], 1
    )
    scores = torch.where((last >= 0)[:, None], scores.scatter(1, repeated, after_blank[:, None]), scores)
    scores[:, end] = prefix[:, -1]
    scores[:, blank] = -torch.inf
    return scores - scores.logsumexp(1, keepdim=True)


def extend_prefixes(state: PrefixState, labels: Int[Tensor, " B"], *, blank: int) -> PrefixState:
    """The prefixes, each extended by one label."""
    log_probs, label_scores, blank_scores, last = state
    emitted = log_probs.gather(2, labels[:, None, None].expand(-1, log_probs.shape[1], 1))[..., 0]
    blank_probs = log_probs[..., blank]
    repeats = (labels == last)[:, None]
    first_emission = torch.where(repeats, blank_scores, torch.logaddexp(label_scores, blank_scores))[:, :-1] + emitted
    label_score = torch.full_like(blank_scores[:, 0], -torch.inf)
    blank_score = label_score
    rows = [(label_score, blank_score)]
    for t in range(log_probs.shape[1]):
        blank_score = torch.logaddexp(blank_score, label_score) + blank_probs[:, t]
        label_score = torch.logaddexp(label_score + emitted[:, t], first_emission[:, t])
        rows.append((label_score, blank_score))
    new_labels, new_blanks = (torch.stack(part, 1) for part in zip(*rows, strict=True))
    return PrefixState(log_probs, label_scores=new_labels, blank_scores=new_blanks, last=labels)
