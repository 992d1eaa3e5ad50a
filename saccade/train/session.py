"""What a training run holds while it runs, and what of it a checkpoint keeps."""

from __future__ import annotations

import base64
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.config.training import LOWER
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import Diverged
from saccade.model.model import Model
from saccade.model.run import named_weights, put_weights
from saccade.runs import CHECKPOINTS
from saccade.train import checkpoint
from saccade.train.average import MovingAverage, chosen_steps
from saccade.train.batches.feed import Feed
from saccade.train.checkpoint import Checkpoint
from saccade.train.distributed.ranks import Ranks
from saccade.train.log import Log
from saccade.train.loss import Meter, MicroLoss
from saccade.train.machine import MemoryWatch, finite
from saccade.train.optimizer import optimizer_tensors, restore_optimizer
from saccade.train.profiling.profile import Watch
from saccade.train.schedule import Rate


@dataclass
class Progress:
    """How far the run is, and its best so far."""

    step: int = 0
    seconds: float = 0.0  # spent in earlier processes and in this one, validation included
    epoch: float = 0.0
    tokens: int = 0
    best: float | None = None  # of the metric
    best_loss: float = 0.0  # at the best step, where another metric chooses
    best_step: int = 0
    misses: int = 0  # validations since the best one
    ranking: dict[int, float] = field(default_factory=dict)  # the metric at each validation

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        ranking = {int(step): value for step, value in values["ranking"].items()}
        return cls(**{**values, "ranking": ranking})


@dataclass
class Session:
    recipe: Recipe
    run: Path
    tokenizers: Tokenizers
    model: Model
    loss: MicroLoss
    shared: torch.nn.Module  # the loss for training steps: where there are several processes, gradients are their means
    optimizer: torch.optim.Optimizer
    rate: Rate
    feed: Feed
    valid: Any  # the validation store, or None
    valid_pairs: list[tuple[str, str]]
    ranks: Ranks
    device: torch.device
    log: Log
    meter: Meter
    memory: MemoryWatch
    generator: torch.Generator
    average: MovingAverage | None
    watch: Watch
    looks: Any = None  # those of train/looking.py, where attention is watched
    captures: bool = False  # whether steps may run as CUDA graphs
    graphs: Any = None  # those of train/capture.py, while the loop runs
    notes: list[str] = field(default_factory=list)  # what data and warm start have to say, for the card
    progress: Progress = field(default_factory=Progress)
    checked: int = 0  # the last step whose loss was seen to be finite
    mark: float = 0.0  # when `progress.seconds` was last brought up to date
    since: float = 0.0  # when the time of the next report began; moved on by what is no training
    reported: int = 0  # the step of the last report

    def tick(self) -> float:
        """Seconds of training so far."""
        now = time.perf_counter()
        self.progress.seconds += now - self.mark
        self.mark = now
        return self.progress.seconds

    @property
    def folder(self) -> Path:
        return self.run / CHECKPOINTS

    @property
    def usable(self) -> dict[str, Tensor]:
        """The weights that are validated and written: the moving average where there is one."""
        return named_weights(self.model) if self.average is None else self.average.weights

    @property
    def again(self) -> str:
        return f"saccade train --resume {self.run}"


def save_checkpoint(s: Session) -> None:
    """Writes everything needed to go on, unless the weights are spoiled, and removes what is no longer needed."""
    s.tick()
    if not finite(s.model):
        raise spoiled(s, s.progress.step)
    meter = s.meter.state(s.ranks)
    if s.ranks.main:
        groups = {"model": named_weights(s.model), "optimizer": optimizer_tensors(s.optimizer, s.model)}
        if s.average is not None:
            groups["ema"] = s.average.weights
        checkpoint.save(s.folder, step=s.progress.step, groups=groups, state={**state_of(s), "meter": meter})
        checkpoint.prune(s.folder, keep=s.recipe.train.keep, needed=needed_steps(s))


def state_of(s: Session) -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if s.device.type == "cuda" else []
    return {
        "progress": asdict(s.progress),
        "schedule": {**s.recipe.train.schedule.model_dump(), "rate": s.rate(s.progress.step)},
        "data": s.feed.state,
        "random": {"torch": encoded(torch.get_rng_state()), "cuda": [encoded(state) for state in cuda]},
        "machine": {"threads": torch.get_num_threads(), "torch": torch.__version__, "device": s.device.type},
    }


def restore(s: Session, found: Checkpoint) -> None:
    """Puts the run back to where the checkpoint was written; the stream of data is already there."""
    put_weights(s.model, found.tensors("model"))
    restore_optimizer(s.optimizer, s.model, found.tensors("optimizer"))
    if s.average is not None:
        s.average.restore(found.tensors("ema") or found.tensors("model"))
    s.progress = Progress.from_json(found.state["progress"])
    s.checked = s.log.begin = s.progress.step
    if s.ranks.main:
        s.meter.restore(found.state["meter"])
    torch.set_rng_state(decoded(found.state["random"]["torch"]))
    if s.device.type == "cuda" and len(found.state["random"]["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([decoded(text) for text in found.state["random"]["cuda"]])
    threads = found.state["machine"]["threads"]
    if s.device.type == "cpu" and threads != torch.get_num_threads():
        s.log.say(
            f"note: the run was begun with {threads} threads and goes on with {torch.get_num_threads()}; "
            f"for bit-identical weights set OMP_NUM_THREADS={threads}"
        )


def needed_steps(s: Session) -> list[int]:
    """Checkpoints that are kept though they are old: the best one, and those that will be averaged."""
    settings, progress = s.recipe.train, s.progress
    needed = chosen_steps(
        settings.average, saved=checkpoint.steps(s.folder), ranking=progress.ranking, lower=settings.metric in LOWER
    )
    return [*needed, progress.best_step]


def spoiled(s: Session, step: int) -> Diverged:
    """The message for a loss that is no number."""
    first = s.checked + 1
    where = f"at step {step}" if first >= step else f"between steps {first} and {step}"
    kept = checkpoint.newest_name(s.folder)
    return Diverged(
        f"the loss is no longer a finite number {where} (learning rate {s.rate(step):.2e}); try a lower "
        f"train.schedule.lr, a longer train.schedule.warmup, train.clip=1.0 or train.precision=fp32; "
        + (
            f"the last good checkpoint is {s.folder / kept}, go on from it with: {s.again} ..."
            if kept
            else "no checkpoint had been written yet"
        )
    )


def encoded(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def decoded(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
