"""A plan: everything about a recipe that can be said before it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.plan import hardware
from saccade.plan.counts import by_part, is_head, on_meta, parameters, stack_of, trained
from saccade.plan.hardware import Gpu
from saccade.plan.memory import Memory
from saccade.plan.sharding import Advice, advise
from saccade.plan.work import Work, work

SENTENCE = 32  # tokens: a sentence of subwords, where a recipe reads one text and writes another
HOUR = 3600


@dataclass(frozen=True)
class Asked:
    """What is asked about; None is what the recipe says, or what was measured."""

    vocabulary: int | None = None
    tokens: float | None = None  # all tokens of the training, of both sides
    length: int | None = None  # tokens of a text
    gpu: str = hardware.DEFAULT
    gpus: int = 1
    price: float | None = None  # dollars for a GPU and an hour
    mfu: float | None = None

    def __post_init__(self) -> None:
        least = {"vocabulary": 4, "tokens": 1, "length": 1, "gpus": 1, "price": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value < float("inf"):
                raise SaccadeError(f"--{name} must be a number of at least {lowest}, got {value:g}")
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise SaccadeError(f"--mfu must be above 0 and at most 1, such as 0.4, got {self.mfu:g}")


@dataclass(frozen=True)
class Time:
    """How long training takes, and what it costs."""

    mfu: float | None  # of the speed of a large matrix product; None where nobody measured it
    whole: float  # share of that speed that a whole run has
    rate: float  # FLOP/s of such a product on one GPU
    per_token: float  # FLOPs, forward and backward
    tokens: float | None
    gpus: int
    price: float | None

    @property
    def tokens_per_second(self) -> float | None:
        """Of all GPUs together."""
        return None if self.mfu is None else self.gpus * self.rate * self.mfu * self.whole / self.per_token

    @property
    def hours(self) -> float | None:
        speed = self.tokens_per_second
        return None if self.tokens is None or speed is None else self.tokens / speed / HOUR

    @property
    def dollars(self) -> float | None:
        return None if self.hours is None or self.price is None else self.hours * self.gpus * self.price


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    model: Model  # on the meta device
    vocabulary: int
    length: int
    gpu: Gpu
    work: Work
    memory: Memory
    time: Time
    advice: Advice

    @property
    def batch_tokens(self) -> int:
        return self.recipe.train.batch_tokens

    @property
    def step_seconds(self) -> float | None:
        """One optimizer step on one GPU, its batch full."""
        speed = self.time.tokens_per_second
        tokens = sides(self.model, self.work.beside) * self.batch_tokens * self.recipe.train.accumulate
        return None if speed is None else tokens * self.time.gpus / speed

    def as_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "vocabulary": self.vocabulary,
            "length": self.length,
            "batch_tokens": self.batch_tokens,
            "parameters": {
                "total": parameters(self.model),
                "trained": trained(self.model),
                "parts": by_part(self.model),
            },
            "flops_per_token": {
                "source": self.work.source,
                "target": self.work.target,
                "forward": self.work.mean,
                "training": self.time.per_token,
            },
            "memory_bytes": self.memory.as_dict(self.batch_tokens),
            "gpu": self.gpu._asdict(),
            "gpus": self.time.gpus,
            "mfu": self.time.mfu,
            "tokens": self.time.tokens,
            "tokens_per_second": self.time.tokens_per_second,
            "step_seconds": self.step_seconds,
            "hours": self.time.hours,
            "dollars": self.time.dollars,
            "sharding": {
                "choices": [choice._asdict() for choice in self.advice.choices],
                "best": self.advice.best,
                "fewest_gpus": self.advice.fewest,
            },
        }


def make_plan(recipe: Recipe, asked: Asked) -> Plan:
    gpu, train = hardware.gpu(asked.gpu), recipe.train
    vocabulary = vocabulary_of(recipe) if asked.vocabulary is None else asked.vocabulary
    model = on_meta(recipe, vocabulary=vocabulary)
    whole = recipe.task.learns_from_documents  # rows of documents are as long as they can be
    length = asked.length or (recipe.data.max_length if whole else min(SENTENCE, recipe.data.max_length))
    memory = Memory(recipe, model, gpu, length=length)
    found = work(model, length=length, share=memory.share, beside=memory.beside)
    time = Time(
        mfu=usual_mfu(model, compiled=train.compile) if asked.mfu is None else asked.mfu,
        whole=hardware.measured()["whole"],
        rate=gpu.rate(is_half=train.precision != "fp32"),
        per_token=memory.passes * found.training(recompute=train.recompute),
        tokens=asked.tokens or all_tokens(recipe, asked.gpus * sides(model, memory.beside)),
        gpus=asked.gpus,
        price=asked.price,
    )
    advice = advise(memory, gpus=asked.gpus, batch_tokens=train.batch_tokens)
    return Plan(recipe, model, vocabulary, length, gpu, found, memory, time, advice)


def vocabulary_of(recipe: Recipe, run: Path | None = None) -> int:
    """Pieces of a run, of the files that a recipe names, or as many as it asks for; of two vocabularies, the larger."""
    if run is None and not recipe.tokenizer.from_files:
        return recipe.tokenizer.size
    found = train_tokenizers(recipe.tokenizer, lambda: ()) if run is None else Tokenizers.load(run)
    return max(found.source.size, found.target.size)


def usual_mfu(model: Model, *, compiled: bool) -> float | None:
    """What Transformers of 512 and more numbers reached; other stacks wait for themselves, nobody measured how much."""
    measured = hardware.measured()
    parts = [part for part in (model.reader, model.writer) if part is not None and not is_head(part)]
    if any(stack_of(part) is None for part in parts):
        return None
    alone = "text" if model.reader is None else "states"
    return measured[alone if len(parts) == 1 else "pairs"] * (1 if compiled else measured["plain"])


def sides(model: Model, beside: float) -> float:
    """Of a batch: what is read, and what is written as a share of it."""
    return 1.0 if model.reader is None or is_head(model.writer) else 1 + beside


def all_tokens(recipe: Recipe, rows: float) -> float | None:
    """Of all steps, every batch full; None where the recipe counts epochs or minutes."""
    train = recipe.train
    return None if train.steps is None else rows * train.steps * train.accumulate * train.batch_tokens
