"""Checks on results and scale: BLEU and training cost, parameter counts and the price of large models."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.transformer import Block
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
from saccade.lectures.tables import Size, Translation
from saccade.model.build.model import build


@check(
    87,
    "S4:224-235",
    "The Transformer has the best BLEU of the table at the lowest training cost: hours x 8 GPUs x 9.5 TFLOP/s.",
    formula=r"\mathrm{FLOPs} = \mathrm{hours} \cdot 3600 \cdot 8 \cdot 9.5 \cdot 10^{12}",
    code=(tables.load_translations,),
)
def bleu_table() -> CheckResult:
    systems, an_hour = tables.load_translations()
    compared: list[Comparison] = []
    for system in systems:
        if system.hours and system.cost_en_de:
            flops = system.hours * an_hour
            compared.append(
                expect_near(f"{system.name}: FLOPs", flops, system.cost_en_de, within=0.01 * system.cost_en_de)
            )
    big, base = systems[-1], systems[-2]
    assert big.en_de and big.en_fr and base.cost_en_de and big.cost_en_fr
    others = systems[:-2]
    costs = [cost for s in others for cost in (s.cost_en_de, s.cost_en_fr) if cost]
    compared += [
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
    return build_result(*compared, drawing=drawing, table=build_bleu_table(systems))


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


def build_size_table(row: int) -> list[tuple[str, ...]]:
    """Build the lines of the scaling table that belong to a row."""
    titles = ("model", "layers", "width", "heads", "parameters", "counted", "data", "training", "source")
    cells = [
        (
            s.name,
            str(s.layers),
            str(s.width),
            str(s.heads),
            f"{s.said:.3g}",
            f"{count_parameters(s):,}",
            s.data,
            s.training,
            s.source,
        )
        for s in tables.load_sizes()
        if s.row == row
    ]
    return [titles, *cells]


@check(
    88,
    "S3:1788",
    "Transformer-Base: 6 + 6 layers, width 512, 8 heads; 65M in the notes, exactly 63,082,496 with 37,000 tokens.",
    formula=r"6 (12 d^2 + 13 d) + 6 (16 d^2 + 19 d) + V d, \quad d = 512, \quad V = 37,000",
    code=(build,),
)
def transformer_base() -> CheckResult:
    return build_result(*_compare_counts(88), *_compare_head_check(), table=build_size_table(88))


def _compare_head_check() -> list[Comparison]:
    """Expect an error for the 6 heads of S3:1685: 512 is not divisible by 6."""
    try:
        SelfAttention(512, heads=6)
        outcome = "built"
    except SaccadeError:
        outcome = "refused"
    return [expect_equal("width 512 with the 6 heads of S3:1685", outcome, "refused")]


@check(
    89,
    "S3:1789",
    "Transformer-Large (big in the paper): width 1024, 16 heads; 213M parameters in the notes, exactly 214,245,376.",
    formula=r"6 (12 d^2 + 13 d) + 6 (16 d^2 + 19 d) + V d, \quad d = 1024",
    code=(build,),
)
def transformer_big() -> CheckResult:
    return build_result(*_compare_counts(89), table=build_size_table(89))


def _register_count(row: int, where: str, sentence: str, formula: str = r"L (12 d^2 + 13 d) + (V + P) d") -> object:
    """Register the check of one row of the scaling table."""
    decorate = check(row, where, sentence, formula=formula, code=(Block, SelfAttention, FeedForward))
    return decorate(lambda: build_result(*_compare_counts(row), table=build_size_table(row)))


bert = _register_count(
    90, "S3:1790-1791", "BERT-Base has 110M parameters and BERT-Large 340M: counted, 109.48M and 335.14M."
)
xlnet = _register_count(
    91,
    "S3:1792",
    "XLNet-Large has about 340M parameters in the notes; counted, with the keys of relative positions, 360.3M.",
    r"L (13 d^2 + 14 d) + V d + d",
)
roberta = _register_count(92, "S3:1793", "RoBERTa has 355M parameters: counted, 355.36M.")
gpt2 = _register_count(
    93, "S3:1794", "GPT-2 has 1.5B parameters: counted, 1,557.6M; it has 25 heads, which the notes omit."
)
megatron = _register_count(94, "S3:1795", "Megatron-LM has 8.3B parameters: counted, 8.32B with a padded vocabulary.")
turing = _register_count(95, "S3:1796", "Turing-NLG has 17B parameters: counted, 17.18B.")
gpt3 = _register_count(96, "S3:1797", "GPT-3 has 175B parameters: counted, 174.60B.")


@check(
    97,
    "S3:1798",
    "Gopher has 280B parameters: 12 L d² is 257.7B, and 279.7B with keys of relative positions and embeddings.",
    formula=r"13 L d^2 + V d, \quad L = 80, \quad d = 16384",
    code=(Block, SelfAttention, FeedForward),
)
def gopher() -> CheckResult:
    [size] = [size for size in tables.load_sizes() if size.row == 97]
    plain = sum(growth.count_model(size).parts[part] for part in ("self-attention", "feed-forward"))
    every = tables.load_sizes()
    order = [float(number) for number in range(1, len(every) + 1)]
    points = {"in the notes": (order, [s.said for s in every])}
    points["counted"] = (order, [float(count_parameters(s)) for s in every])
    caption = "Parameters of the models in the scaling table, according to the notes and by our count."
    return build_result(
        expect_near("12 L d²", plain, 257.7e9, within=0.05e9),
        *_compare_counts(97),
        drawing=Lines("line of the table", "parameters", points, caption, log_y=True),
        table=build_size_table(97),
    )


@check(
    98,
    "S3:1785",
    "Training Gopher cost $3,768,320: 4096 chips x 920 hours x $1.00; the 38 days of the table give $3,735,552.",
    formula=r"4096 \cdot 920 \cdot 1.00 = 3,768,320",
    code=(growth.compute_cost,),
)
def training_price() -> CheckResult:
    said, found = tables.load_cost()["said"], growth.compute_cost()
    return build_result(
        expect_equal("dollars for 920 hours", round(found.dollars), said),
        expect_equal("dollars for the 38 days of the table, 912 hours", round(found.dollars_of_table), 3_735_552),
        expect_equal("dollars on the slide", said, 3_768_320),
        expect_near(
            "FLOPs over 6 x parameters x 300 billion tokens", found.flops / (6 * 279.7e9 * 300e9), 1.03, within=0.02
        ),
        expect_near("share of the chips' peak FLOP/s in these hours", found.utilisation, 0.31, within=0.01),
    )


def _compare_counts(row: int) -> list[Comparison]:
    """Compare the counted parameters of each model of a row with the exact number and with that of the notes."""
    found = []
    for size in tables.load_sizes():
        if size.row == row:
            counted = count_parameters(size)
            found.append(expect_near(f"{size.name}: parameters", counted, size.computed, within=size.precision))
            found.append(
                expect_near(
                    f"{size.name}: counted parameters over the number of the notes", counted / size.said, 1, within=0.07
                )
            )
            found.append(expect_equal(f"{size.name}: remainder of width divided by heads", size.width % size.heads, 0))
    return found


def count_parameters(size: Size) -> int:
    """Count all parameters of a model of the scaling table."""
    return growth.count_model(size).parameters
