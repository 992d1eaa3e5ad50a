"""Training objectives: functions of model, batch and generator that return named loss terms.

The loss of an optimizer step is the sum over terms of weight * (sum of sums / sum of counts), where the sums run over
all micro-batches and all processes. A term with another count than the first one is a mean in its micro-batch, weighted
by that micro-batch's share of the first term's count. A term of weight 0 is only reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from saccade.config.kinds import Custom
from saccade.config.schema import (
    Fertility,
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
)
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START, Tokenizer
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import balance_loss, max_relative_load, sum_usage
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.train.average import MovingAverage
from saccade.train.batches.pack import double_batch
from saccade.train.objectives.fertility import build_fertility_objective
from saccade.train.objectives.fill import fill_loss
from saccade.train.objectives.labels import label_loss, regression_loss, tag_loss
from saccade.train.objectives.masked import build_masked_objective
from saccade.train.objectives.masked_patches import masked_patch_loss
from saccade.train.objectives.permuted import permutation_loss
from saccade.train.objectives.reinforce import reinforce_loss
from saccade.train.objectives.reward import reward_loss
from saccade.train.objectives.scheduled import scheduled_sampling_loss
from saccade.train.objectives.terms import (
    Builder,
    Context,
    Objective,
    Term,
    compute_r_drop_losses,
    compute_token_losses,
    get_real_tokens,
)


def next_token_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    label_smoothing: float = 0.1,
    coverage: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of each target token given those before it, with label smoothing (Szegedy et al. 2016).

    `coverage` is the weight of doubly stochastic attention, which pulls the sum of the attention weights that each
    memory state receives towards 1 (Xu et al. 2015, equation 14).
    """
    target, memory = batch["target"], model.read(batch)
    hidden, aux = model.write(shift_right(target.ids, START, target.mask), target.mask, memory)
    real = get_real_tokens(target)
    smoothed, nll = compute_token_losses(model.writer, hidden, target.ids, real, label_smoothing)
    count = real.sum()
    terms = {"next-token": Term(smoothed, count, weight)}
    if coverage:
        has_targets = real.any(1)
        received = (aux["attention"].weights * real[..., None]).sum(1)
        errors = (1 - received) * (memory.mask & has_targets[:, None])
        terms["coverage"] = Term((errors * errors).sum(), has_targets.sum(), weight * coverage)
    return {**terms, "nll": Term(nll, count, 0.0)}


next_token_loss.tested_on_picture_graphs = True  # type: ignore[attr-defined]  # see terms.py


def r_drop_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    label_smoothing: float = 0.1,
    alpha: float = 5.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """R-Drop (Liang et al. 2021, equation 4): two passes with different dropout that must agree, per target token

    (CE(P1) + CE(P2)) / 2 + alpha / 2 * (KL(P1 || P2) + KL(P2 || P1)) / 2.

    This is half of the paper's loss, comparable with `next_token_loss`. Both passes run as one doubled batch.
    """
    real = get_real_tokens(batch["target"])
    doubled = double_batch(batch)
    inputs = doubled["target"]
    hidden, _ = model.write(shift_right(inputs.ids, START, inputs.mask), inputs.mask, model.read(doubled))
    keep = get_real_tokens(inputs)
    smoothed, nll, divergence = compute_r_drop_losses(model.writer, hidden, inputs.ids, keep, label_smoothing, alpha)
    count = real.sum()
    return {
        "next-token": Term(smoothed / 2, count, weight),
        "consistency": Term(divergence, count, weight * alpha / 2),  # the first term carries its gradients
        "nll": Term(nll / 2, count, 0.0),
    }


def build_objectives(
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None = None,
    average: MovingAverage | None = None,
    rows: Any = None,
) -> list[Objective]:
    """Build the objectives of a recipe; a custom kind is a function with keyword-only settings.

    Masked language modelling needs the tokenizer; objectives of plugins may need the moving average of the weights;
    fertilities come from an aligner that is estimated from the training `rows`.
    """
    context = Context(tokenizer, average, rows)
    objectives: list[Objective] = []
    for table in recipe.objectives:
        if build := OBJECTIVES.get(table.kind):
            objectives.append(build(table, context))
        elif table.is_custom:
            custom = cast(Custom, table)
            objectives.append(functools.partial(custom.maker, **custom.settings()))
        else:
            objectives.append(table.build_objective(context))
    return objectives


def compute_terms(
    objectives: Sequence[Objective], model: Model, batch: Batch, generator: torch.Generator
) -> dict[str, Term]:
    """Compute the loss terms of all objectives; a name that occurs twice gets a number.

    A model with experts adds two: `balance`, the load-balancing loss, and `load`, the number of positions of the
    busiest expert relative to the mean (only reported).
    """
    terms: dict[str, Term] = {}
    with model.collect_aux() as reports:
        for number, objective in enumerate(objectives, start=1):
            for name, term in objective(model, batch, generator).items():
                terms[f"{name}-{number}" if name in terms else name] = term
    if uses := sum_usage(merge_aux(*reports).get("routing", ())):
        terms["balance"] = Term(balance_loss(uses), 1, 1.0)  # each layer of experts has its own weight
        terms["load"] = Term(max_relative_load(uses), 1, 0.0)
    return terms


def bind_settings(function: Callable[..., dict[str, Term]]) -> Builder:
    """Return a builder that binds the settings of a table to an objective function."""
    return lambda table, context: functools.partial(function, **table.model_dump(exclude={"kind"}))


OBJECTIVES: dict[str, Builder] = {
    NextToken.model_fields["kind"].default: bind_settings(next_token_loss),
    Scheduled.model_fields["kind"].default: bind_settings(scheduled_sampling_loss),
    Reinforce.model_fields["kind"].default: lambda table, context: functools.partial(reinforce_loss, settings=table),
    RDrop.model_fields["kind"].default: bind_settings(r_drop_loss),
    Fill.model_fields["kind"].default: bind_settings(fill_loss),
    Fertility.model_fields["kind"].default: build_fertility_objective,
    Reward.model_fields["kind"].default: bind_settings(reward_loss),
    Label.model_fields["kind"].default: bind_settings(label_loss),
    Regress.model_fields["kind"].default: bind_settings(regression_loss),
    Tag.model_fields["kind"].default: bind_settings(tag_loss),
    Permuted.model_fields["kind"].default: bind_settings(permutation_loss),
    Patches.model_fields["kind"].default: bind_settings(masked_patch_loss),
    Masked.model_fields["kind"].default: build_masked_objective,
}
