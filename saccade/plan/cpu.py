"""Measure how fast the CPU of this machine trains a recipe: a few real training steps on generated data."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from saccade.allocation import get_free_bytes
from saccade.config.load import load, override
from saccade.config.schema import Recipe
from saccade.data.prepare import PreparedData, prepare
from saccade.data.sources.pairs import EMBEDDED_PREFIX
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.train.assemble import build_session
from saccade.train.distributed.ranks import Ranks
from saccade.train.loop import optimizer_step
from saccade.train.machine import deterministic_mode, preserve_rng_state
from saccade.train.pace import measure_matmul_flops
from saccade.train.session import Session
from saccade.train.transfer.model import build_initial_model

BYTES_PER_PARAMETER = 16  # weights, gradients and both moments of Adam
MAX_PARAMETERS = 400_000_000  # of a model whose steps are measured; a step of a larger one takes minutes
MAX_REDUCTION = 64  # of the batch of a recipe in the first measured step
STEP_SECONDS = 1.0  # of a measured step; its batch is made as large as that, up to that of the recipe
NUM_STEPS = 3
MEASURED_LENGTH = 256  # tokens of a sequence, where longer ones would make a step slow
SLOW_SECONDS = 3.0  # that the matrix products of one long sequence may take
MIN_ROWS = 400  # of generated data
MAX_EXAMPLES = 2000  # of data that is not generated
MATMUL_SHARE = 0.6  # of the speed of a large matrix product that training reaches, for models that are not measured
QUIET = [
    "train.device=cpu", "train.accumulate=1", "train.steps=1000000", "train.epochs=none", "train.minutes=none",
    "train.metric=loss", "train.patience=none", "train.average={kind='none'}", "train.profile=false",
    "train.watch=false", "train.loggers=[]", "init=", "data.valid=[]", "data.stream=false",
    "data.filter={}", "tokenizer.dropout=0",
]  # fmt: skip


class CpuSpeed(NamedTuple):
    """The time of an optimizer step of a recipe on the CPU of this machine."""

    threads: int
    step_seconds: float
    measured_tokens: int | None  # `train.batch_tokens` of the measured steps; None: estimated from matrix products


def measure_cpu(
    recipe: Recipe, *, vocabulary: int, length: int, parameters: int, training_flops: float, run: Path | None = None
) -> CpuSpeed:
    """Return the time of a step of a recipe: measured, or for a large model estimated from matrix products.

    `length` is that of a sequence, `training_flops` are those of a full step, `run` is the folder of a run.
    """
    speed, threads, device = measure_matmul_flops(), torch.get_num_threads(), torch.device("cpu")
    estimate = CpuSpeed(threads, training_flops / (MATMUL_SHARE * speed), None)
    free = get_free_bytes()
    if parameters > MAX_PARAMETERS or (free is not None and BYTES_PER_PARAMETER * parameters > free / 2):
        return estimate
    if 6 * parameters * length / speed > SLOW_SECONDS:
        length = min(length, MEASURED_LENGTH)
    with tempfile.TemporaryDirectory() as name, preserve_rng_state(device), deterministic_mode(recipe.train, device):
        folder = Path(name)
        try:
            measured = prepare_measurement(recipe, folder, vocabulary=vocabulary, length=length)
            tokenizers = Tokenizers.load(run) if run and has_data(recipe) else None
            data = prepare(measured, tokenizers=tokenizers, cache=folder / "cache", report=lambda text: None)
        except SaccadeError:  # a task of a plugin that needs data of its own
            return estimate
        seconds, tokens = measure_steps(measured, data, folder, least=length)
    return CpuSpeed(threads, seconds * recipe.train.accumulate, tokens)


def has_data(recipe: Recipe) -> bool:
    """Whether a recipe names training data that is there."""
    names = [name for corpus in recipe.data.train for name in corpus.files]
    return bool(names) and all(name.startswith(EMBEDDED_PREFIX) or Path(name).exists() for name in names)


def prepare_measurement(recipe: Recipe, folder: Path, *, vocabulary: int, length: int) -> Recipe:
    """Return the recipe with data for a measurement: its own, or generated; for pictures and sound those of --tiny."""
    if has_data(recipe):
        corpora = recipe.data.train
    elif recipe.reader.medium:
        corpora = load(recipe.name, tiny=True, kinds=recipe.kinds).data.train
    else:
        file = write_sequences(recipe, folder, vocabulary=vocabulary, length=length)
        texts = [f"data.train=['{file}']", "tokenizer.kind=words", f"tokenizer.size={vocabulary}"]
        recipe = override(recipe, [*QUIET, *texts], kinds=recipe.kinds)
        with suppress(SaccadeError):  # of stacks for which rows have one length
            recipe = override(recipe, [f"data.max_length={length}"], kinds=recipe.kinds)
        return recipe
    limited = tuple(
        corpus.model_copy(update={"examples": min(corpus.examples or MAX_EXAMPLES, MAX_EXAMPLES)}) for corpus in corpora
    )
    data = recipe.data.model_copy(update={"train": limited})
    return override(recipe.model_copy(update={"data": data}), QUIET, kinds=recipe.kinds)


def write_sequences(recipe: Recipe, folder: Path, *, vocabulary: int, length: int) -> Path:
    """Write rows of `length` random words of a vocabulary: documents, labelled texts or pairs."""
    words, generator = [f"w{number}" for number in range(vocabulary)], random.Random(1)
    path = folder / "data.jsonl"

    def draw() -> str:
        return " ".join(generator.choices(words, k=max(1, length - 1)))

    with path.open("w", encoding="utf-8") as file:
        for number in range(max(MIN_ROWS, vocabulary // length)):
            source, target = draw(), draw()
            if recipe.task.learns_from_documents:
                row = {"text": source}
            elif recipe.task.predicts_labels:
                label = (
                    " ".join(str(i % 2) for i in range(length - 1))
                    if recipe.writer.label_kind == "tags"
                    else number % 2
                )
                row = {"text": source, "label": str(label)}
            else:
                row = {"source": source, "target": target}
            print(json.dumps(row), file=file)
    return path


def measure_steps(recipe: Recipe, data: PreparedData, folder: Path, *, least: int) -> tuple[float, int]:
    """Return the seconds of a step with a full batch, and the tokens of the batches that were measured.

    The time of a step is a constant, that of the update above all, and a time for each token: two sizes tell both.
    """
    batch_tokens = recipe.train.batch_tokens
    model, _ = build_initial_model(recipe, data.tokenizers, fresh=True)

    def measure(tokens: int, count: int) -> float:
        session = open_session(recipe, data, model, folder, tokens)
        time_steps(session, 1)  # allocates
        return statistics.median(time_steps(session, 1) for _ in range(count))

    tokens = min(batch_tokens, max(least, batch_tokens // MAX_REDUCTION))
    while tokens < batch_tokens and (seconds := measure(tokens, 1)) < STEP_SECONDS / 2:
        tokens = min(batch_tokens, int(tokens * min(8.0, STEP_SECONDS / seconds)))
    seconds = measure(tokens, NUM_STEPS)
    if tokens == batch_tokens:
        return seconds, tokens
    other = tokens // 2 if tokens // 2 >= least else 2 * tokens
    slope = (measure(other, NUM_STEPS) - seconds) / (other - tokens)
    per_token = max(0.5 * seconds / tokens, slope)  # times vary: a token cannot cost less than that
    return seconds + per_token * (batch_tokens - tokens), tokens


def open_session(recipe: Recipe, data: PreparedData, model: Model, folder: Path, tokens: int) -> Session:
    recipe = override(recipe, [f"train.batch_tokens={tokens}"], kinds=recipe.kinds)
    ranks = Ranks()
    stream = recipe.task.open_stream(recipe, data.train, model, rank=ranks.batch_rank, world=ranks.batch_world)
    return build_session(recipe, folder, data=data, model=model, stream=stream, ranks=ranks)


def time_steps(s: Session, count: int) -> float:
    """Return the mean seconds of optimizer steps."""
    begin = time.perf_counter()
    for _ in range(count):
        optimizer_step(s)
    return (time.perf_counter() - begin) / count
