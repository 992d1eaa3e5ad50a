"""Validation during training: the loss on all data, and scores of outputs for some examples."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from saccade.config.metric import Score
from saccade.config.schema import Decoding, Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import iter_validation_batches
from saccade.data.prepare import PreparedData
from saccade.data.tokenization.encode import encode_lines
from saccade.data.tokenization.lexicon import load_lexicon
from saccade.errors import MemoryExhausted, SaccadeError
from saccade.kernels.memory import find_widest, guard_memory, is_out_of_memory
from saccade.model.run import named_weights, write_tensors
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import WEIGHTS
from saccade.train import checkpoint
from saccade.train.average import Weights, swap_weights
from saccade.train.distributed.parts import gather_whole, reshard
from saccade.train.loss import Meter
from saccade.train.machine import autocast, reseed
from saccade.train.session import Session, build_diverged_error
from saccade.train.transfer.lora import merge_lora_weights

DECODING_BATCH_FACTOR = 4  # tokens of a decoding batch, in training batches: without gradients so many fit into memory


def select_decodable_pairs(recipe: Recipe, data: PreparedData) -> list[tuple[str, str]]:
    """Select the validation pairs to decode: the first ones, without those longer than `data.max_length`."""
    pairs = data.valid_pairs[: recipe.train.valid_predictions]
    sources = recipe.task.get_source_texts(recipe, pairs)
    if sources is None:
        return pairs
    rows = encode_lines(data.tokenizers, sources, max_length=recipe.data.max_length * recipe.data.truncate)
    short = [pair for pair, row in zip(pairs, rows, strict=True) if len(row) <= recipe.data.max_length]
    if not short and recipe.train.metric != "loss":
        raise SaccadeError(
            f"train.metric={recipe.train.metric}: none of the {len(pairs)} validation pairs to decode has at most "
            f'data.max_length = {recipe.data.max_length} tokens; raise it, or set train.metric="loss"'
        )
    return short


def validate(s: Session) -> None:
    """Validate the current weights and log the scores; the best so far are written as the model of the run."""
    settings, progress = s.recipe.train, s.progress
    values = evaluate_weights(s, None if s.average is None else s.average.weights)
    value, loss = float(values[settings.metric]), float(values["loss"])
    better = progress.best is None or is_better(s, value, progress.best)
    chosen = better or (value == progress.best and loss < progress.best_loss)  # ties are common at 0 and 100
    progress.ranking[progress.step] = value
    progress.misses = 0 if better else progress.misses + 1
    if chosen:
        progress.best, progress.best_loss, progress.best_step = value, loss, progress.step
        write_best_weights(s)
    seconds = s.update_seconds()
    s.log.record("valid", step=progress.step, values={**values, "best": chosen, "seconds": round(seconds, 2)})
    scores = "  ".join(f"{name} {number:.4g}" for name, number in values.items() if isinstance(number, float))
    s.log.print_line(f"step {progress.step:,}  validation  {scores}{'  (best)' if chosen else ''}")


def evaluate_weights(s: Session, weights: Weights | None) -> dict[str, float | str]:
    """Return validation loss and scores of these weights; of the model's own for None."""
    with swap_weights(s.model, weights):
        return s.recipe.task.measure_validation(s)


class ValidationLoss(NamedTuple):
    """Means of all loss terms, and the number of tokens they are taken over."""

    values: dict[str, float]
    tokens: float


@torch.no_grad()
def compute_validation_loss(s: Session) -> ValidationLoss:
    """Mean of each loss term over the validation data in eval mode; processes share the batches."""
    meter = Meter(s.device)
    s.loss.eval()
    batches = iter_validation_batches(s.valid, batch_tokens=s.recipe.train.batch_tokens)
    try:
        for number, batch, counted in share_batches(s, batches):
            add_batch(s, meter, batch, number=number, counted=counted)
    finally:
        s.loss.train()
        reshard(s.model)
    _, count = s.ranks.all_reduce(meter.sums["nll"]).tolist() if "nll" in meter.sums else (0, 0)
    values = meter.read(s.ranks)
    del values["tokens"]
    if not math.isfinite(values["loss"]):
        raise build_diverged_error(s, s.progress.step)
    if "nll" in values:
        values["perplexity"] = math.exp(min(values["nll"], 700.0))
    return ValidationLoss(values, count)


def share_batches(s: Session, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch, bool]]:
    """Yield this process's batches with their numbers, and whether they count.

    All processes get equally many, since those of a sharded model compute in step and all must know the names of the
    terms: the last ones may get batches that belong to others and do not count.
    """
    ranks = s.ranks
    numbered = enumerate(batches)
    while group := list(itertools.islice(numbered, ranks.batch_world)):
        number, batch = group[min(ranks.batch_rank, len(group) - 1)]
        yield number, batch, ranks.batch_rank < len(group)


@torch.no_grad()
def compute_mean_loss(s: Session, batches: Iterable[tuple[int, Batch]]) -> float:
    """Mean loss of numbered batches in eval mode; every process computes all of them."""
    meter = Meter(s.device)
    s.loss.eval()
    try:
        for number, batch in batches:
            add_batch(s, meter, batch, number=number, counted=True)
    finally:
        s.loss.train()
        reshard(s.model)
    return meter.read(s.ranks)["loss"]


