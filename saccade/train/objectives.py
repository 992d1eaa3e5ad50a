"""What is learned: each objective is one function of model, batch and generator, and all that the loop knows.

It returns named terms. The loss of an optimizer step is the sum over terms of weight * (sum of sums / sum of counts),
where the sums run over all micro-batches and all processes. A term with another count than the first one is a mean in
its micro-batch, weighted by that micro-batch's share of the first term's count. A term of weight 0 is only reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.kinds import Custom
from saccade.config.schema import NextToken, RDrop, Recipe
from saccade.data.batch import Batch, Tokens
from saccade.data.tokenizers import START
from saccade.layers.cross_entropy import smoothed_cross_entropy, twofold_cross_entropy
from saccade.layers.packing import Packing
from saccade.layers.regions import region
from saccade.model.model import Model
from saccade.model.writers import TokenWriter, shift_right


class Term(NamedTuple):
    sum: Tensor  # over the tokens (or examples) of the batch, float32
    count: Tensor | int  # type: ignore[assignment]  # how many there are; hides a method of tuples
    weight: float


Objective = Callable[[Model, Batch, torch.Generator], dict[str, Term]]


def next_token(
    model: Model, batch: Batch, generator: torch.Generator, *, smoothing: float = 0.1, weight: float = 1.0
) -> dict[str, Term]:
    """Cross-entropy of every target token given those before it, with label smoothing (Szegedy et al. 2016)."""
    target = batch["target"]
    hidden = model.writer(shift_right(target.ids, START, target.mask), target.mask, model.read(batch))
    real = real_tokens(target)
    smoothed, nll = token_sums(model.writer, hidden, target.ids, real, smoothing)
    count = real.sum()
    return {"next-token": Term(smoothed, count, weight), "nll": Term(nll, count, 0.0)}


def r_drop(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    smoothing: float = 0.1,
    alpha: float = 5.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Two passes with different dropout that must agree (R-Drop, Liang et al. 2021, equation 4), per target token

    (CE(P1) + CE(P2)) / 2 + alpha / 2 * (KL(P1 || P2) + KL(P2 || P1)) / 2,

    which is half of the paper's loss, so that it compares with next_token. Both passes go as one doubled batch.
    """
    real = real_tokens(batch["target"])
    twice = double(batch)
    inputs = twice["target"]
    hidden = model.writer(shift_right(inputs.ids, START, inputs.mask), inputs.mask, model.read(twice))
    smoothed, nll, apart = twofold_sums(model.writer, hidden, inputs.ids, real_tokens(inputs), smoothing, alpha)
    count = real.sum()
    return {
        "next-token": Term(smoothed / 2, count, weight),
        "consistency": Term(apart, count, weight * alpha / 2),  # its gradients come with those of the first term
        "nll": Term(nll / 2, count, 0.0),
    }


def objectives_from(recipe: Recipe, *, kinds: Mapping[str, Any] | None = None) -> list[Objective]:
    """The recipe's list of objectives; a user's own kind is a function with keyword-only settings."""
    made: list[Objective] = []
    for table in recipe.objectives:
        settings = table.settings() if isinstance(table, Custom) else table.model_dump(exclude={"kind"})
        made.append(functools.partial(SHIPPED.get(table.kind) or (kinds or {})[table.kind], **settings))
    return made


def all_terms(
    objectives: Sequence[Objective], model: Model, batch: Batch, generator: torch.Generator
) -> dict[str, Term]:
    """The terms of all objectives; a name used twice gets a number."""
    terms: dict[str, Term] = {}
    for number, objective in enumerate(objectives, start=1):
        for name, term in objective(model, batch, generator).items():
            terms[f"{name}-{number}" if name in terms else name] = term
    return terms


def token_sums(writer: Any, hidden: Tensor, ids: Tensor, keep: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sums of the smoothed cross-entropy and of the plain one; only the first has gradients."""
    rows, ids, keep = hidden.flatten(0, -2), ids.flatten(), keep.flatten()
    if has_plain_head(writer):
        return smoothed_cross_entropy(rows, writer.output.weight, ids, keep, smoothing)
    return smoothed_from(log_probabilities(writer.head, rows), ids, keep, smoothing)


def twofold_sums(
    writer: Any, hidden: Tensor, ids: Tensor, keep: Tensor, smoothing: float, apart_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a doubled batch, and half of the sum of KL(P1 || P2) + KL(P2 || P1) between its halves.

    The gradients of the first sum are those of itself plus `apart_weight` times the last one, which has none.
    """
    rows = hidden.reshape(2, -1, hidden.shape[-1])
    ids, keep = (x.flatten()[: rows.shape[1]] for x in (ids, keep))
    if has_plain_head(writer):
        return twofold_cross_entropy(rows, writer.output.weight, ids, keep, smoothing, apart_weight)
    logs = log_probabilities(writer.head, rows)
    smoothed, nll = smoothed_from(logs, ids.expand(2, -1), keep, smoothing)
    first, second = logs
    # KL(P1 || P2) + KL(P2 || P1) = sum over the vocabulary of (P1 - P2) (log P1 - log P2)
    apart = (((first.exp() - second.exp()) * (first - second)).sum(-1) * keep).sum() / 2
    return smoothed + apart_weight * (apart - apart.detach()), nll, apart.detach()


def has_plain_head(writer: Any) -> bool:
    """Whether logits are the product with one matrix, which the loss can take piece by piece; else it asks `head`."""
    return isinstance(writer, TokenWriter) and type(writer).head is TokenWriter.head


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
    return tokens.mask.keep if isinstance(tokens.mask, Packing) else tokens.mask


def double(batch: Batch) -> Batch:
    """Every text twice, first all texts, then all of them again."""
    fields = {}
    for name, x in batch.fields.items():
        if isinstance(x.mask, Packing):
            fields[name] = Tokens(torch.cat([x.ids, x.ids], 1), x.mask.doubled())
        else:
            fields[name] = Tokens(torch.cat([x.ids, x.ids]), torch.cat([x.mask, x.mask]))
    return Batch(fields, {name: 2 * count for name, count in batch.counts.items()})


SHIPPED: dict[str, Any] = {
    NextToken.model_fields["kind"].default: next_token,
    RDrop.model_fields["kind"].default: r_drop,
}
