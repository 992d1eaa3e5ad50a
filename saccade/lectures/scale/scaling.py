"""Rows about results and size: BLEU and cost of the systems, parameters and price of larger and larger models."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.transformer import Block
from saccade.lectures import tables
from saccade.lectures.claims import Compared, Measured, at_least, at_most, check, measured, near, same
from saccade.lectures.drawing import Lines
from saccade.lectures.scale import growth
from saccade.lectures.tables import Size, Translation
from saccade.model.build.model import build


@check(
    87,
    "S4:224-235",
    "The Transformer has the best BLEU of the table at the smallest cost; cost is hours x 8 GPUs x 9.5 TFLOPS.",
    formula=r"\mathrm{FLOPs} = \mathrm{hours} \cdot 3600 \cdot 8 \cdot 9.5 \cdot 10^{12}",
    code=(tables.translations,),
)
def bleu_table() -> Measured:
    systems, an_hour = tables.translations()
    compared: list[Compared] = []
    for system in systems:
        if system.hours and system.cost_en_de:
            flops = system.hours * an_hour
            compared.append(near(f"{system.name}: FLOPs", flops, system.cost_en_de, within=0.01 * system.cost_en_de))
    big, base = systems[-1], systems[-2]
    assert big.en_de and big.en_fr and base.cost_en_de and big.cost_en_fr
    others = systems[:-2]
    costs = [cost for s in others for cost in (s.cost_en_de, s.cost_en_fr) if cost]
    compared += [
        at_least("big, EN-DE: lead over the best other system", big.en_de - max(s.en_de or 0 for s in others), 2.0),
        at_least("big, EN-FR: lead over the best other system", big.en_fr - max(s.en_fr or 0 for s in others), 0.4),
        at_most("base: cost over that of the cheapest other system", base.cost_en_de / min(costs), 0.5),
        same("systems of the table", len(systems), 10),
    ]
    points = {s.name: ([s.cost_en_de], [s.en_de]) for s in systems if s.cost_en_de and s.en_de}
    caption = "BLEU on newstest2014 English-German against the cost of training, as the notes print them."
    drawing = Lines("training cost (FLOPs)", "BLEU EN-DE", points, caption, log_x=True)
    return measured(*compared, drawing=drawing, table=bleu_rows(systems))


def bleu_rows(systems: Sequence[Translation]) -> list[tuple[str, ...]]:
    """The table as the notes print it."""
    titles = ("system", "BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR")
    cells = [
        (s.name, *(_or_nothing(v, "g") for v in s[1:3]), *(_or_nothing(v, ".1e") for v in s[3:5])) for s in systems
    ]
    return [titles, *cells]


def _or_nothing(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def size_rows(row: int) -> list[tuple[str, ...]]:
    """The lines of the scaling table that belong to a row."""
    titles = ("model", "layers", "width", "heads", "parameters", "counted", "data", "training", "source")
    cells = [
        (
            s.name,
            str(s.layers),
            str(s.width),
            str(s.heads),
            f"{s.said:.3g}",
            f"{parameters(s):,}",
            s.data,
            s.training,
            s.source,
        )
        for s in tables.sizes()
        if s.row == row
    ]
    return [titles, *cells]


@check(
    88,
    "S3:1788",
    "Transformer-Base: 6 + 6 layers of width 512 with 8 heads; 65M in the notes, exactly 63,082,496 at 37,000 pieces.",
    formula=r"6 (12 d^2 + 13 d) + 6 (16 d^2 + 19 d) + V d, \quad d = 512, \quad V = 37,000",
    code=(build,),
)
def transformer_base() -> Measured:
    return measured(*_counted(88), *_heads_must_divide(), table=size_rows(88))


def _heads_must_divide() -> list[Compared]:
    """The 6 heads of S3:1685 are impossible: 512 / 6 is no whole number."""
    try:
        SelfAttention(512, heads=6)
        said = "built"
    except SaccadeError:
        said = "refused"
    return [same("width 512 with the 6 heads of S3:1685", said, "refused")]


@check(
    89,
    "S3:1789",
    "Transformer-Large, which the paper calls big: width 1024, 16 heads; 213M in the notes, exactly 214,245,376.",
    formula=r"6 (12 d^2 + 13 d) + 6 (16 d^2 + 19 d) + V d, \quad d = 1024",
    code=(build,),
)
def transformer_big() -> Measured:
    return measured(*_counted(89), table=size_rows(89))


def _by_layers(row: int, where: str, sentence: str, formula: str = r"L (12 d^2 + 13 d) + (V + P) d") -> object:
    """A check of one row of the table whose parameters are counted layer by layer."""
    decorate = check(row, where, sentence, formula=formula, code=(Block, SelfAttention, FeedForward))
    return decorate(lambda: measured(*_counted(row), table=size_rows(row)))


bert = _by_layers(
    90, "S3:1790-1791", "BERT-Base has 110M parameters and BERT-Large 340M: counted, 109.48M and 335.14M."
)
xlnet = _by_layers(
    91,
    "S3:1792",
    "XLNet-Large has about 340M parameters in the notes; with the keys of relative positions it has 360.3M.",
    r"L (13 d^2 + 14 d) + V d + d",
)
roberta = _by_layers(92, "S3:1793", "RoBERTa has 355M parameters: counted, 355.36M.")
gpt2 = _by_layers(
    93, "S3:1794", "GPT-2 has 1.5B parameters: counted, 1,557.6M; the heads that the notes leave open are 25."
)
megatron = _by_layers(94, "S3:1795", "Megatron-LM has 8.3B parameters: counted, 8.32B with a padded vocabulary.")
turing = _by_layers(95, "S3:1796", "Turing-NLG has 17B parameters: counted, 17.18B.")
gpt3 = _by_layers(96, "S3:1797", "GPT-3 has 175B parameters: counted, 174.60B.")


@check(
    97,
    "S3:1798",
    "Gopher has 280B parameters: 12 L d² is 257.7B, and 279.7B with keys of relative positions and embeddings.",
    formula=r"13 L d^2 + V d, \quad L = 80, \quad d = 16384",
    code=(Block, SelfAttention, FeedForward),
)
def gopher() -> Measured:
    [size] = [size for size in tables.sizes() if size.row == 97]
    plain = sum(growth.counted(size).parts[part] for part in ("self-attention", "feed-forward"))
    every = tables.sizes()
    order = [float(number) for number in range(1, len(every) + 1)]
    points = {"said in the notes": (order, [s.said for s in every])}
    points["counted"] = (order, [float(parameters(s)) for s in every])
    caption = "Parameters of the models of the scaling table, in its order, as the notes say and as counted."
    return measured(
        near("12 L d²", plain, 257.7e9, within=0.05e9),
        *_counted(97),
        drawing=Lines("line of the table", "parameters", points, caption, log_y=True),
        table=size_rows(97),
    )


@check(
    98,
    "S3:1785",
    "Gopher's training cost $3,768,320: 4096 chips x 920 hours x $1.00; the table's own 38 days give $3,735,552.",
    formula=r"4096 \cdot 920 \cdot 1.00 = 3,768,320",
    code=(growth.cost,),
)
def price() -> Measured:
    said, found = tables.cost()["said"], growth.cost()
    return measured(
        same("dollars for 920 hours", round(found.dollars), said),
        same("dollars for the 38 days of the table, 912 hours", round(found.dollars_of_table), 3_735_552),
        same("dollars on the slide", said, 3_768_320),
        near("FLOPs over 6 x parameters x 300 billion tokens", found.flops / (6 * 279.7e9 * 300e9), 1.03, within=0.02),
        near("share of the chips' peak that these hours mean", found.utilisation, 0.31, within=0.01),
    )


def _counted(row: int) -> list[Compared]:
    """Each model of a row: what was counted against what it must be, and against the notes' rounded number."""
    found = []
    for size in tables.sizes():
        if size.row == row:
            counted = parameters(size)
            found.append(near(f"{size.name}: parameters", counted, size.computed, within=size.precision))
            found.append(near(f"{size.name}: over the number of the notes", counted / size.said, 1, within=0.07))
            found.append(same(f"{size.name}: width divided by heads leaves", size.width % size.heads, 0))
    return found


def parameters(size: Size) -> int:
    """All numbers that a model learns; matrices are made without memory for their numbers."""
    return growth.counted(size).parameters