def add_batch(s: Session, meter: Meter, batch: Batch, *, number: int, counted: bool) -> None:
    """Add the loss terms of one batch, with the same random numbers in every validation; 0 unless `counted`.

    It is computed in as many parts as a training batch, and in more and smaller ones as long as memory runs out.
    """
    parts = s.progress.split
    while True:
        reseed(s.generator, seed=s.recipe.train.seed, number=-1 - number)
        try:
            with guard_memory(find_widest(s.model)):
                found = [s.loss(part.to(s.device), s.generator).terms for part in batch.split(parts)]
            break
        except RuntimeError as error:
            if not (s.splits_on_out_of_memory and is_out_of_memory(error)) or parts >= (batch.num_rows or 1):
                raise
        gc.collect()  # frames of the exception may hold activations
        parts *= 2
    for terms in found:
        if not counted:
            terms = {name: term._replace(sum=term.sum * 0, count=0) for name, term in terms.items()}
        meter.add(terms)


class Scoring(NamedTuple):
    """How validation examples are decoded and scored; `score_fn` gets inputs, outputs and references."""

    names: tuple[str, ...]
    decoding: Decoding
    score_fn: Callable[[Sequence[str], Sequence[str], Sequence[str]], dict[str, Score]]


def get_greedy_decoding(recipe: Recipe) -> Decoding:
    """Return the recipe's decoding settings for greedy search with large batches."""
    batch_tokens = max(recipe.predict.batch_tokens, DECODING_BATCH_FACTOR * recipe.train.batch_tokens)
    return recipe.predict.model_copy(update={"beam": 1, "n_best": 1, "sample": False, "batch_tokens": batch_tokens})


def decode_and_score(s: Session, scoring: Scoring) -> dict[str, float | str]:
    """Decode the validation pairs, which processes share, and score the outputs in rank 0."""
    texts, references = zip(*s.valid_pairs, strict=True)
    outputs = decode_shared(s, texts, scoring.decoding)
    signature = dict[str, str]()
    values = dict[str, float]()
    if s.ranks.is_main:
        if s.recipe.train.keep_examples:
            s.log.write_samples(s.progress.step, s.valid_pairs, outputs)
        scores = scoring.score_fn(texts, outputs, references)
        values = {name: float(scores[name].value) for name in scoring.names}
        signature = {"signature": scores["bleu"].signature} if "bleu" in scores else {}
        if undefined := [name for name in scoring.names if scores[name].undefined]:
            reason = scores[undefined[0]].undefined
            s.log.print_line(f"step {s.progress.step:,}  {' and '.join(undefined)} count as 0: {reason}")
    return {**s.ranks.broadcast(values), **signature}


def decode_shared(s: Session, texts: Sequence[str], decoding: Decoding) -> list[str]:
    """Decode these inputs, each in one of the processes, and return all outputs in order.

    A sharded model decodes with a whole replica in each process: outputs differ in length, so that processes could not
    exchange parameters in step.
    """
    model = s.model
    if s.ranks.mesh is not None:
        from saccade.train.distributed.shard import build_replica

        model = build_replica(s.model, s.recipe, s.tokenizers, named_weights(s.model))
    predictor_class = s.recipe.task.get_predictor(s.recipe)
    predictor = predictor_class(model, recipe=s.recipe, tokenizers=s.tokenizers, lexicon=load_lexicon(s.run))
    own = texts[s.ranks.batch_rank :: s.ranks.batch_world]
    outputs = predict_in_memory(s, predictor, own, decoding) if own else []
    shares = s.ranks.gather(list(outputs))
    return [shares[place % len(shares)][place // len(shares)] for place in range(len(texts))]


def predict_in_memory(s: Session, predictor: Predictor, texts: Sequence[str], decoding: Decoding) -> list[str]:
    """Decode in batches as small as memory needs them; as many smaller than usual as those of training are."""
    batch_tokens = max(1, decoding.batch_tokens // s.progress.split)
    while True:
        try:
            with autocast(s.recipe.train, s.device):
                return predictor.predict(texts, decoding=decoding.model_copy(update={"batch_tokens": batch_tokens}))
        except MemoryExhausted:
            if batch_tokens == 1:
                raise
        gc.collect()  # frames of the exception may hold activations
        batch_tokens //= 2


def is_better(s: Session, value: float, than: float) -> bool:
    return value > than if s.recipe.metric.higher_is_better else value < than


def write_best_weights(s: Session) -> None:
    """Write the weights of a new best step as the model of the run, and beside the checkpoints for `finish`."""
    weights = gather_weights(s, s.eval_weights)
    if s.ranks.is_main:
        s.checkpoint_folder.mkdir(parents=True, exist_ok=True)
        path = checkpoint.get_best_path(s.checkpoint_folder, s.progress.best_step)
        write_tensors(merge_lora_weights(weights, s.recipe), path, vocabulary=s.tokenizers.hash_vocabulary())
    write_model_weights(s, weights)


def write_model_weights(s: Session, weights: Weights) -> None:
    """Write these weights, whole or distributed, as the model of the run: one ordinary file."""
    weights = gather_weights(s, weights)
    if s.ranks.is_main:
        plain = merge_lora_weights(weights, s.recipe)
        write_tensors(plain, s.run / WEIGHTS, vocabulary=s.tokenizers.hash_vocabulary())


def gather_weights(s: Session, weights: Weights) -> Weights:
    """Return the whole weights in rank 0 and none in the others; weights that are not distributed stay as they are."""
    if s.ranks.mesh is None:
        return weights
    gathered: Weights = {}
    for name, tensor in weights.items():  # one at a time: only rank 0 holds all, in the memory of the host
        whole = gather_whole(tensor)
        if s.ranks.is_main:
            gathered[name] = whole
    return gathered
