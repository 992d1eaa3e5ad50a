"""How likely a given output is to a model."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, START
from saccade.model.writers.fill import Lengths, blank
from saccade.model.writers.tokens import shift_right
from saccade.predict.search.fill import fills
from saccade.predict.search.greedy import DecodableModel

LOGITS = 1024  # positions whose logits are held at once


def token_log_probs(model: DecodableModel, batch: Batch) -> Float[Tensor, "B T"]:
    """log P(target token | source, target tokens before it), 0 at padding.

    Of a writer that fills: log P(target token | source, length), and at END the log-probability of that length.
    """
    target, memory = batch["target"], model.read(batch)
    hidden = model.writer(seen_while_writing(model.writer, target), target.mask, memory)
    values = torch.zeros(target.ids.shape, device=target.ids.device)
    parts = zip(hidden[target.mask].split(LOGITS), target.ids[target.mask].split(LOGITS), strict=True)
    values[target.mask] = torch.cat([chosen(model.writer.head, states, ids) for states, ids in parts])
    if fills(model.writer):
        values[target.ids.eq(END) & target.mask] = length_log_probs(model.writer.lengths(memory), target.mask.sum(1))
    return values


def seen_while_writing(writer: object, target: Tokens) -> Int[Tensor, "B T"]:
    """What a writer is given when this is to be its output: the tokens before each, or a canvas with nothing on it."""
    if fills(writer):
        return blank(target.mask.sum(1), target.ids.shape[1])
    return shift_right(target.ids, START)


def length_log_probs(lengths: Lengths, wanted: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The log-probability of these lengths; of one out of reach, that of the nearest."""
    logits, shortest = lengths
    places = (wanted - shortest).clamp(0, logits.shape[1] - 1)
    return logits.float().log_softmax(-1).gather(1, places[:, None])[:, 0]


def chosen(
    head: Callable[[Tensor], Tensor], states: Float[Tensor, "R D"], ids: Int[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """The log-probability of one token for each state."""
    logits = head(states).float()
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
