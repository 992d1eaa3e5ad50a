"""Precision, determinism, random number generators, and the error message for too little memory."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy
import torch
from torch import nn

from saccade.config.schema import Train
from saccade.errors import SaccadeError
from saccade.train.distributed.parts import get_local

MEMORY_MARGIN = 0.8  # share of the memory that an estimate may use: batches differ, and memory fragments


def autocast(settings: Train, device: torch.device) -> AbstractContextManager[None]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=uses_bf16(settings, device))


def uses_bf16(settings: Train, device: torch.device) -> bool:
    """Whether training computes in bfloat16: as `train.precision` says; "auto" is bfloat16 on CUDA."""
    return settings.precision == "bf16" or (settings.precision == "auto" and device.type == "cuda")


def get_accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for sums over many batches: float64, except on Apple GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def deterministic_mode(settings: Train, device: torch.device) -> Iterator[bool]:
    """Use deterministic algorithms inside the block if `train.deterministic` (default: on CPUs); restore the flags."""
    enabled = device.type == "cpu" if settings.deterministic is None else settings.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    fill_memory = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed one
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield enabled
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic = before[1]
        torch.utils.deterministic.fill_uninitialized_memory = fill_memory  # type: ignore[attr-defined]


@contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Restore the states of all random number generators after the block."""
    on_cuda = device.type == "cuda" or torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if on_cuda else []
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    own, python, arrays = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(own)
        random.setstate(python)
        numpy.random.set_state(arrays)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)


def reseed(generator: torch.Generator, *, seed: int, number: int) -> None:
    """Seed all generators for a micro-batch from the seed and its number among those of all processes.

    Thus two processes get the random numbers of one process with twice the micro-batches, and a resumed run those of
    an uninterrupted one.
    """
    hashed = int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest(), "little") >> 1
    torch.manual_seed(hashed)
    generator.manual_seed(hashed + 1)
    random.seed(hashed)
    numpy.random.seed(hashed % 2**32)


def has_finite_weights(model: nn.Module) -> bool:
    """Whether all parameters are finite; of a sharded model, the parts of this process."""
    parts = [get_local(parameter.detach()) for parameter in model.parameters()]
    return bool(torch.stack([part.isfinite().all() for part in parts]).all())


def build_out_of_memory_error(
    settings: Train, *, total: int, fixed: int, per_token: float, resume: str
) -> SaccadeError:
    """Build the error for too little GPU memory; it estimates the batch size that fits from the bytes per token."""
    batch_tokens = min(int(MEMORY_MARGIN * (total - fixed) / per_token), int(MEMORY_MARGIN * settings.batch_tokens))
    batch_tokens -= batch_tokens % 8
    gib = 1024**3
    if batch_tokens < 8:
        return SaccadeError(
            f"out of GPU memory: weights, gradients and Adam's state take {fixed / gib:.1f} of {total / gib:.1f} GiB, "
            "so that no batch fits; make the model smaller"
        )
    accumulate = -(-settings.batch_tokens * settings.accumulate // batch_tokens)
    return SaccadeError(
        f"out of GPU memory ({total / gib:.1f} GiB) with train.batch_tokens={settings.batch_tokens}: about "
        f"{batch_tokens} would fit; try train.batch_tokens={batch_tokens} train.accumulate={accumulate} (the same "
        f"batch in parts) or train.recompute=true, and go on with: {resume} ..."
    )


class MemoryTracker:
    """Tracks the largest batch so far, to estimate the memory per token when a device runs out of it."""

    def __init__(self, settings: Train, model: nn.Module, device: torch.device) -> None:
        self.settings, self.device = settings, device
        # weights, gradients and the two moments of Adam
        trained = (get_local(p) for p in model.parameters() if p.requires_grad)
        self.fixed = sum(4 * p.numel() * p.element_size() for p in trained)
        self.tokens = 0  # padded tokens of the largest batch tried so far
        self.completed_step = False  # whether a step has succeeded

    def record_batch(self, tokens: int) -> None:
        self.tokens = max(self.tokens, tokens)

    def build_error(self, *, resume: str) -> SaccadeError:
        """Build the error; the failed batch needed at least all memory, or twice that if no step ever succeeded.

        Except on CUDA, where the memory is known, half of the batch is suggested.
        """
        if self.device.type != "cuda":
            settings = self.settings
            return SaccadeError(
                f"out of memory with train.batch_tokens={settings.batch_tokens}; try train.batch_tokens="
                f"{max(1, settings.batch_tokens // 2)} train.accumulate={2 * settings.accumulate} (the same batch in "
                f"parts) or train.recompute=true, and go on with: {resume} ..."
            )
        free, _ = torch.cuda.mem_get_info(self.device)
        total = free + torch.cuda.memory_reserved(self.device)
        tokens = self.tokens or self.settings.batch_tokens  # where the first batch did not even fit as integers
        per_token = max(1.0, (total - self.fixed) / tokens) * (1 if self.completed_step else 2)
        return build_out_of_memory_error(
            self.settings, total=total, fixed=self.fixed, per_token=per_token, resume=resume
        )
