"""Checks on cost: training FLOPs and hours of the Transformer beside other systems, and the price of Gopher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.config.load import load
from saccade.lectures import tables
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.scale import growth
from saccade.lectures.tables import Translation
from saccade.model.model import Model
from saccade.plan.estimate import DEFAULT_LENGTH, Plan, PlanRequest, make_plan
from saccade.plan.flops import count_flops

VOCABULARY = 37_000  # tokens, of English and German
GNMT_SIZE = [f"{side}.stack.{size}" for side in ("reader", "writer") for size in ("layers=8", "dim=1024")]


class Training(NamedTuple):
    """A training of the Transformer paper (sections 5.1 to 5.3, table 3)."""

    name: str  # in the table of BLEU and cost
    recipe: str
    layers: int  # of encoder and of decoder
    width: int  # D; the feed-forward network has 4 D
    steps: int
    hours: float


BASE = Training("Transformer (base model)", "transformer", 6, 512, 100_000, 12.0)
BIG = Training("Transformer (big)", "transformer-big", 6, 1024, 300_000, 84.0)
BATCH_TOKENS = 25_000  # of a step, on each side
P100_FLOPS, TPU_V3_FLOPS = 10.6e12, 123e12  # a second, by the data sheets: float32 and bfloat16
PLAN_SHARE = 0.80 * 0.98  # of the data sheet that a plan reaches at an MFU of 1: a large matmul, a whole training
SECONDS = 3600  # of an hour


def count_pair_flops(training: Training, length: int) -> float:
    """FLOPs of a forward pass per source token and target token, by the formula: 2 per weight, 4 D per score."""
    layers, d = training.layers, training.width
    read = layers * (4 * d**2 + 8 * d**2)  # self-attention, feed-forward
    write = layers * (4 * d**2 + 4 * d**2 + 8 * d**2) + VOCABULARY * d  # and cross-attention; the output matrix
    scores = 3 * layers * length * d  # of both self-attentions and of cross-attention
    return 2 * (read + write) + 4 * scores


def plan_training(training: Training, flop_rate: float) -> Plan:
    """Plan a training on 8 P100 that reach this number of FLOP/s together."""
    given = load(training.recipe)
    batch = given.train.batch_tokens // 8  # that of the recipe is for all GPUs
    recipe = load(training.recipe, overrides=["train.precision=fp32", f"train.batch_tokens={batch}"])
    share = flop_rate / (8 * P100_FLOPS * PLAN_SHARE)
    return make_plan(recipe, PlanRequest(vocabulary=VOCABULARY, gpu="P100", gpus=8, mfu=share))


@torch.no_grad()
def count_executed_flops(model: Model, length: int) -> float:
    """FLOPs per source token and target token that torch counts in a forward pass, on the meta device."""
    model.eval()
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    mask = torch.ones(1, length, dtype=torch.bool, device="meta")
    with FlopCounterMode(display=False) as counter:
        model.writer.head(model.writer(ids, mask, model.reader(ids, mask)))
    return counter.get_total_flops() / length


def count_training_flops(training: Training) -> float:
    """FLOPs of a whole training by the formula; the backward pass costs twice the forward pass."""
    return 3 * count_pair_flops(training, DEFAULT_LENGTH) * training.steps * BATCH_TOKENS


def compare_training(training: Training, cost: float) -> list[Comparison]:
    """Compare the FLOPs of a plan with formula, execution and table, and its hours with those of the paper."""
    name, (_, an_hour), expected = training.name, tables.load_translations(), count_training_flops(training)
    plan = plan_training(training, expected / (training.hours * SECONDS))
    hours, flops = plan.time.hours or 0.0, (plan.time.tokens or 0) * plan.time.flops_per_token
    forward = (plan.flops.source + plan.flops.target) / count_executed_flops(plan.model, DEFAULT_LENGTH)
    return [
        expect_near(f"{name}: FLOPs", hours * an_hour, cost, within=0.01 * cost),
        expect_near(f"{name}: hours on 8 P100", hours, training.hours, within=0.005 * training.hours),
        expect_near(f"{name}: FLOPs of training over those of the formula", flops / expected, 1, within=0.005),
        expect_near(f"{name}: FLOPs of a forward pass over those that torch counts in it", forward, 1, within=0.005),
        expect_equal(f"{name}: tokens of both sides", plan.time.tokens or 0.0, 2.0 * training.steps * BATCH_TOKENS),
    ]


@check(
    87,
    "S4:224-235",
    "The Transformer has the best BLEU of the table at the lowest training cost: hours x 8 GPUs x 9.5 TFLOP/s.",
    formula=r"\mathrm{FLOPs} = \mathrm{hours} \cdot 3600 \cdot 8 \cdot 9.5 \cdot 10^{12}",
    code=(make_plan, count_flops),
    recipes=("bytenet", "convs2s", "deep-att", "gnmt", "gnmt-reward", "mask-predict", "moe", "nat"),
    breaks=(
        "scores-not-counted", "output-not-counted", "free-backward-pass", "one-gpu", "narrow-feed-forward",
        "one-layer-more",
    ),
)  # fmt: skip
def bleu_table() -> CheckResult:
    systems, _ = tables.load_translations()
    big, base = systems[-1], systems[-2]
    assert big.en_de and big.en_fr and base.cost_en_de and big.cost_en_de
    others = systems[:-2]
    costs = [cost for s in others for cost in (s.cost_en_de, s.cost_en_fr) if cost]
    compared = [*compare_training(BASE, base.cost_en_de), *compare_training(BIG, big.cost_en_de)]
    flops = [count_training_flops(training) for training in (BASE, BIG)]
    recurrent = make_plan(load("gnmt", overrides=GNMT_SIZE), PlanRequest(vocabulary=32_000)).flops
    attention = make_plan(load("transformer"), PlanRequest(vocabulary=VOCABULARY)).flops
    compared += [
        expect_at_least(
            "FLOPs per token of GNMT, 8 + 8 LSTM layers of 1024, over those of the base model",
            recurrent.mean / attention.mean,
            3.0,
        ),
        expect_at_least(
            "big, EN-DE: lead over the best other system", big.en_de - max(s.en_de or 0 for s in others), 2.0
        ),
        expect_at_least(
            "big, EN-FR: lead over the best other system", big.en_fr - max(s.en_fr or 0 for s in others), 0.4
        ),
        expect_at_most("base: cost over that of the cheapest other system", base.cost_en_de / min(costs), 0.5),
        expect_equal("systems of the table", len(systems), 10),
    ]
    points = {s.name: ([s.cost_en_de], [s.en_de]) for s in systems if s.cost_en_de and s.en_de}
    caption = "BLEU on newstest2014 English-German against training cost, as printed in the notes."
    drawing = Lines("training cost (FLOPs)", "BLEU EN-DE", points, caption, log_x=True)
    note = (
        "The table counts GPU time at a sustained 9.5 TFLOP/s. The products of matrices in these trainings take "
        f"{flops[0]:.2g} FLOPs (base) and {flops[1]:.2g} (big), {flops[0] / base.cost_en_de:.0%} and "
        f"{flops[1] / big.cost_en_de:.0%} of it."
    )
    return build_result(*compared, drawing=drawing, note=note, table=build_bleu_table(systems))


def build_bleu_table(systems: Sequence[Translation]) -> list[tuple[str, ...]]:
    """Build the table as printed in the notes."""
    titles = ("system", "BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR")
    cells = [
        (s.name, *(_format_optional(v, "g") for v in s[1:3]), *(_format_optional(v, ".1e") for v in s[3:5]))
        for s in systems
    ]
    return [titles, *cells]


def _format_optional(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def count_gopher_flops(layers: int, d: int, vocabulary: int, length: int) -> float:
    """Training FLOPs per token by the formula: 2 per weight, 4 D per score, and twice that for the backward pass."""
    weights = (
        layers * (4 + 8 + 1) * d**2 + vocabulary * d
    )  # attention, feed-forward, keys of relative positions; output
    return 3 * (2 * weights + 4 * layers * length * d)


@check(
    98,
    "S3:1785",
    "Training Gopher cost $3,768,320: 4096 chips x 920 hours x $1.00; the 38 days of the table give $3,735,552.",
    formula=r"4096 \cdot 920 \cdot 1.00 = 3,768,320",
    code=(growth.compute_cost, make_plan),
    recipes=("gopher",),
    breaks=(
        "scores-not-counted", "output-not-counted", "free-backward-pass", "one-gpu", "price-of-one-gpu",
        "narrow-feed-forward",
    ),
)  # fmt: skip
def training_price() -> CheckResult:
    given, time = tables.load_cost(), growth.plan_training()
    flops = count_gopher_flops(80, 16_384, 32_000, 2_048) * 300e9
    an_hour = 4096 * TPU_V3_FLOPS * PLAN_SHARE * SECONDS
    paper, table = (replace(time, mfu=flops / (an_hour * hours)) for hours in (920, 38 * 24))
    shown = growth.compute_cost()
    return build_result(
        expect_near("FLOPs over those of the formula", shown.flops / flops, 1, within=0.001),
        expect_near("hours on 4096 chips at 31% of their peak", paper.hours or 0.0, 920, within=1),
        expect_near("dollars for 920 hours", paper.dollars or 0.0, 3_768_320, within=3_768),
        expect_near("dollars for the 38 days of the table, 912 hours", table.dollars or 0.0, 3_735_552, within=3_736),
        expect_near("dollars of the table of saccade plan", shown.dollars, given["said"], within=1),
        expect_near(
            "FLOPs over 6 x parameters x 300 billion tokens", flops / (6 * 279.7e9 * 300e9), 1.02, within=0.005
        ),
        expect_near("share of the chips' peak FLOP/s in these hours", shown.utilisation, 0.31, within=0.005),
        note="The share of the peak follows from the FLOPs of the formula and the hours of the paper.",
    )
