"""Data sheets of GPUs, and measured shares of their speed (hardware.toml)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from saccade.config.kinds import format_suggestion
from saccade.errors import SaccadeError

GIB = 2**30
TERA = 10**12
DEFAULT_GPU = "H200"


class Gpu(NamedTuple):
    name: str
    memory: float  # bytes
    half: float  # FLOP/s in bfloat16, from the data sheet
    single: float | None  # FLOP/s in float32, if the data sheet has it
    reached: float  # share of them that a large matmul reaches

    def get_matmul_flops(self, *, is_bf16: bool) -> float:
        """Return the FLOP/s of a large matmul."""
        if is_bf16:
            return self.reached * self.half
        if self.single is None:
            raise SaccadeError(f"the speed of a {self.name} in float32 is not known; set train.precision=bf16")
        return self.reached * self.single


@cache
def read_table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("hardware.toml").read_text("utf-8"))


def get_measured() -> dict[str, float]:
    """Return the measured shares: MFU by kind of model, share of a whole run, share of the data sheet."""
    return dict(read_table()["measured"])


def get_gpu(name: str) -> Gpu:
    """Return the accelerator of this name; case does not matter."""
    known = read_table()["gpus"]
    found = {key.lower(): key for key in known}.get(name.lower())
    if found is None:
        raise SaccadeError(f"unknown GPU '{name}'{format_suggestion('GPUs', name.upper(), known)}")
    values = known[found]
    half = values["half"] * TERA
    reached = values["reached"] * TERA / half if "reached" in values else get_measured()["reached"]
    single = values["single"] * TERA if "single" in values else None
    return Gpu(found, values["memory"] * GIB, half, single, reached)
