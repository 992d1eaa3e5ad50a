"""Combine the estimates for a recipe in a `Plan`: parameters, FLOPs, memory, time, cost and sharding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.display import Tabular
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.plan import hardware
from saccade.plan.counts import (
    build_on_meta,
    count_by_part,
    count_parameters,
    count_trainable,
    get_transformer_stack,
    is_head,
)
from saccade.plan.cpu import CpuSpeed, measure_cpu
from saccade.plan.flops import Flops, count_flops
from saccade.plan.hardware import Gpu
from saccade.plan.layouts import LayoutPlan, count_micro_batches, plan_layouts
from saccade.plan.memory import Memory
from saccade.plan.sharding import ShardingAdvice, recommend_sharding

DEFAULT_LENGTH = 32  # tokens of a typical sentence, for sequence-to-sequence recipes
SECONDS_PER_HOUR = 3600
MAX_GPUS = 1_000_000


@dataclass(frozen=True)
class PlanRequest:
    """The options of `saccade plan`; None means the value of the recipe, or a measured one."""

    vocabulary: int | None = None
    tokens: float | None = None  # training tokens, source and target together
    length: int | None = None  # tokens of a sequence
    gpu: str = hardware.DEFAULT_GPU
    gpus: int = 1
    price: float | None = None  # dollars per GPU and hour
    mfu: float | None = None

    def __post_init__(self) -> None:
        if self.gpus > MAX_GPUS:
            raise SaccadeError(f"--gpus must be at most {MAX_GPUS:,}, got {self.gpus}")
        least = {"vocabulary": 4, "tokens": 1, "length": 1, "gpus": 1, "price": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value < float("inf"):
                raise SaccadeError(f"--{name} must be a number of at least {lowest}, got {value:g}")
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise SaccadeError(f"--mfu must be above 0 and at most 1, such as 0.4, got {self.mfu:g}")


@dataclass(frozen=True)
class TrainingTime:
    """The duration and the price of training."""

    mfu: float | None  # model FLOPs utilization, relative to a large matmul; None if not measured
    end_to_end: float  # speed of a whole run, with data loading and validation, relative to that
    matmul_flops: float  # FLOP/s of a large matmul on one GPU
    flops_per_token: float  # forward and backward
    tokens: float | None
    gpus: int
    price: float | None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of all GPUs together."""
        return (
            None
            if self.mfu is None
            else self.gpus * self.matmul_flops * self.mfu * self.end_to_end / self.flops_per_token
        )

    @property
    def hours(self) -> float | None:
        speed = self.tokens_per_second
        return None if self.tokens is None or speed is None else self.tokens / speed / SECONDS_PER_HOUR

    @property
    def dollars(self) -> float | None:
        return None if self.hours is None or self.price is None else self.hours * self.gpus * self.price


@dataclass(frozen=True)
class Plan(Tabular):
    """What training a recipe takes."""

    recipe: Recipe
    model: Model  # on the meta device
    vocabulary: int
    length: int
    gpu: Gpu
    flops: Flops
    memory: Memory
    time: TrainingTime
    advice: ShardingAdvice
    layouts: list[LayoutPlan]  # in which `saccade train` can run on these GPUs
    cpu: CpuSpeed | None = None  # how long a step takes on the CPU of this machine, if that was measured

    @property
    def batch_tokens(self) -> int:
        return self.recipe.train.batch_tokens

    @property
    def step_seconds(self) -> float | None:
        """The duration of one optimizer step with full batches."""
        speed = self.time.tokens_per_second
        return None if speed is None else self.step_tokens / speed

    @property
    def step_tokens(self) -> float:
        """The tokens of an optimizer step with full batches, source and target together."""
        count = count_micro_batches(self.recipe, self.time.gpus)
        return count_sides(self.model, self.flops.target_ratio) * self.batch_tokens * count

    @property
    def cpu_hours(self) -> float | None:
        """The duration of training on the CPU of this machine."""
        if self.cpu is None or self.time.tokens is None:
            return None
        return self.time.tokens / self.step_tokens * self.cpu.step_seconds / SECONDS_PER_HOUR

    def to_records(self) -> list[dict[str, Any]]:
        """Return the main numbers, a row each."""
        peak, state = self.memory.get_batch_peak(self.batch_tokens), self.memory.fixed
        rows = [
            ("parameters", count_parameters(self.model), ""),
            ("FLOPs per token, training", self.time.flops_per_token, ""),
            ("weights, gradients and optimizer", (state.persistent + state.gradients) / hardware.GIB, "GiB"),
            ("peak memory of a step", None if peak is None else peak / hardware.GIB, "GiB"),
            ("training time", self.time.hours, f"hours on {self.time.gpus} x {self.gpu.name}"),
            ("cost", self.time.dollars, "US dollars"),
            *([("training time", self.cpu_hours, "hours on this CPU")] if self.cpu is not None else []),
        ]
        return [{"quantity": name, "value": value, "unit": unit} for name, value, unit in rows]

    def __repr__(self) -> str:
        return f"<plan of {self.recipe.name}: {count_parameters(self.model):,} parameters, {self.gpu.name}>"

    def as_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "vocabulary": self.vocabulary,
            "length": self.length,
            "batch_tokens": self.batch_tokens,
            "parameters": {
                "total": count_parameters(self.model),
                "trained": count_trainable(self.model),
                "parts": count_by_part(self.model),
            },
            "flops_per_token": {
                "source": self.flops.source,
                "target": self.flops.target,
                "forward": self.flops.mean,
                "training": self.time.flops_per_token,
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
            "cpu": None if self.cpu is None else {**self.cpu._asdict(), "hours": self.cpu_hours},
            "sharding": {
                "choices": [choice._asdict() for choice in self.advice.options],
                "best": self.advice.best,
                "fewest_gpus": self.advice.min_gpus,
            },
            "layouts": [
                {**each.layout._asdict(), **each.states._asdict(), "sent_per_step": each.sent} for each in self.layouts
            ],
        }


