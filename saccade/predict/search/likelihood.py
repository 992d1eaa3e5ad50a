"""Log-probabilities of given outputs."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import START
from saccade.layers.memory import Memory
from saccade.model.writers.fertility import FertilityWriter
from saccade.model.writers.fill import FillWriter, LengthPrediction, build_masked_canvas
from saccade.model.writers.tokens import shift_right
from saccade.predict.search.fertility import find_copies_of_length
from saccade.predict.search.greedy import DecodableModel
from saccade.predict.search.mask_predict import is_non_autoregressive, predicts_fertilities

POSITIONS_PER_CHUNK = 1024  # positions whose logits are in memory at a time


def compute_token_log_probs(model: DecodableModel, batch: Batch, memory: Memory | None = None) -> Float[Tensor, "B T"]:
    """Return log P(target token | source, previous target tokens), 0 at padding; `memory` may have been read before.

    For a non-autoregressive writer: log P(target token | source, length), and at END the log-probability of the length;
    with fertilities, these are the most probable ones that have the sum of the length, and at END their
    log-probability.
    """
    target, memory = batch["target"], model.read(batch) if memory is None else memory
    inputs, plan_log_probs = plan_writer_inputs(model.writer, target, memory)
    hidden = model.writer(inputs, target.mask, memory)
    values = torch.zeros(target.ids.shape, device=target.ids.device)
    parts = zip(
        hidden[target.mask].split(POSITIONS_PER_CHUNK), target.ids[target.mask].split(POSITIONS_PER_CHUNK), strict=True
    )
    values[target.mask] = torch.cat([gather_log_probs(model.writer.head, states, ids) for states, ids in parts])
    if plan_log_probs is not None:
        lengths = target.mask.sum(1)  # a given target may contain END before its end
        values[torch.arange(len(lengths), device=lengths.device), lengths - 1] = plan_log_probs
    return values


def score_last_tokens(
    model: DecodableModel, batch: Batch, counts: Sequence[int]
) -> list[tuple[list[float], list[bool]]]:
    """Return, for the last counts[i] tokens of row i, their log-probabilities and whether each is the most probable.

    Logits of other positions are not computed.
    """
    target, scores = batch["target"], list[tuple[list[float], list[bool]]]()
    hidden = model.writer(shift_right(target.ids, START), target.mask, model.read(batch))
    for states, ids, mask, count in zip(hidden, target.ids, target.mask, counts, strict=True):
        end = int(mask.sum())
        log_probs = model.writer.head(states[end - count : end]).float().log_softmax(-1)
        last = ids[end - count : end]
        values = log_probs.gather(1, last[:, None])[:, 0]
        scores.append((values.tolist(), (log_probs.argmax(-1) == last).tolist()))
    return scores


def plan_writer_inputs(
    writer: object, target: Tokens, memory: Memory | None
) -> tuple[Int[Tensor, "B T"], Float[Tensor, " B"] | None]:
    """Return the writer's inputs for a given target: previous tokens, a blank canvas, or copies of the source.

    Also return the log-probability of the length or of the fertilities; None for an autoregressive writer.
    """
    if not is_non_autoregressive(writer):
        return shift_right(target.ids, START), None
    lengths, width = target.mask.sum(1), target.ids.shape[1]
    assert memory is not None, "a non-autoregressive writer has a reader"
    if predicts_fertilities(writer):
        return find_copies_of_length(cast(FertilityWriter, writer), memory, lengths - 1, width)
    prediction = cast(FillWriter, writer).predict_lengths(memory)
    return build_masked_canvas(lengths, width), compute_length_log_probs(prediction, lengths)


def build_writer_inputs(writer: object, target: Tokens, memory: Memory | None) -> Int[Tensor, "B T"]:
    """Return the writer's inputs for a given target: previous tokens, a blank canvas, or copies of the source."""
    return plan_writer_inputs(writer, target, memory)[0]


def compute_length_log_probs(lengths: LengthPrediction, targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the log-probability of these lengths; of one outside the predicted range, that of the nearest."""
    logits, shortest = lengths
    indices = (targets - shortest).clamp(0, logits.shape[1] - 1)
    return logits.float().log_softmax(-1).gather(1, indices[:, None])[:, 0]


def gather_log_probs(
    head: Callable[[Tensor], Tensor], states: Float[Tensor, "R D"], ids: Int[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """Return the log-probability of one token per state."""
    logits = head(states).float()
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
