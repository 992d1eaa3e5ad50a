"""The state of a training run, and how it is saved to and restored from a checkpoint."""

from __future__ import annotations

import base64
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.schema import Recipe, Train
from saccade.data.sources.filtering import FilterReport
from saccade.data.store.streaming import get_epoch, merge_states, restart_epoch
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import Diverged
from saccade.model.model import Model
from saccade.model.run import named_weights
from saccade.runs import CHECKPOINTS
from saccade.train import checkpoint
from saccade.train.average import MovingAverage, select_steps
from saccade.train.batches.prefetch import Prefetcher
from saccade.train.checkpoint import Checkpoint
from saccade.train.distributed.mesh import StateSizes, measure_states
from saccade.train.distributed.ranks import Ranks
from saccade.train.log import Log
from saccade.train.loss import Meter, MicroBatchLoss
from saccade.train.machine import MemoryTracker, has_finite_weights
from saccade.train.optimizer import get_optimizer_tensors, restore_optimizer
from saccade.train.profiling.profile import StepProfiler


@dataclass
class Progress:
    """Progress of a run and its best validation so far; saved in checkpoints."""

    step: int = 0
    seconds: float = 0.0  # of training with validation, before and after resuming
    epoch: float = 0.0
    tokens: int = 0
    best: float | None = None  # best value of the validation metric
    best_loss: float = 0.0  # validation loss at the best step, which breaks ties of other metrics
    best_step: int = 0
    misses: int = 0  # validations since the best one, for early stopping
    ranking: dict[int, float] = field(default_factory=dict)  # validation metric by step
    planned_steps: int | None = None  # steps that fit into `train.minutes`, once they are known, see pace.py
    planned_minutes: float | None = None  # the minutes that they were computed for
    split: int = 1  # micro-batches that each batch of `train.batch_tokens` is split into, see out_of_memory.py

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        ranking = {int(step): value for step, value in values["ranking"].items()}
        return cls(**{**values, "ranking": ranking})


class UnfinishedCheckpoint(NamedTuple):
    """A checkpoint that a thread of each process is writing."""

    step: int
    future: Future[Any]


@dataclass
class Session:
    """Everything that a training run holds in memory."""

    recipe: Recipe
    run: Path
    tokenizers: Tokenizers
    model: Model
    loss: MicroBatchLoss
    ddp_loss: torch.nn.Module  # the loss, wrapped in DistributedDataParallel where that exchanges the gradients
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    prefetcher: Prefetcher
    valid: Any  # validation data, or None
    valid_pairs: list[tuple[str, str]]
    ranks: Ranks
    device: torch.device
    log: Log
    meter: Meter
    memory: MemoryTracker
    generator: torch.Generator
    average: MovingAverage | None
    profiler: StepProfiler
    watched_examples: Any = None  # WatchedExamples of attention_watch.py, if attention is recorded
    use_cuda_graphs: bool = False  # whether training steps run as CUDA graphs
    hint: str | None = None  # a setting that may make it faster, printed before the first step
    cuda_graphs: Any = None  # CudaGraphs of capture.py: of a whole step or, with `buckets`, of passes of a micro-batch
    update_graph: Any = None  # UpdateGraph of capture.py: with `buckets`, that of the update
    buckets: Any = None  # GradientBuckets, unless autograd or DistributedDataParallel allocates the gradients
    notes: list[str] = field(default_factory=list)  # remarks of data preparation and warm start, for the model card
    filtered: dict[str, list[FilterReport]] = field(default_factory=dict)  # what `data.filter` dropped, see folder.py
    bad_rows: list[Any] = field(default_factory=list)  # BadRows: what `data.on_error` skipped, see folder.py
    progress: Progress = field(default_factory=Progress)
    unfinished_checkpoint: UnfinishedCheckpoint | None = None
    checked_step: int = 0  # last step whose loss was checked to be finite
    last_tick: float = 0.0  # when `progress.seconds` was last updated
    report_start: float = 0.0  # start of the time of the next report, shifted by time that is not training
    reported_step: int = 0  # step of the last report
    excluded_seconds: float = 0.0  # of this process for validation, checkpoints and the like
    total_steps: int | None = None  # at which a schedule that decays ends; None: unknown
    pause_step: int | None = None  # after which training is interrupted, to be resumed later
    num_examples: int | None = None  # of the training data; None: unknown, as that of a stream

    def update_seconds(self) -> float:
        """Update and return the seconds of training so far."""
        now = time.perf_counter()
        self.progress.seconds += now - self.last_tick
        self.last_tick = now
        return self.progress.seconds

    @functools.cached_property
    def mutable_buffers(self) -> list[Tensor]:
        """The buffers that a training step may change: those of modules in training mode."""
        modules = (module for module in self.model.modules() if module.training)
        return [buffer for module in modules for buffer in module.buffers(recurse=False)]

    @property
    def state_sizes(self) -> StateSizes:
        """Bytes of parameters, gradients, optimizer and moving average, those of all processes together."""
        return measure_states(self.model, self.recipe.train)

    @property
    def splits_on_out_of_memory(self) -> bool:
        """Whether a step that runs out of memory is taken again with smaller micro-batches.

        Not of a sharded model, whose processes exchange parameters in the middle of a pass.
        """
        choice = self.recipe.train.on_out_of_memory
        return self.ranks.mesh is None and (choice == "split" or (choice == "auto" and not self.ranks.is_distributed))

    @property
    def checkpoint_folder(self) -> Path:
        return self.run / CHECKPOINTS

    @property
    def eval_weights(self) -> dict[str, Tensor]:
        """The weights that are validated and written: the moving average if there is one."""
        return named_weights(self.model) if self.average is None else self.average.weights

    @property
    def resume_command(self) -> str:
        return f"saccade train --resume {self.run}"