def make_plan(recipe: Recipe, request: PlanRequest) -> Plan:
    gpu, train = hardware.get_gpu(request.gpu), recipe.train
    vocabulary = get_vocabulary_size(recipe) if request.vocabulary is None else request.vocabulary
    model = build_on_meta(recipe, vocabulary=vocabulary)
    fills_rows = recipe.task.learns_from_documents  # sequences are cut from documents, all of max_length
    length = request.length or (recipe.data.max_length if fills_rows else min(DEFAULT_LENGTH, recipe.data.max_length))
    memory = Memory(recipe, model, gpu, length=length)
    found = count_flops(model, length=length, predicted_share=memory.predicted_share, target_ratio=memory.target_ratio)
    time = TrainingTime(
        mfu=get_measured_mfu(model, compiled=train.compile) if request.mfu is None else request.mfu,
        end_to_end=hardware.get_measured()["whole"],
        matmul_flops=gpu.get_matmul_flops(is_bf16=train.precision != "fp32"),
        flops_per_token=memory.forward_passes * found.get_training(recompute=train.recompute),
        tokens=request.tokens or count_training_tokens(recipe, count_sides(model, memory.target_ratio), request.gpus),
        gpus=request.gpus,
        price=request.price,
    )
    advice = recommend_sharding(memory, gpus=request.gpus, batch_tokens=train.batch_tokens)
    layouts = plan_layouts(memory, recipe, gpus=request.gpus)
    return Plan(recipe, model, vocabulary, length, gpu, found, memory, time, advice, layouts)


def add_cpu_speed(plan: Plan, run: Path | None = None) -> Plan:
    """Measure training steps on the CPU of this machine, for a plan on one GPU; `run` has the tokenizers of a run."""
    speed = measure_cpu(
        plan.recipe, vocabulary=plan.vocabulary, length=plan.length, parameters=count_parameters(plan.model),
        training_flops=plan.time.flops_per_token * plan.step_tokens, run=run,
    )  # fmt: skip
    return replace(plan, cpu=speed)


def get_vocabulary_size(recipe: Recipe, run: Path | None = None) -> int:
    """Return the vocabulary size of a run, of tokenizer files, or of the recipe; the larger one if there are two."""
    if run is None and not recipe.tokenizer.from_files:
        return recipe.tokenizer.size
    found = train_tokenizers(recipe.tokenizer, lambda: ()) if run is None else Tokenizers.load(run)
    return max(found.source.size, found.target.size)


def get_measured_mfu(model: Model, *, compiled: bool) -> float | None:
    """Return the measured MFU of Transformers of width 512 and more; None for other stacks, which were not measured."""
    measured = hardware.get_measured()
    parts = [part for part in (model.reader, model.writer) if part is not None and not is_head(part)]
    if any(get_transformer_stack(part) is None for part in parts):
        return None
    alone = "text" if model.reader is None else "states"
    return measured[alone if len(parts) == 1 else "pairs"] * (1 if compiled else measured["plain"])


def count_sides(model: Model, target_ratio: float) -> float:
    """Return the tokens per token of `batch_tokens`: 1, plus the target tokens of an encoder-decoder model."""
    return 1.0 if model.reader is None or is_head(model.writer) else 1 + target_ratio


def count_training_tokens(recipe: Recipe, sides: float, gpus: int) -> float | None:
    """Return the tokens of all steps with full batches; None if the recipe has no `train.steps`."""
    train = recipe.train
    return None if train.steps is None else sides * train.steps * count_micro_batches(recipe, gpus) * train.batch_tokens
