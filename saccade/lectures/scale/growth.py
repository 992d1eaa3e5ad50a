"""The table of larger and larger models, built on the meta device from tables of a recipe, and counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from saccade.config import schema
from saccade.config.load import load
from saccade.lectures import tables
from saccade.lectures.tables import Size
from saccade.model.build.model import build_writer
from saccade.model.model import Model
from saccade.model.run import Undrawn
from saccade.plan.counts import by_part, on_meta, parameters
from saccade.plan.estimate import HOUR
from saccade.plan.hardware import gpu
from saccade.plan.work import Work, work


class Line(NamedTuple):
    """A model of the table, as the notes have it and as counted."""

    size: Size
    parameters: int
    parts: dict[str, int]
    work: Work


def built(size: Size) -> Model:
    """The model without its numbers: a recipe's, or a writer of that size alone.

    A reader such as BERT has the same layers as a writer without memory; what it has beyond them, `beside` counts.
    """
    if size.recipe:
        return on_meta(load(size.recipe), vocabulary=size.vocabulary)
    stack = schema.TransformerStack(
        layers=size.layers,
        dim=size.width,
        heads=size.heads,
        ff=4 * size.width,
        bias=size.biased,
    )
    positions = schema.Learned(length=size.positions) if size.positions else schema.NoPositions()
    with torch.device("meta"), Undrawn():
        writer = schema.TokenWriter(stack=stack, positions=positions, tie="output")
        return Model(None, build_writer(writer, size=size.vocabulary))


def beside(size: Size) -> dict[str, int]:
    """Parameters that no recipe has yet."""
    width = size.width
    found = {
        "segments": size.segments * width,
        "pooler": (width**2 + width) if size.pooler else 0,
        "norm of the embedding": 2 * width if size.embedding_norm else 0,
        "keys of relative positions": size.layers * width**2 if size.relative else 0,
        "other": size.extra,
    }
    return {name: count for name, count in found.items() if count}


def counted(size: Size) -> Line:
    model, more = built(size), beside(size)
    parts = {part: sum(sides.values()) for part, sides in by_part(model).items()}
    found = work(model, length=size.length)
    # Keys of relative positions are a product as the others; the rest is used once in a text, or hardly costs anything.
    relative = 2 * more.get("keys of relative positions", 0)
    found = found._replace(target=found.target + relative)
    return Line(size, parameters(model) + sum(more.values()), {**parts, **more}, found)


def lines() -> list[Line]:
    return [counted(size) for size in tables.sizes()]


def table_rows() -> list[tuple[str, ...]]:
    """The notes' columns, our count beside theirs, and why they differ where they do."""
    titles = (
        "row",
        "model",
        "layers",
        "width",
        "heads",
        "notes",
        "counted",
        "FLOPs/token",
        "data",
        "training",
    )
    found = [
        (
            str(line.size.row),
            line.size.name,
            str(line.size.layers),
            f"{line.size.width:,}",
            str(line.size.heads),
            short(line.size.said),
            f"{line.parameters:,}",
            f"{line.work.training():.2e}",
            line.size.data,
            line.size.training,
        )
        for line in lines()
    ]
    return [titles, *found]


def short(count: float) -> str:
    return f"{count / 1e9:g}B" if count >= 1e9 else f"{count / 1e6:g}M"


def why_rows() -> list[str]:
    """Where the notes count by another definition."""
    return [f"{size.name}: {size.why}" for size in tables.sizes() if size.why]


class Cost(NamedTuple):
    """Gopher's training, from operations to dollars."""

    flops: float
    hours: float
    utilisation: float  # of the peak of all chips, which follows from flops and hours
    dollars: float
    dollars_of_table: float  # for the days that the table itself has


def cost() -> Cost:
    given = tables.cost()
    [size] = [size for size in tables.sizes() if size.name == given["model"]]
    flops = counted(size).work.training() * given["tokens"]
    peak, hours = given["chips"] * gpu(given["chip"]).half, given["hours"]
    hourly = given["chips"] * given["price"]
    return Cost(flops, hours, flops / (peak * hours * HOUR), hourly * hours, hourly * 24 * given["days"])


def cost_lines() -> list[str]:
    """What differs and why, and the price of the largest model step by step."""
    given, found = tables.cost(), cost()
    chips = f"{given['chips']:,} {given['chip']} chips of {gpu(given['chip']).half / 1e12:g} TFLOP/s"
    return [
        *why_rows(),
        "",
        f"{given['model']}: {given['tokens']:.0e} tokens take {found.flops:.2e} FLOPs; {chips} reach "
        f"{found.utilisation:.0%} of their peak if they take {found.hours} hours,",
        f"which at ${given['price']:.2f} for a chip and an hour are ${found.dollars:,.0f}; the notes say "
        f"${given['said']:,}. The {given['days']} days of the table are ${found.dollars_of_table:,.0f}.",
    ]


def as_dicts() -> dict[str, Any]:
    models = [
        {
            **{key: value for key, value in line.size._asdict().items() if value not in ("", None)},
            "parameters": line.parameters,
            "parts": line.parts,
            "training_flops_per_token": line.work.training(),
        }
        for line in lines()
    ]
    return {"models": models, "cost": {**tables.cost(), **cost()._asdict()}}