def save_checkpoint(s: Session) -> None:
    """Write a checkpoint and remove old ones; raises Diverged if the weights are not finite."""
    s.update_seconds()
    if s.ranks.any_rank(not has_finite_weights(s.model), s.device):
        raise build_diverged_error(s, s.progress.step)
    groups = {"model": named_weights(s.model), "optimizer": get_optimizer_tensors(s.optimizer, s.model)}
    if s.average is not None:
        groups["ema"] = s.average.weights
    state = {**get_state(s), "meter": s.meter.state(s.ranks)}
    if s.ranks.world_size > 1:
        from saccade.train.distributed.sharded_checkpoint import start_saving

        wait_for_checkpoint(s)
        step, process_group = s.progress.step, s.ranks.checkpoint_group
        future = start_saving(s.checkpoint_folder, step=step, groups=groups, state=state, process_group=process_group)
        s.unfinished_checkpoint = UnfinishedCheckpoint(step, future)
        return
    checkpoint.save(s.checkpoint_folder, step=s.progress.step, groups=groups, state=state)
    prune_checkpoints(s)


def wait_for_checkpoint(s: Session) -> None:
    """Wait until the checkpoint that a thread is writing is complete in all processes; then remove old ones."""
    unfinished, s.unfinished_checkpoint = s.unfinished_checkpoint, None
    if unfinished is None:
        return
    try:
        unfinished.future.result()
    except Exception as error:  # of torch.distributed.checkpoint, with the errors of all processes in it
        cause = next((each for each in iter_causes(error) if isinstance(each, OSError)), None)
        if cause is None:
            raise
        raise checkpoint.build_write_error(s.checkpoint_folder, unfinished.step, cause) from None
    if s.ranks.is_main:
        prune_checkpoints(s)
    s.ranks.barrier()  # all find the same checkpoints


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of torch.distributed.checkpoint and the errors of single processes that it collects."""
    yield error
    for failure in getattr(error, "failures", {}).values():
        yield from iter_causes(failure[0])


def prune_checkpoints(s: Session) -> None:
    keep, needed = s.recipe.train.keep_checkpoints, get_needed_steps(s)
    checkpoint.prune(s.checkpoint_folder, keep=keep, needed=needed, current=s.progress.step)


def get_state(s: Session) -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if s.device.type == "cuda" else []
    return {
        "progress": asdict(s.progress),
        "schedule": {**s.recipe.train.schedule.model_dump(), "rate": s.learning_rate(s.progress.step)},
        "data": merge_states(s.ranks.gather(s.prefetcher.state)),  # after a whole step
        "random": {
            "torch": encode_rng_state(torch.get_rng_state()),
            "cuda": [encode_rng_state(state) for state in cuda],
        },
        "machine": {"threads": torch.get_num_threads(), "torch": torch.__version__, "device": s.device.type},
    }


def get_data_position(position: dict[str, Any], settings: Train, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the position in the data to resume from; with another batch size the current epoch starts again."""
    before = position.get("made_for", {}).get("batch_tokens", settings.batch_tokens)
    if before == settings.batch_tokens:
        return position
    report(
        f"train.batch_tokens was {before} and is {settings.batch_tokens}: epoch {get_epoch(position) + 1} begins again"
    )
    return {
        **restart_epoch(position),
        "made_for": {**position["made_for"], "batch_tokens": settings.batch_tokens},
    }


