"""Attention and CTC that write together: what beams compare is a mean of both (Watanabe et al. 2017)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.layers.losses.ctc import Beginnings, advance, begin, next_letters
from saccade.layers.memory import Memory
from saccade.model.writers.ctc import BLANK
from saccade.model.writers.tokens import Step
from saccade.predict.search.greedy import DecodableModel, Decoder

EPSILON = 1e-6  # of probability that is always left


def with_ctc(model: DecodableModel, weight: float) -> Decoder:
    """The writer of a model, together with its CTC head where that has a weight."""
    if not weight:
        return model.writer
    if model.ctc is None:
        raise SaccadeError(
            f"ctc = {weight:g} needs one run that was trained with writer.ctc = true, and this has no such head; "
            "set predict.ctc = 0"
        )
    return JointWriter(model.writer, model.ctc, weight=weight)


class Both(NamedTuple):
    """Where attention stands, and where CTC does."""

    attention: State
    ctc: Beginnings

    def reorder(self, indices: Int[Tensor, " C"]) -> "Both":
        return Both(self.attention.reorder(indices), self.ctc.reorder(indices))


class JointWriter:
    """A writer like any other, whose logits are (1 - w) log P_attention + w log P_ctc of the next token."""

    def __init__(self, writer: Decoder, head: nn.Module, *, weight: float) -> None:
        self.writer, self.head, self.weight = writer, head, weight

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> Both:
        state = self.writer.start(memory, capacity=capacity, rows=rows)
        return Both(state, begin(self.head(memory), blank=BLANK))

    def step(self, inputs: Int[Tensor, "B n"], state: Both, *, align: bool = False) -> Step:
        step = self.writer.step(inputs, state.attention, align=align)
        heard = state.ctc
        for tokens in inputs.unbind(1):
            moved = advance(heard, tokens, blank=BLANK)
            first = tokens == START  # before any letter
            spoken, quiet = (
                torch.where(first[:, None], old, new)
                for old, new in ((heard.spoken, moved.spoken), (heard.blank, moved.blank))
            )
            heard = Beginnings(heard.log_probs, spoken, quiet, torch.where(first, heard.last, tokens))
        said = next_letters(heard, blank=BLANK, end=END)
        logits = (1 - self.weight) * step.logits.float().log_softmax(-1) + self.weight * said
        return Step(with_rest(logits), Both(step.state, heard), step.weights)


def with_rest(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """What probabilities lack of 1 goes to PAD, which nobody writes: searches, which norm them, leave the others alone.

    A text on which two that write together do not agree is then worth less, and not as much as any other.
    """
    logits[:, PAD] = -torch.inf
    logits[:, PAD] = torch.log1p(-logits.logsumexp(-1).exp().clamp(max=1 - EPSILON))
    return logits
