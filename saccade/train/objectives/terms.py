"""The loss terms that objectives return, and token losses that most of them share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from saccade.config.protocols import HeadedWriter, LinearHead, get_capabilities
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.batching.batches import Rows
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.layers.losses.cross_entropy import rdrop_cross_entropy, smoothed_cross_entropy, to_loss_dtype
from saccade.layers.packing import get_batch_layout
from saccade.layers.regions import region
from saccade.model.model import Model
from saccade.train.average import MovingAverage

# Outputs with a lower bias are tokens that an imported model does not have; label smoothing does not count them.
MIN_OUTPUT_BIAS = -5000.0
BIAS_COLUMNS = 8  # appended to the output matrix for a bias: odd numbers of columns are slow on a GPU


class Term(NamedTuple):
    """A term of the loss: weight * sum / count; a term of weight 0 is only reported."""

    sum: Tensor  # over the tokens (or examples) of the batch, float32
    count: Tensor | int  # type: ignore[assignment]  # number of tokens (or examples); hides a method of tuples
    weight: float


Objective = Callable[[Model, Batch, torch.Generator], dict[str, Term]]


class Context(NamedTuple):
    """What some objectives need besides their table: tokenizer, moving average of the weights, training rows."""

    tokenizer: Tokenizer | None = None
    average: MovingAverage | None = None
    rows: Rows | None = None  # training data, for what is estimated from them before training


Builder = Callable[[Any, Context], Objective]  # from the table of a recipe


def generates_outputs(objective: Objective) -> bool:
    """Whether an objective generates outputs during training: its function has the attribute `writes = True`.

    Their lengths are known only on the device, so steps are not CUDA graphs and sequences are not packed.
    """
    return _declares(objective, "writes")


def is_tested_on_picture_graphs(objective: Objective) -> bool:
    """Whether training on pictures as CUDA graphs was tested (attribute `tested_on_picture_graphs` of its function)."""
    return _declares(objective, "tested_on_picture_graphs")


def _declares(objective: Objective, name: str) -> bool:
    function = objective.func if isinstance(objective, functools.partial) else objective
    return bool(getattr(function, name, False))


def compute_token_losses(
    writer: HeadedWriter, hidden: Tensor, ids: Tensor, keep: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sum over kept tokens of the label-smoothed cross-entropy and of the plain one; only the first has gradients."""
    rows, ids, keep = hidden.flatten(0, -2), ids.flatten(), keep.flatten()
    if get_capabilities(writer).linear_head:
        linear = cast(LinearHead, writer)
        if get_capabilities(linear.output).vocabulary_parallel:
            losses = linear.output.compute_losses(rows[None] * linear.output_scale, ids, keep, label_smoothing)
            return cast("tuple[Tensor, Tensor]", losses[:2])
        rows, matrix, ids = fold_head(linear, rows, ids, label_smoothing)
        return smoothed_cross_entropy(rows, matrix, ids, keep, label_smoothing)
    return compute_smoothed_losses(compute_log_probs(writer.head, rows), ids, keep, label_smoothing)


def compute_r_drop_losses(
    writer: HeadedWriter, hidden: Tensor, ids: Tensor, keep: Tensor, label_smoothing: float, divergence_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `compute_token_losses` for a doubled batch, and the divergence (KL(P1||P2) + KL(P2||P1)) / 2 of its halves.

    The first sum has the gradients of itself plus `divergence_weight` times the divergence, which itself has none.
    """
    rows = hidden.reshape(2, -1, hidden.shape[-1])
    ids, keep = (x.flatten()[: rows.shape[1]] for x in (ids, keep))
    if get_capabilities(writer).linear_head:
        linear = cast(LinearHead, writer)
        if get_capabilities(linear.output).vocabulary_parallel:
            losses = linear.output.compute_losses(
                rows * linear.output_scale, ids, keep, label_smoothing, divergence_weight
            )
            return cast("tuple[Tensor, Tensor, Tensor]", losses)
        rows, matrix, ids = fold_head(linear, rows, ids, label_smoothing)
        return rdrop_cross_entropy(rows, matrix, ids, keep, label_smoothing, divergence_weight)
    log_probs = compute_log_probs(writer.head, rows)
    smoothed, nll = compute_smoothed_losses(log_probs, ids.expand(2, -1), keep, label_smoothing)
    first, second = log_probs
    # KL(P1 || P2) + KL(P2 || P1) = sum over the vocabulary of (P1 - P2) (log P1 - log P2)
    divergence = (((first.exp() - second.exp()) * (first - second)).sum(-1) * keep).sum() / 2
    return smoothed + divergence_weight * (divergence - divergence.detach()), nll, divergence.detach()


def fold_bias(writer: LinearHead, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and matrix whose product is the logits: the bias becomes a column of the matrix, for a 1 in rows."""
    if writer.output_scale != 1.0:
        rows = rows * writer.output_scale
    matrix, bias = writer.output.weight, writer.output.bias
    if bias is None:
        return rows, matrix
    ones, zeros = rows.new_ones(*rows.shape[:-1], 1), rows.new_zeros(*rows.shape[:-1], BIAS_COLUMNS - 1)
    return torch.cat((rows, ones, zeros), -1), torch.cat((matrix, F.pad(bias[:, None], (0, BIAS_COLUMNS - 1))), 1)


def fold_head(writer: LinearHead, rows: Tensor, ids: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and matrix as `fold_bias` does, without outputs that label smoothing must not count, and target ids.

    Without label smoothing, an output whose logit is far below all others changes nothing.
    """
    rows, matrix = fold_bias(writer, rows)
    kept = find_kept_outputs(writer.output.bias) if label_smoothing else None
    if kept is None:
        return rows, matrix, ids
    places = ids.new_zeros(len(matrix)).index_put((kept,), torch.arange(len(kept), device=ids.device))
    return rows, matrix[kept], places[ids]


_kept_outputs: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of each bias; finding them waits for the GPU


def find_kept_outputs(bias: Tensor | None) -> Tensor | None:
    """Return the ids of the outputs of which the model has a logit; None if these are all."""
    if bias is None:
        return None
    version = -1 if bias.requires_grad else bias._version  # training changes a bias, but not which outputs exist
    if bias not in _kept_outputs or _kept_outputs[bias][0] != version:
        kept = (bias.detach() > MIN_OUTPUT_BIAS).nonzero()[:, 0]
        _kept_outputs[bias] = version, None if len(kept) == len(bias) else kept
    return cast("Tensor | None", _kept_outputs[bias][1])


@region
def compute_log_probs(head: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return torch.log_softmax(to_loss_dtype(head(rows)), dim=-1)


def compute_smoothed_losses(
    log_probs: Tensor, ids: Tensor, mask: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums of smoothed and plain cross-entropy over a mask; the smoothed target is (1 - s) on the token plus s / V.

    V does not count tokens that an imported model does not have.
    """
    nll = -log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    plain = (nll * mask).sum()
    if not label_smoothing:
        return plain, plain.detach()
    exists = log_probs > MIN_OUTPUT_BIAS
    uniform = (-log_probs.where(exists, 0.0).sum(-1) / exists.sum(-1) * mask).sum()
    return (1 - label_smoothing) * plain + label_smoothing * uniform, plain.detach()


def get_real_tokens(tokens: Tokens) -> Tensor:
    """Return which tokens are real, as a boolean tensor (B, T); not padding, also in packed rows."""
    return get_batch_layout(tokens.mask).keep
