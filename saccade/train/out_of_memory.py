"""Out of memory in a training step: the step is taken again with more and smaller micro-batches of the same batch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch

from saccade.data.batching.batch import Batch
from saccade.errors import LocalError, ProcessLost, SaccadeError
from saccade.kernels.memory import MemoryGuard, is_out_of_memory
from saccade.train import checkpoint
from saccade.train.machine import reseed
from saccade.train.session import Session


@contextmanager
def report_out_of_memory(s: Session) -> Iterator[None]:
    """Out of memory inside the block becomes a SaccadeError, which ends the training."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        error_here = s.memory.build_error(resume=s.resume_command)
        raise LocalError(str(error_here)) from None


class FetchedBatch(NamedTuple):
    batch: Batch  # on the device, packed or padded as the model needs it
    untransformed: Batch  # the same on the host, which can be split


class StepBatches:
    """The batches of one optimizer step, which can be iterated again with more and smaller micro-batches.

    Processes share the `train.accumulate` batches of a step in turn. Each of these is split by rows into
    `progress.split` micro-batches, at most one per row. Random numbers belong to the micro-batch, not to the process.
    """

    def __init__(self, s: Session) -> None:
        self._s = s
        self._fetched: list[FetchedBatch] = []
        self._place = (0, 0)  # of the current micro-batch: number of the batch, and of the part of it
        self._buffers = [(buffer, buffer.clone()) for buffer in s.mutable_buffers] if s.splits_on_out_of_memory else []
        self.is_last = False  # whether the current micro-batch is the last one
        self.failed = False  # whether this process ran out of memory in the last attempt

    def __iter__(self) -> Iterator[Batch]:
        """Yield the micro-batches; all random number generators are seeded for each, as in the first attempt."""
        s, ranks, count = self._s, self._s.ranks, self._s.recipe.train.accumulate
        for number, place in enumerate(range(ranks.batch_rank, count, ranks.batch_world)):  # place: among all processes
            if number == len(self._fetched):
                self._fetched.append(self._fetch())
            batch, untransformed = self._fetched[number]
            if s.progress.split == 1:
                parts = [batch]
            else:
                parts = s.prefetcher.load_parts(untransformed, s.progress.split)
            for part, micro_batch in enumerate(parts):
                self._place = number, part
                self.is_last = place + ranks.batch_world >= count and part == len(parts) - 1
                micro = (s.progress.step * count + place) * s.progress.split + part
                reseed(s.generator, seed=s.recipe.train.seed, number=micro)
                yield micro_batch

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Out of memory inside the block ends it and sets `failed`; with on_out_of_memory = "stop" it is raised."""
        self.failed = False
        s = self._s
        # The first step shows whether batches of this size fit; in the others, the guard would only take time.
        is_checked = s.device.type == "cpu" and not s.memory.completed_step and not s.recipe.train.compile
        try:
            with MemoryGuard() if is_checked else nullcontext():
                yield
        except RuntimeError as error:
            if not (self._s.splits_on_out_of_memory and is_out_of_memory(error)):
                raise
            self.failed = True

    def undo_attempt(self) -> None:
        """Undo what a failed attempt has changed, and release its memory; the caller must hold no tensor of it."""
        s = self._s
        s.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        gc.collect()  # frames of the exception may hold activations
        if s.device.type == "cuda":
            torch.cuda.synchronize(s.device)
            torch.cuda.empty_cache()
        elif s.device.type == "mps":
            torch.mps.empty_cache()

    def split_further(self) -> None:
        """Undo a failed attempt and double the micro-batches of this and all later steps, in all processes.

        Raises a SaccadeError if the micro-batch that failed is a single example.
        """
        s, progress = self._s, self._s.progress
        self.undo_attempt()
        error = self._build_error() if self.failed else None
        if s.ranks.any_rank(error is not None, s.device):
            raise error or ProcessLost("another process ran out of memory, and wrote what to do")
        before = s.recipe.train.accumulate * progress.split
        progress.split *= 2
        values = {"micro_batches_before": before, "micro_batches": 2 * before}
        s.log.record("out-of-memory", step=progress.step + 1, values=values)
        s.log.print_line(
            f"step {progress.step + 1:,}: out of memory; from here on a batch is split into {2 * before} micro-batches "
            f"instead of {before}, whose gradients add up to the same"
        )

    def _fetch(self) -> FetchedBatch:
        s = self._s
        with s.profiler.profile_part("data"):
            batch = s.prefetcher.next_batch()
        s.memory.record_batch(max(field.num_positions for field in batch.fields.values()))
        return FetchedBatch(batch, s.prefetcher.untransformed)

    def _build_error(self) -> SaccadeError | None:
        """Build the error about a micro-batch that cannot be split; None if it can be."""
        s, (number, part) = self._s, self._place
        batch = self._fetched[number].untransformed
        if batch.num_rows is None:
            return LocalError(str(s.memory.build_error(resume=s.resume_command)))
        example = batch.split(s.progress.split)[part]
        if example.num_rows != 1:
            return None
        newest = checkpoint.find_newest_name(s.checkpoint_folder)
        size = ", ".join(f"{name} {count:,}" for name, count in example.counts.items())
        return LocalError(
            f"out of memory at step {s.progress.step + 1:,} with a micro-batch of one example (positions: {size}); try "
            "train.recompute=true or train.precision=bf16, "
            + (f"and go on from {newest} with: {s.resume_command} ..., " if newest else "")
            + "or start a new run with a lower data.max_length or a smaller model"
            + ("" if newest else "; no checkpoint had been written yet")
        )
