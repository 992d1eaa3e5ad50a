"""Validation: the loss of every pair, and scores of what the model writes for some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from saccade.config.schema import Decoding, Recipe
from saccade.config.training import LOWER
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import valid_batches
from saccade.data.prepare import Prepared
from saccade.data.tokenization.encode import encode_lines
from saccade.data.tokenization.lexicon import load_lexicon
from saccade.errors import SaccadeError
from saccade.model.run import write_tensors
from saccade.runs import WEIGHTS
from saccade.score.bleu import Score
from saccade.train import checkpoint
from saccade.train.average import Weights, wearing
from saccade.train.loss import Meter
from saccade.train.machine import autocast, reseed, widest
from saccade.train.objectives.terms import Term
from saccade.train.session import Session, spoiled
from saccade.train.transfer.lora import plain_weights

ROOM = 4  # times the tokens of a training batch, decoded at once: where gradients fit, so many fit without them


def short_enough(recipe: Recipe, data: Prepared) -> list[tuple[str, str]]:
    """The pairs to decode in validation, without those that the model is not made for."""
    pairs = data.valid_pairs[: recipe.train.valid_predictions]
    sources = recipe.task.get_source_texts(recipe, pairs)
    if sources is None:
        return pairs
    rows = encode_lines(data.tokenizers, sources, cut=recipe.data.max_length * recipe.data.cut)
    short = [pair for pair, row in zip(pairs, rows, strict=True) if len(row) <= recipe.data.max_length]
    if not short and recipe.train.metric != "loss":
        raise SaccadeError(
            f"train.metric={recipe.train.metric}: none of the {len(pairs)} validation pairs to decode has at most "
            f'data.max_length = {recipe.data.max_length} tokens; raise it, or set train.metric="loss"'
        )
    return short


def validate(s: Session) -> None:
    """Measures the usable weights; a new best is written at once, so that the run can be used before it ends."""
    settings, progress = s.recipe.train, s.progress
    values = measure(s, None if s.average is None else s.average.weights)
    value, loss = float(values[settings.metric]), float(values["loss"])
    better = progress.best is None or is_better(s, value, progress.best)
    chosen = better or (value == progress.best and loss < progress.best_loss)  # scores of 0 and of 100 come often
    progress.ranking[progress.step] = value
    progress.misses = 0 if better else progress.misses + 1
    if chosen:
        progress.best, progress.best_loss, progress.best_step = value, loss, progress.step
        write_best(s)
    seconds = s.tick()
    s.log.record("valid", step=progress.step, values={**values, "best": chosen, "seconds": round(seconds, 2)})
    shown = "  ".join(f"{name} {number:.4g}" for name, number in values.items() if isinstance(number, float))
    s.log.say(f"step {progress.step:,}  validation  {shown}{'  (best)' if chosen else ''}")


def measure(s: Session, weights: Weights | None) -> dict[str, float | str]:
    """Loss and scores of the model, wearing these weights where some are given."""
    with wearing(s.model, weights):
        return s.recipe.task.measure_validation(s)


class Loss(NamedTuple):
    """Means of all terms of the loss, and how many tokens they are means over."""

    values: dict[str, float]
    tokens: float


@torch.no_grad()
def measure_loss(s: Session) -> Loss:
    """The mean of every term over the validation data, without dropout; each process takes its share of batches."""
    meter = Meter(s.device)
    s.loss.eval()
    try:
        for number, batch in enumerate(valid_batches(s.valid, batch_tokens=s.recipe.train.batch_tokens)):
            mine = number % s.ranks.world == s.ranks.rank
            if mine or number == 0:  # the first one for everybody, so that all know the names of the terms
                meter.add(batch_terms(s, batch, number=number, counted=mine))
    finally:
        s.loss.train()
    _, count = s.ranks.total(meter.sums["nll"]).tolist() if "nll" in meter.sums else (0, 0)
    values = meter.read(s.ranks)
    del values["tokens"]
    if not math.isfinite(values["loss"]):
        raise spoiled(s, s.progress.step)
    if "nll" in values:
        values["perplexity"] = math.exp(min(values["nll"], 700.0))
    return Loss(values, count)


@torch.no_grad()
def mean_loss(s: Session, batches: Iterable[tuple[int, Batch]]) -> float:
    """The mean loss of numbered batches that every process has, without dropout."""
    meter = Meter(s.device)
    s.loss.eval()
    try:
        for number, batch in batches:
            meter.add(batch_terms(s, batch, number=number, counted=True))
    finally:
        s.loss.train()
    return meter.read(s.ranks)["loss"]


def batch_terms(s: Session, batch: Batch, *, number: int, counted: bool) -> dict[str, Term]:
    """The terms of one batch; the same random numbers, if it needs any, in every validation."""
    reseed(s.generator, seed=s.recipe.train.seed, number=-1 - number)
    terms = s.loss(batch.to(s.device), s.generator).terms
    if counted:
        return terms
    return {name: term._replace(sum=term.sum * 0, count=0) for name, term in terms.items()}


class Scoring(NamedTuple):
    """How what the model says to validation pairs is decoded, and scored: inputs, outputs and references."""

    names: tuple[str, ...]
    decoding: Decoding
    scores: Callable[[Sequence[str], Sequence[str], Sequence[str]], dict[str, Score]]


def greedy(recipe: Recipe) -> Decoding:
    room = max(recipe.predict.batch_tokens, ROOM * recipe.train.batch_tokens)
    return recipe.predict.model_copy(update={"beam": 1, "n_best": 1, "sample": False, "batch_tokens": room})


def decode_scores(s: Session, scoring: Scoring) -> dict[str, float | str]:
    """Scores of the outputs for validation pairs; one process decodes, the others wait."""
    texts, references = zip(*s.valid_pairs, strict=True)
    told = dict[str, str]()
    values = torch.zeros(len(scoring.names), dtype=widest(s.device), device=s.device)
    if s.ranks.main:
        made = s.recipe.task.get_predictor(s.recipe)
        predictor = made(s.model, recipe=s.recipe, tokenizers=s.tokenizers, lexicon=load_lexicon(s.run))
        with autocast(s.recipe.train, s.device):
            outputs = predictor.predict(texts, decoding=scoring.decoding)
        s.log.keep_samples(s.progress.step, s.valid_pairs, outputs)
        scores = scoring.scores(texts, outputs, references)
        values = values.new_tensor([score.value for score in scores.values()])
        told = {"signature": scores["bleu"].signature} if "bleu" in scores else {}
    return {**dict(zip(scoring.names, s.ranks.total(values).tolist(), strict=True)), **told}


def is_better(s: Session, value: float, than: float) -> bool:
    return value < than if s.recipe.train.metric in LOWER else value > than


def write_best(s: Session) -> None:
    """The weights to use until better ones come, and a file of their own by which the end of the run finds them."""
    if s.ranks.main:
        s.folder.mkdir(parents=True, exist_ok=True)
        path = checkpoint.best_path(s.folder, s.progress.best_step)
        write_tensors(plain_weights(s.usable, s.recipe), path, vocabulary=s.tokenizers.vocabulary())
    write_usable(s, s.usable)


def write_usable(s: Session, weights: Weights) -> None:
    if s.ranks.main:
        plain = plain_weights(weights, s.recipe)
        write_tensors(plain, s.run / WEIGHTS, vocabulary=s.tokenizers.vocabulary())
