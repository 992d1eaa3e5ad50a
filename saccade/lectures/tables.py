"""The two tables of the notes, which are data of this package: BLEU and cost, and the growth of Transformers."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, NamedTuple


class Translation(NamedTuple):
    """A row of the table of BLEU and cost; None where the table has no number."""

    name: str
    en_de: float | None = None
    en_fr: float | None = None
    cost_en_de: float | None = None  # floating-point operations
    cost_en_fr: float | None = None
    hours: float | None = None  # of training, where the paper says how long


class Size(NamedTuple):
    """A row of the scaling table, and what is needed to count the parameters."""

    row: int
    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    said: float  # parameters in the notes
    computed: float  # and by counting
    source: str
    precision: float = 0.0  # of `computed`
    positions: int = 0  # learned ones
    segments: int = 0
    pooler: bool = False
    embedding_norm: bool = False
    relative: bool = False  # one more D x D in each layer, for the keys of relative positions
    biased: bool = True  # linear layers have biases
    extra: int = 0
    length: int = 512  # tokens of a text in training
    recipe: str = ""  # of which it is built, instead of from the sizes
    why: str = ""  # where the notes' number counts something else
    data: str = ""
    training: str = ""


def read(name: str) -> dict[str, Any]:
    """A table of this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


def translations() -> tuple[list[Translation], float]:
    """The rows, and the operations that the paper's GPUs do in an hour."""
    table = read("bleu.toml")
    return [Translation(**row) for row in table["systems"]], table["gpus"] * table["gpu_flops"] * 3600


def sizes() -> list[Size]:
    return [Size(**row) for row in read("scaling.toml")["models"]]


def cost() -> dict[str, Any]:
    return dict(read("scaling.toml")["cost"])
