"""Count the parameters of the models in the scaling table, built on the meta device from recipe tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from saccade.config import schema
from saccade.config.load import load
from saccade.lectures import tables
from saccade.lectures.tables import Size
from saccade.model.build.model import build_writer
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.plan.counts import build_on_meta, count_by_part, count_parameters
from saccade.plan.estimate import SECONDS_PER_HOUR
from saccade.plan.flops import Flops, count_flops
from saccade.plan.hardware import get_gpu


class ModelCount(NamedTuple):
    """A model of the table with the notes' numbers and our counts."""

    size: Size
    parameters: int
    parts: dict[str, int]
    flops: Flops


def build_model(size: Size) -> Model:
    """Build a model on the meta device: that of a recipe, or a decoder-only model of this size.

    An encoder such as BERT has the same layers as a decoder without cross-attention; `count_extra` counts the rest.
    """
    if size.recipe:
        return build_on_meta(load(size.recipe), vocabulary=size.vocabulary)
    stack = schema.TransformerStack(
        layers=size.layers,
        dim=size.width,
        heads=size.heads,
        ff=4 * size.width,
        bias=size.biased,
    )
    positions = schema.Learned(length=size.positions) if size.positions else schema.NoPositions()
    with torch.device("meta"), SkipInit():
        writer = schema.TokenWriter(stack=stack, positions=positions, tie="output")
        return Model(None, build_writer(writer, size=size.vocabulary))


def count_extra(size: Size) -> dict[str, int]:
    """Count the parameters that the decoder-only model lacks."""
    width = size.width
    found = {
        "segments": size.segments * width,
        "pooler": (width**2 + width) if size.pooler else 0,
        "norm of the embedding": 2 * width if size.embedding_norm else 0,
        "keys of relative positions": size.layers * width**2 if size.relative else 0,
        "other": size.extra,
    }
    return {name: count for name, count in found.items() if count}


def count_model(size: Size) -> ModelCount:
    model, more = build_model(size), count_extra(size)
    parts = {part: sum(sides.values()) for part, sides in count_by_part(model).items()}
    found = count_flops(model, length=size.length)
    # Keys of relative positions are a matmul per token; the other extra parameters cost hardly any FLOPs.
    relative = 2 * more.get("keys of relative positions", 0)
    found = found._replace(target=found.target + relative)
    return ModelCount(size, count_parameters(model) + sum(more.values()), {**parts, **more}, found)


def count_models() -> list[ModelCount]:
    return [count_model(size) for size in tables.load_sizes()]


def build_table() -> list[tuple[str, ...]]:
    """Build the scaling table: the columns of the notes, and our count of parameters beside theirs."""
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
            format_count(line.size.said),
            f"{line.parameters:,}",
            f"{line.flops.get_training():.2e}",
            line.size.data,
            line.size.training,
        )
        for line in count_models()
    ]
    return [titles, *found]


def format_count(count: float) -> str:
    return f"{count / 1e9:g}B" if count >= 1e9 else f"{count / 1e6:g}M"


def list_differences() -> list[str]:
    """List the models whose number in the notes uses another definition."""
    return [f"{size.name}: {size.why}" for size in tables.load_sizes() if size.why]


class Cost(NamedTuple):
    """The cost of training Gopher, from FLOPs to dollars."""

    flops: float
    hours: float
    utilisation: float  # share of the peak FLOP/s of all chips
    dollars: float
    dollars_of_table: float  # for the number of days in the table


def compute_cost() -> Cost:
    given = tables.load_cost()
    [size] = [size for size in tables.load_sizes() if size.name == given["model"]]
    flops = count_model(size).flops.get_training() * given["tokens"]
    peak, hours = given["chips"] * get_gpu(given["chip"]).half, given["hours"]
    hourly = given["chips"] * given["price"]
    return Cost(flops, hours, flops / (peak * hours * SECONDS_PER_HOUR), hourly * hours, hourly * 24 * given["days"])


def format_cost() -> list[str]:
    """Format the differences from the notes, and the derivation of the largest model's price."""
    given, found = tables.load_cost(), compute_cost()
    chips = f"{given['chips']:,} {given['chip']} chips of {get_gpu(given['chip']).half / 1e12:g} TFLOP/s"
    return [
        *list_differences(),
        "",
        f"{given['model']}: {given['tokens']:.0e} tokens take {found.flops:.2e} FLOPs; {chips} reach "
        f"{found.utilisation:.0%} of their peak if they take {found.hours} hours,",
        f"which at ${given['price']:.2f} per chip and hour cost ${found.dollars:,.0f}; the notes say "
        f"${given['said']:,}. The {given['days']} days of the table would cost ${found.dollars_of_table:,.0f}.",
    ]


def to_dict() -> dict[str, Any]:
    models = [
        {
            **{key: value for key, value in line.size._asdict().items() if value not in ("", None)},
            "parameters": line.parameters,
            "parts": line.parts,
            "training_flops_per_token": line.flops.get_training(),
        }
        for line in count_models()
    ]
    return {"models": models, "cost": {**tables.load_cost(), **compute_cost()._asdict()}}
