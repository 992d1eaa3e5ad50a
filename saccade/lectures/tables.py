"""Two tables of the lecture notes, stored as TOML: BLEU and training cost, and the sizes of Transformers."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Translation(NamedTuple):
    """A row of the table of BLEU and training cost; None where the table has no value."""

    name: str
    en_de: float | None = None
    en_fr: float | None = None
    cost_en_de: float | None = None  # floating-point operations
    cost_en_fr: float | None = None


class Size(NamedTuple):
    """A row of the scaling table, with the settings that determine the number of parameters."""

    row: int
    name: str
    recipe: str  # that builds it
    layers: int
    width: int
    heads: int
    vocabulary: int
    said: float  # parameters according to the notes
    computed: int  # parameters of the released model, or by the formula of the paper
    source: str
    length: int = 512  # tokens of a training sequence
    overrides: tuple[str, ...] = ()  # changes of the recipe
    why: str = ""  # why the number of the notes differs
    data: str = ""
    training: str = ""


@cache
def read_table(name: str) -> dict[str, Any]:
    """Read a TOML file of this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


def load_translations() -> tuple[list[Translation], float]:
    """Return the rows, and the FLOPs per hour of the GPUs in the paper."""
    table = read_table("bleu.toml")
    return [Translation(**row) for row in table["systems"]], table["gpus"] * table["gpu_flops"] * 3600


def load_sizes() -> list[Size]:
    return [Size(**row) for row in read_table("scaling.toml")["models"]]


def load_cost() -> dict[str, Any]:
    return dict(read_table("scaling.toml")["cost"])