def restore_session(s: Session, found: Checkpoint) -> None:
    """Restore a session from a checkpoint; the position in the data is restored before."""
    found.check_shapes(s.model)
    found.load_into("model", named_weights(s.model))
    restore_optimizer(s.optimizer, s.model, found)
    if s.average is not None:
        found.load_into("ema" if found.load_shapes("ema") else "model", s.average.weights)
    s.progress = Progress.from_json(found.state["progress"])
    s.checked_step = s.log.start_step = s.progress.step
    if s.ranks.is_main:
        s.meter.restore(found.state["meter"])
    torch.set_rng_state(decode_rng_state(found.state["random"]["torch"]))
    if s.device.type == "cuda" and len(found.state["random"]["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([decode_rng_state(text) for text in found.state["random"]["cuda"]])
    threads = found.state["machine"]["threads"]
    if s.device.type == "cpu" and threads != torch.get_num_threads():
        s.log.print_line(
            f"note: the run was started with {threads} threads and continues with {torch.get_num_threads()}; "
            f"for bit-identical weights set OMP_NUM_THREADS={threads}"
        )


def get_needed_steps(s: Session) -> list[int]:
    """Steps of old checkpoints that are still needed: the best one, and those that will be averaged."""
    return [*select_averaged_steps(s), s.progress.best_step]


def select_averaged_steps(s: Session) -> list[int]:
    """Steps whose checkpoints are averaged as of now.

    A checkpoint that was saved because the run was interrupted does not count: without the interruption there would be
    none, and the run would end with other weights.
    """
    settings, progress = s.recipe.train, s.progress
    saved = checkpoint.list_steps(s.checkpoint_folder)
    if not settings.average.uses_best:
        saved = [step for step in saved if step % settings.save_every == 0 or step == progress.step]
    return select_steps(
        settings.average,
        saved=saved,
        ranking=progress.ranking,
        lower_is_better=not s.recipe.metric.higher_is_better,
    )


def build_diverged_error(s: Session, step: int) -> Diverged:
    """Build the error for a loss that is not finite."""
    first = s.checked_step + 1
    where = f"at step {step}" if first >= step else f"between steps {first} and {step}"
    newest = checkpoint.find_newest_name(s.checkpoint_folder)
    return Diverged(
        f"the loss is no longer a finite number {where} (learning rate {s.learning_rate(step):.2e}); try a lower "
        f"train.schedule.lr, a longer train.schedule.warmup_steps, train.clip=1.0 or train.precision=fp32; "
        + (
            f"the last good checkpoint is {s.checkpoint_folder / newest}, go on from it with: {s.resume_command} ..."
            if newest
            else "no checkpoint had been written yet"
        )
    )


def encode_rng_state(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode_rng_state(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
