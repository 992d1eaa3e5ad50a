"""Joint CTC/attention decoding: beams are scored by an interpolation of both (Watanabe et al. 2017)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.layers.losses.ctc import PrefixState, extend_prefixes, init_prefixes, score_next_labels
from saccade.layers.memory import Memory
from saccade.model.writers.ctc import BLANK
from saccade.model.writers.tokens import Step
from saccade.predict.search.greedy import AutoregressiveWriter, DecodableModel

MIN_PAD_PROBABILITY = 1e-6  # least probability that PAD gets, for numerical stability


def add_ctc(model: DecodableModel, weight: float) -> AutoregressiveWriter:
    """Return the writer of a model, combined with its CTC head if `weight` is not 0."""
    if not weight:
        return model.writer
    if model.ctc is None:
        raise SaccadeError(
            f"ctc_weight = {weight:g} needs a single run that was trained with writer.ctc = true, and this one has no "
            "CTC head; set predict.ctc_weight = 0"
        )
    return JointWriter(model.writer, model.ctc, weight=weight)


class JointState(NamedTuple):
    """The states of the attention writer and of the CTC prefix scores."""

    attention: State
    ctc: PrefixState

    def reorder(self, indices: Int[Tensor, " C"]) -> "JointState":
        return JointState(self.attention.reorder(indices), self.ctc.reorder(indices))


class JointWriter:
    """A writer whose logits are (1 - w) log P_attention + w log P_ctc of the next token."""

    def __init__(self, writer: AutoregressiveWriter, head: nn.Module, *, weight: float) -> None:
        self.writer, self.head, self.weight = writer, head, weight

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> JointState:
        state = self.writer.start(memory, capacity=capacity, rows=rows)
        return JointState(state, init_prefixes(self.head(memory), blank=BLANK))

    def step(self, inputs: Int[Tensor, "B n"], state: JointState, *, align: bool = False) -> Step:
        step = self.writer.step(inputs, state.attention, align=align)
        prefixes = state.ctc
        for tokens in inputs.unbind(1):
            advanced = extend_prefixes(prefixes, tokens, blank=BLANK)
            is_start = tokens == START  # leaves the prefix empty
            nonblank, blank = (
                torch.where(is_start[:, None], old, new)
                for old, new in (
                    (prefixes.label_scores, advanced.label_scores),
                    (prefixes.blank_scores, advanced.blank_scores),
                )
            )
            prefixes = PrefixState(prefixes.log_probs, nonblank, blank, torch.where(is_start, prefixes.last, tokens))
        ctc_log_probs = score_next_labels(prefixes, blank=BLANK, end=END)
        logits = (1 - self.weight) * step.logits.float().log_softmax(-1) + self.weight * ctc_log_probs
        return Step(assign_rest_to_pad(logits), JointState(step.state, prefixes), step.weights)


def assign_rest_to_pad(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Set the logit of PAD so that probabilities sum to 1.

    PAD is never output, and searches normalize logits: without this, a continuation on which the two models disagree
    would be scaled up to the probability of any other.
    """
    logits[:, PAD] = -torch.inf
    logits[:, PAD] = torch.log1p(-logits.logsumexp(-1).exp().clamp(max=1 - MIN_PAD_PROBABILITY))
    return logits
