"""What machines can do, and what was measured on one of them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from saccade.config.kinds import expected_names
from saccade.errors import SaccadeError

GIB = 2**30
TERA = 10**12
DEFAULT = "H200"


class Gpu(NamedTuple):
    name: str
    memory: float  # bytes
    half: float  # FLOP/s of the data sheet, in bfloat16
    single: float | None  # and in float32, where the data sheet says
    reached: float  # share of them that a large matrix product reaches

    def rate(self, *, is_half: bool) -> float:
        """FLOP/s of a large matrix product."""
        if is_half:
            return self.reached * self.half
        if self.single is None:
            raise SaccadeError(f"the speed of a {self.name} in float32 is not known; set train.precision=bf16")
        return self.reached * self.single


@cache
def table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("hardware.toml").read_text("utf-8"))


def measured() -> dict[str, float]:
    """Shares that were measured."""
    return dict(table()["measured"])


def gpu(name: str) -> Gpu:
    """The accelerator of that name, in capital or small letters."""
    known = table()["gpus"]
    found = {key.lower(): key for key in known}.get(name.lower())
    if found is None:
        raise SaccadeError(f"unknown GPU '{name}'{expected_names('GPUs', name.upper(), known)}")
    values = known[found]
    half = values["half"] * TERA
    reached = values["reached"] * TERA / half if "reached" in values else measured()["reached"]
    single = values["single"] * TERA if "single" in values else None
    return Gpu(found, values["memory"] * GIB, half, single, reached)
