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
from saccade.layers.regions import region
from saccade.model.model import Model
from saccade.model.writers import shift_right


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
    hidden = model.writer(shift_right(target.ids, START), target.mask, model.read(batch))
    smoothed, nll = token_sums(model.writer.head, hidden, target.ids, target.mask, smoothing)
    count = target.mask.sum()
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
    target = batch["target"]
    twice = double(batch)
    inputs = twice["target"]
    hidden = model.writer(shift_right(inputs.ids, START), inputs.mask, model.read(twice))
    smoothed, nll, apart = twofold_sums(model.writer.head, hidden, inputs.ids, inputs.mask, smoothing)
    count = target.mask.sum()
    return {
        "next-token": Term(smoothed / 2, count, weight),
        "consistency": Term(apart, count, weight * alpha / 2),
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


@region
def token_sums(
    head: Callable[[Tensor], Tensor], hidden: Tensor, ids: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums of the smoothed cross-entropy and of the plain one."""
    return smoothed_from(torch.log_softmax(head(hidden).float(), dim=-1), ids, mask, smoothing)


@region
def twofold_sums(
    head: Callable[[Tensor], Tensor], hidden: Tensor, ids: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a doubled batch, and half of the sum of KL(P1 || P2) + KL(P2 || P1) between its halves."""
    logs = torch.log_softmax(head(hidden).float(), dim=-1)
    smoothed, nll = smoothed_from(logs, ids, mask, smoothing)
    first, second = logs.chunk(2)
    # KL(P1 || P2) + KL(P2 || P1) = sum over the vocabulary of (P1 - P2) (log P1 - log P2)
    both_ways = ((first.exp() - second.exp()) * (first - second)).sum(-1)
    return smoothed, nll, (both_ways * mask[: len(first)]).sum() / 2


def smoothed_from(logs: Tensor, ids: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The target distribution is (1 - smoothing) on the token plus smoothing / V on every entry of the vocabulary."""
    nll = -logs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    plain = (nll * mask).sum()
    if not smoothing:
        return plain, plain.detach()
    uniform = (-logs.mean(-1) * mask).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain.detach()


def double(batch: Batch) -> Batch:
    """Every row twice, first all rows, then all rows again."""
    fields = {name: Tokens(torch.cat([x.ids, x.ids]), torch.cat([x.mask, x.mask])) for name, x in batch.fields.items()}
    return Batch(fields, {name: 2 * count for name, count in batch.counts.items()})


SHIPPED: dict[str, Any] = {
    NextToken.model_fields["kind"].default: next_token,
    RDrop.model_fields["kind"].default: r_drop,
}
