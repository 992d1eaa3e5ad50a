"""What is learned: each objective is one function of model, batch and generator, and all that the loop knows.

It returns named terms. The loss of an optimizer step is the sum over terms of weight * (sum of sums / sum of counts),
where the sums run over all micro-batches and all processes. A term with another count than the first one is a mean in
its micro-batch, weighted by that micro-batch's share of the first term's count. A term of weight 0 is only reported.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import START, Tokenizer
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import balance_loss, busiest, sum_use
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.model import Model
from saccade.model.writers.fill import MASK
from saccade.model.writers.tokens import shift_right
from saccade.train.average import MovingAverage
from saccade.train.objectives import masking
from saccade.train.objectives.hidden_patches import patches
from saccade.train.objectives.labels import label, regress, tag
from saccade.train.objectives.masked import masked, masked_from
from saccade.train.objectives.permuted import permuted
from saccade.train.objectives.reinforce import reinforce
from saccade.train.objectives.reward import reward
from saccade.train.objectives.scheduled import scheduled
from saccade.train.objectives.temporal_difference import temporal_difference
from saccade.train.objectives.terms import Objective, Term, real_tokens, token_sums, twofold_sums

OF_LENGTH = 0.1  # weight of the length beside the tokens (Ghazvininejad et al. 2019, in their code)


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


def fill(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    smoothing: float = 0.1,
    glancing: float = 0.5,
    shown: float = 0.5,
    alpha: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of hidden target tokens given all others, and of the length (Ghazvininejad et al. 2019).

    With `alpha` two passes with the same tokens hidden and different dropout must agree, as in r_drop.
    """
    target, writer = batch["target"], model.writer
    memory = model.read(double(batch) if alpha else batch)
    first = first_of_two(memory, batch) if alpha else memory
    hidden = masking.hidden_tokens(writer, target, first, generator, glancing=glancing, shown=shown)
    canvas = Batch({"canvas": Tokens(target.ids.masked_fill(hidden, MASK), target.mask)}, {"canvas": 0})
    given = (double(canvas) if alpha else canvas)["canvas"]
    (states, _), count = model.write(given.ids, given.mask, memory), hidden.sum()
    long, texts = length_sums(writer, memory, target)
    terms = {"length": Term(long, texts, weight * OF_LENGTH)}
    if not alpha:
        smoothed, nll = token_sums(writer, states, target.ids, hidden, smoothing)
        return {"fill": Term(smoothed, count, weight), **terms, "nll": Term(nll, count, 0.0)}
    smoothed, nll, apart = twofold_sums(writer, states, target.ids, hidden, smoothing, alpha)
    return {
        "fill": Term(smoothed / 2, count, weight),
        "consistency": Term(apart, count, weight * alpha / 2),
        **terms,
        "nll": Term(nll / 2, count, 0.0),
    }


def length_sums(writer: Any, memory: Memory, target: Tokens) -> tuple[Tensor, Tensor]:
    """The cross-entropy of the length of each real text, in the mean of its passes, and how many texts there are."""
    logits, shortest = writer.lengths(memory)
    real, wanted = masking.real_texts(target.mask), masking.lengths_of(target.mask)
    passes = len(logits) // len(real)
    chosen = (wanted.repeat(passes) - shortest).clamp(0, logits.shape[1] - 1)
    losses = F.cross_entropy(logits.float(), chosen, reduction="none")
    return (losses * real.repeat(passes)).sum() / passes, real.sum()


def first_of_two(memory: Memory, batch: Batch) -> Memory:
    """What was read in the first pass of a doubled batch."""
    if isinstance(memory.mask, Packing):
        return Memory(memory.states[:, : memory.states.shape[1] // 2], batch["source"].mask)
    half = len(memory.states) // 2
    return Memory(memory.states[:half], memory.mask[:half])


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
    made: list[Objective] = []
    for table in recipe.objectives:
        if isinstance(table, Masked) and tokenizer is not None:
            made.append(masked_from(table, tokenizer))
            continue
        if isinstance(table, TemporalDifference) and average is not None:
            settings = table.model_dump(exclude={"kind"})
            made.append(functools.partial(temporal_difference, target=average.weights, **settings))
            continue
        settings = table.settings() if isinstance(table, Custom) else table.model_dump(exclude={"kind"})
        made.append(functools.partial(SHIPPED.get(table.kind) or (kinds or {})[table.kind], **settings))
    return made


def all_terms(
    objectives: Sequence[Objective], model: Model, batch: Batch, generator: torch.Generator
) -> dict[str, Term]:
    """The terms of all objectives; a name used twice gets a number.

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


def double(batch: Batch) -> Batch:
    """Every text twice, first all texts, then all of them again."""
    fields: dict[str, Any] = {}
    for name, x in batch.fields.items():
        if isinstance(x.mask, Packing):
            fields[name] = Tokens(torch.cat([x.ids, x.ids], 1), x.mask.doubled())
        else:
            fields[name] = type(x)(torch.cat([x.content, x.content]), torch.cat([x.mask, x.mask]))
    return Batch(fields, {name: 2 * count for name, count in batch.counts.items()})


SHIPPED: dict[str, Any] = {
    NextToken.model_fields["kind"].default: next_token,
    Scheduled.model_fields["kind"].default: scheduled,
    Reinforce.model_fields["kind"].default: reinforce,
    RDrop.model_fields["kind"].default: r_drop,
    Fill.model_fields["kind"].default: fill,
    Reward.model_fields["kind"].default: reward,
    Label.model_fields["kind"].default: label,
    Regress.model_fields["kind"].default: regress,
    Tag.model_fields["kind"].default: tag,
    Permuted.model_fields["kind"].default: permuted,
    Patches.model_fields["kind"].default: patches,
    Masked.model_fields["kind"].default: masked,
}
