"""What is learned: each objective is one function of model, batch and generator, and all that the loop knows.

It returns named terms. The loss of an optimizer step is the sum over terms of weight * (sum of sums / sum of counts),
where the sums run over all micro-batches and all processes. A term with another count than the first one is a mean in
its micro-batch, weighted by that micro-batch's share of the first term's count. A term of weight 0 is only reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from saccade.config.kinds import Custom
from saccade.config.schema import (
    Fill,
    Label,
    Masked,
    NextToken,
    Patches,
    Permuted,
    RDrop,
    Recipe,
    Regress,
    Reinforce,
    Reward,
    Scheduled,
    Tag,
    TemporalDifference,
)
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START, Tokenizer
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import balance_loss, busiest, sum_use
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.train.average import MovingAverage
from saccade.train.batches.pack import double
from saccade.train.objectives.fill import fill
from saccade.train.objectives.hidden_patches import patches
from saccade.train.objectives.labels import label, regress, tag
from saccade.train.objectives.masked import build_masked
from saccade.train.objectives.permuted import permuted
from saccade.train.objectives.reinforce import reinforce
from saccade.train.objectives.reward import reward
from saccade.train.objectives.scheduled import scheduled
from saccade.train.objectives.temporal_difference import build_temporal_difference
from saccade.train.objectives.terms import (
    Builder,
    Context,
    Objective,
    Term,
    real_tokens,
    token_sums,
    twofold_sums,
)


def next_token(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    smoothing: float = 0.1,
    coverage: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of every target token given those before it, with label smoothing (Szegedy et al. 2016).

    With `coverage`, looks at each state of memory are drawn to 1 in all (Xu et al. 2015, equation 14).
    """
    target, memory = batch["target"], model.read(batch)
    hidden, aux = model.write(shift_right(target.ids, START, target.mask), target.mask, memory)
    real = real_tokens(target)
    smoothed, nll = token_sums(model.writer, hidden, target.ids, real, smoothing)
    count = real.sum()
    terms = {"next-token": Term(smoothed, count, weight)}
    if coverage:
        written = real.any(1)
        missed = (1 - (aux["attention"].weights * real[..., None]).sum(1)) * (memory.mask & written[:, None])
        terms["coverage"] = Term((missed * missed).sum(), written.sum(), weight * coverage)
    return {**terms, "nll": Term(nll, count, 0.0)}


next_token.proven_on_pictures = True  # type: ignore[attr-defined]  # see `is_proven_on_pictures` in terms.py


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
    hidden, _ = model.write(shift_right(inputs.ids, START, inputs.mask), inputs.mask, model.read(twice))
    smoothed, nll, apart = twofold_sums(model.writer, hidden, inputs.ids, real_tokens(inputs), smoothing, alpha)
    count = real.sum()
    return {
        "next-token": Term(smoothed / 2, count, weight),
        "consistency": Term(apart, count, weight * alpha / 2),  # its gradients come with those of the first term
        "nll": Term(nll / 2, count, 0.0),
    }


def objectives_from(
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None = None,
    average: MovingAverage | None = None,
    kinds: Mapping[str, Any] | None = None,
) -> list[Objective]:
    """The recipe's list of objectives; a user's own kind is a function with keyword-only settings.

    One that hides tokens has to know the tokenizer, one that learns from a second network the moving average.
    """
    context = Context(tokenizer, average)
    made: list[Objective] = []
    for table in recipe.objectives:
        if table.kind in SHIPPED:
            made.append(SHIPPED[table.kind](table, context))
        else:
            own = cast(Custom, table)
            made.append(functools.partial((kinds or {})[own.kind], **own.settings()))
    return made


def all_terms(
    objectives: Sequence[Objective], model: Model, batch: Batch, generator: torch.Generator
) -> dict[str, Term]:
    """The loss terms of all objectives; a name used twice gets a number.

    A model with experts adds two: `balance`, the loss that gives all of them work, and `load`, the positions that the
    busiest one got, in units of their mean.
    """
    terms: dict[str, Term] = {}
    with model.collect_aux() as reports:
        for number, objective in enumerate(objectives, start=1):
            for name, term in objective(model, batch, generator).items():
                terms[f"{name}-{number}" if name in terms else name] = term
    if uses := sum_use(merge_aux(*reports).get("routing", ())):
        terms["balance"] = Term(balance_loss(uses), 1, 1.0)  # every group of experts knows its weight
        terms["load"] = Term(busiest(uses), 1, 0.0)
    return terms


def build(function: Callable[..., dict[str, Term]]) -> Builder:
    """An objective whose settings are those of its table."""
    return lambda table, context: functools.partial(function, **table.model_dump(exclude={"kind"}))


SHIPPED: dict[str, Builder] = {
    NextToken.model_fields["kind"].default: build(next_token),
    Scheduled.model_fields["kind"].default: build(scheduled),
    Reinforce.model_fields["kind"].default: build(reinforce),
    RDrop.model_fields["kind"].default: build(r_drop),
    Fill.model_fields["kind"].default: build(fill),
    Reward.model_fields["kind"].default: build(reward),
    Label.model_fields["kind"].default: build(label),
    Regress.model_fields["kind"].default: build(regress),
    Tag.model_fields["kind"].default: build(tag),
    Permuted.model_fields["kind"].default: build(permuted),
    Patches.model_fields["kind"].default: build(patches),
    Masked.model_fields["kind"].default: build_masked,
    TemporalDifference.model_fields["kind"].default: build_temporal_difference,
}
