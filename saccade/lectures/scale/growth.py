"""Count the parameters of the models in the scaling table, built from recipes on the meta device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.lectures import tables
from saccade.lectures.tables import Size
from saccade.model.model import Model
from saccade.plan.counts import build_on_meta, count_by_part, count_parameters, get_predicted_share
from saccade.plan.estimate import SECONDS_PER_HOUR, PlanRequest, TrainingTime, make_plan
from saccade.plan.flops import Flops, count_flops
from saccade.plan.hardware import get_gpu


class ModelCount(NamedTuple):
    """A model of the table with the notes' numbers and our counts."""

    size: Size
    model: Model  # on the meta device
    parameters: int
    parts: dict[str, int]
    flops: Flops


def build_model(size: Size) -> Model:
    """Build a model of the table on the meta device."""
    return build_on_meta(load_recipe(size), vocabulary=size.vocabulary)


def load_recipe(size: Size) -> Recipe:
    return load(size.recipe, overrides=list(size.overrides))


def count_model(size: Size) -> ModelCount:
    """Count the parameters and FLOPs of a model of the table."""
    recipe, model = load_recipe(size), build_model(size)
    parts = {part: sum(sides.values()) for part, sides in count_by_part(model).items()}
    flops = count_flops(model, length=size.length, predicted_share=get_predicted_share(recipe, model))
    return ModelCount(size, model, count_parameters(model), parts, flops)


def count_models() -> list[ModelCount]:
    return [count_model(size) for size in tables.load_sizes()]


def build_table() -> list[tuple[str, ...]]:
    """Build the scaling table: the columns of the notes, and our count of parameters beside theirs."""
    titles = (
        "row",
        "model",
        "recipe",
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
            line.size.recipe,
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


def plan_training() -> TrainingTime:
    """Plan the training of Gopher on the chips of the table, at full speed."""
    given = tables.load_cost()
    [size] = [size for size in tables.load_sizes() if size.name == given["model"]]
    request = PlanRequest(
        vocabulary=size.vocabulary, tokens=given["tokens"], length=size.length, gpu=given["chip"],
        gpus=given["chips"], price=given["price"], mfu=1,
    )  # fmt: skip
    return make_plan(load_recipe(size), request).time


def use_share(time: TrainingTime, share: float) -> TrainingTime:
    """The same training at this share of the peak FLOP/s of its chips."""
    peak = get_gpu(tables.load_cost()["chip"]).half
    return replace(time, mfu=share * peak / (time.matmul_flops * time.end_to_end))


def compute_cost() -> Cost:
    """Compute FLOPs, hours and dollars: the hours of the paper give the share of the peak, and a plan the rest."""
    given, time = tables.load_cost(), plan_training()
    peak = given["chips"] * get_gpu(given["chip"]).half * SECONDS_PER_HOUR
    flops = time.flops_per_token * given["tokens"]
    used = [flops / (peak * hours) for hours in (given["hours"], 24 * given["days"])]
    found, table = (use_share(time, share) for share in used)
    return Cost(flops, found.hours or 0.0, used[0], found.dollars or 0.0, table.dollars or 0.0)


def format_cost() -> list[str]:
    """Format the differences from the notes, and the derivation of the largest model's price."""
    given, found = tables.load_cost(), compute_cost()
    chips = f"{given['chips']:,} {given['chip']} chips of {get_gpu(given['chip']).half / 1e12:g} TFLOP/s"
    return [
        *list_differences(),
        "",
        f"{given['model']}: {given['tokens']:.0e} tokens take {found.flops:.2e} FLOPs; {chips} reach "
        f"{found.utilisation:.0%} of their peak if they take {found.hours:.0f} hours,",
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
