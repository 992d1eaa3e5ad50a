"""What an objective returns, and the sums over tokens that most of them are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.config.protocols import HeadedWriter, LinearHead, get_capabilities
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.layers.losses.cross_entropy import smoothed_cross_entropy, twofold_cross_entropy
from saccade.layers.packing import layout_of
from saccade.layers.regions import region
from saccade.model.model import Model
from saccade.train.average import MovingAverage

COLUMNS = 8  # that a bias takes beside the output matrix: products of an odd number of columns are slow on a GPU


class Term(NamedTuple):
    sum: Tensor  # over the tokens (or examples) of the batch, float32
    count: Tensor | int  # type: ignore[assignment]  # how many there are; hides a method of tuples
    weight: float


Objective = Callable[[Model, Batch, torch.Generator], dict[str, Term]]


class Context(NamedTuple):
    """What some objectives need beside their table: to hide tokens, or to learn from a second network."""

    tokenizer: Tokenizer | None = None
    average: MovingAverage | None = None


Builder = Callable[[Any, Context], Objective]  # from the table of a recipe


def lets_write(objective: Objective) -> bool:
    """Whether the model writes while it learns (`writes` of its function): how long, only the device knows then.

    Such a step is no CUDA graph, and each text has a row of its own.
    """
    return _declares(objective, "writes")


def is_proven_on_pictures(objective: Objective) -> bool:
    """Whether CUDA graphs of it have been seen to learn from pictures (`proven_on_pictures` of its function)."""
    return _declares(objective, "proven_on_pictures")


def _declares(objective: Objective, name: str) -> bool:
    function = objective.func if isinstance(objective, functools.partial) else objective
    return bool(getattr(function, name, False))


def token_sums(
    writer: HeadedWriter, hidden: Tensor, ids: Tensor, keep: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums of the smoothed cross-entropy and of the plain one; only the first has gradients."""
    rows, ids, keep = hidden.flatten(0, -2), ids.flatten(), keep.flatten()
    if get_capabilities(writer).linear_head:
        rows, matrix = product_of_head(cast(LinearHead, writer), rows)
        return smoothed_cross_entropy(rows, matrix, ids, keep, smoothing)
    return smoothed_from(log_probabilities(writer.head, rows), ids, keep, smoothing)


def twofold_sums(
    writer: HeadedWriter, hidden: Tensor, ids: Tensor, keep: Tensor, smoothing: float, apart_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a doubled batch, and half of the sum of KL(P1 || P2) + KL(P2 || P1) between its halves.

    The gradients of the first sum are those of itself plus `apart_weight` times the last one, which has none.
    """
    rows = hidden.reshape(2, -1, hidden.shape[-1])
    ids, keep = (x.flatten()[: rows.shape[1]] for x in (ids, keep))
    if get_capabilities(writer).linear_head:
        rows, matrix = product_of_head(cast(LinearHead, writer), rows)
        return twofold_cross_entropy(rows, matrix, ids, keep, smoothing, apart_weight)
    logs = log_probabilities(writer.head, rows)
    smoothed, nll = smoothed_from(logs, ids.expand(2, -1), keep, smoothing)
    first, second = logs
    # KL(P1 || P2) + KL(P2 || P1) = sum over the vocabulary of (P1 - P2) (log P1 - log P2)
    apart = (((first.exp() - second.exp()) * (first - second)).sum(-1) * keep).sum() / 2
    return smoothed + apart_weight * (apart - apart.detach()), nll, apart.detach()


def product_of_head(writer: LinearHead, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and the matrix whose product is the logits; a bias is one more column, where rows have a 1, before zeros."""
    if writer.output_scale != 1.0:
        rows = rows * writer.output_scale
    matrix, bias = writer.output.weight, writer.output.bias
    if bias is None:
        return rows, matrix
    ones, zeros = rows.new_ones(*rows.shape[:-1], 1), rows.new_zeros(*rows.shape[:-1], COLUMNS - 1)
    return torch.cat((rows, ones, zeros), -1), torch.cat((matrix, F.pad(bias[:, None], (0, COLUMNS - 1))), 1)


@region
def log_probabilities(head: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return torch.log_softmax(head(rows).float(), dim=-1)


def smoothed_from(logs: Tensor, ids: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The target distribution is (1 - smoothing) on the token plus smoothing / V on every entry of the vocabulary."""
    nll = -logs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    plain = (nll * mask).sum()
    if not smoothing:
        return plain, plain.detach()
    uniform = (-logs.mean(-1) * mask).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain.detach()


def real_tokens(tokens: Tokens) -> Tensor:
    """(B, T) bool, which tokens are real; in a packed row, those of real texts."""
    return layout_of(tokens.mask).keep
