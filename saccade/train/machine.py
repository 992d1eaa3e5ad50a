"""The machine: precision, exactness, random numbers, and a message where its memory is too small."""

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

MARGIN = 0.8  # of the memory that the estimate may fill: batches differ, and memory breaks into pieces


def autocast(settings: Train, device: torch.device) -> AbstractContextManager[None]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=uses_bf16(settings, device))


def uses_bf16(settings: Train, device: torch.device) -> bool:
    """Where the recipe asks for it; auto: on CUDA."""
    return settings.precision == "bf16" or (settings.precision == "auto" and device.type == "cuda")


def widest(device: torch.device) -> torch.dtype:
    """The type for sums over many batches; Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def exactness(settings: Train, device: torch.device) -> Iterator[bool]:
    """The same numbers in every run on this machine, where asked (none: on the CPU); flags are put back after it."""
    wanted = device.type == "cpu" if settings.deterministic is None else settings.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS may add in another order
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield wanted
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic = before[1]
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


@contextmanager
def kept_randomness(device: torch.device) -> Iterator[None]:
    """The caller's random numbers go on after it as if nothing had been drawn."""
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
    """All random numbers of a micro-batch follow from the seed and its number among those of all processes.

    So two processes draw what one process with twice the micro-batches draws, and a resumed run what it would have.
    """
    mixed = int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest(), "little") >> 1
    torch.manual_seed(mixed)
    generator.manual_seed(mixed + 1)
    random.seed(mixed)
    numpy.random.seed(mixed % 2**32)


def finite(model: nn.Module) -> bool:
    """Whether every weight is a number."""
    return bool(torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()]).all())


def out_of_memory(settings: Train, *, total: int, fixed: int, per_token: float, resume: str) -> SaccadeError:
    """The message for a GPU that is too small: how many tokens in a batch would fit, by what one token took."""
    fitting = min(int(MARGIN * (total - fixed) / per_token), int(MARGIN * settings.batch_tokens))
    fitting -= fitting % 8
    gib = 1024**3
    if fitting < 8:
        return SaccadeError(
            f"out of GPU memory: weights, gradients and Adam's state take {fixed / gib:.1f} of {total / gib:.1f} GiB, "
            "so that no batch fits; make the model smaller"
        )
    rest = -(-settings.batch_tokens * settings.accumulate // fitting)
    return SaccadeError(
        f"out of GPU memory ({total / gib:.1f} GiB) with train.batch_tokens={settings.batch_tokens}: about {fitting} "
        f"would fit; try train.batch_tokens={fitting} train.accumulate={rest} (the same batch in pieces) "
        f"or train.recompute=true, and go on with: {resume} ..."
    )


class MemoryWatch:
    """Remembers what the batches so far took of the GPU's memory, for the message when it runs out."""

    def __init__(self, settings: Train, model: nn.Module, device: torch.device) -> None:
        self.settings, self.device = settings, device
        # weights, gradients and the two moments of Adam
        self.fixed = sum(4 * p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self.tokens = 1  # padded tokens of the largest batch tried so far
        self.fitted = False  # whether a step has gone well

    def trying(self, tokens: int) -> None:
        self.tokens = max(self.tokens, tokens)

    def message(self, *, resume: str) -> SaccadeError:
        """The batch that failed wanted at least all there is; one that failed at once, who knows how much: twice."""
        free, _ = torch.cuda.mem_get_info(self.device)
        total = free + torch.cuda.memory_reserved(self.device)
        per_token = max(1.0, (total - self.fixed) / self.tokens) * (1 if self.fitted else 2)
        return out_of_memory(self.settings, total=total, fixed=self.fixed, per_token=per_token, resume=resume)
