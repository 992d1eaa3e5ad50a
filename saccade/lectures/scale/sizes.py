"""Checks on the scaling table: each model is built from its recipe, counted, and compared with its papers' formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.positions import TransformerXL
from saccade.layers.blocks.transformer import Block
from saccade.lectures import tables
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import apply_linear, apply_rms_norm, find_segments, gelu, gelu_tanh
from saccade.lectures.references.transformer import Style, compute_two_streams, decode, decode_text, encode, encode_text
from saccade.lectures.scale import growth
from saccade.lectures.scale.growth import ModelCount
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.lectures.tables import Size
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.writers.labels import pool_states
from saccade.model.writers.masked import StatesWriter
from saccade.model.writers.permuted import PermutedWriter
from saccade.plan.counts import build_on_meta, count_parameters

Counts = dict[str, int]
VOCABULARY, LENGTH = 23, 7  # of the small models that are compared with the formulas
GPT = Style(activation=gelu_tanh, pre_norm=True)


# ---- parameters by the formulas of the papers


def count_layers(layers: int, d: int, *, attention_bias: bool = True, bias: bool = True) -> Counts:
    """Self-attention (four D x D matrices), and a feed-forward network that is four times as wide."""
    attention, feedforward = 4 * d * d + 4 * d * attention_bias, 8 * d * d + 5 * d * bias
    return {"self-attention": layers * attention, "feed-forward": layers * feedforward}


def count_translation(layers: int, d: int, vocabulary: int) -> Counts:
    """Half of the layers read, the others write and also attend to the encoder; one table of token vectors."""
    cross, norms = layers // 2 * (4 * d * d + 4 * d), 2 * d * (2 * layers // 2 + 3 * layers // 2)
    return {"embedding": vocabulary * d, **count_layers(layers, d), "cross-attention": cross, "norms": norms, "head": 0}


def count_encoder(layers: int, d: int, vocabulary: int, *, segments: int, positions: int) -> Counts:
    tables = {"embedding": (vocabulary + segments) * d, "positions": positions * d}
    return {**tables, **count_layers(layers, d), "norms": 2 * d * (2 * layers + 1), "head": d * d + d}


def count_permuted(layers: int, d: int, vocabulary: int) -> Counts:
    """Each layer also has a matrix for relative positions, three biases of queries and two vectors for segments."""
    relative = layers * (d * d + 3 * d + 2 * d)
    inner = count_layers(layers, d, attention_bias=False)
    head = {"head": vocabulary, "other": d}  # the output's bias, and the vector of queries
    return {"embedding": vocabulary * d, "relative positions": relative, **inner, "norms": 4 * d * layers, **head}


def count_decoder(layers: int, d: int, vocabulary: int, *, positions: int) -> Counts:
    tables = {"embedding": vocabulary * d, "positions": positions * d}
    return {**tables, **count_layers(layers, d), "norms": 2 * d * (2 * layers + 1), "head": 0}


def count_gopher(layers: int, d: int, vocabulary: int) -> Counts:
    """Keys of relative positions and one bias of queries; RMSNorm, and no other biases."""
    relative = {"relative positions": layers * (d * d + d)}
    inner = count_layers(layers, d, attention_bias=False, bias=False)
    return {"embedding": vocabulary * d, **relative, **inner, "norms": d * (2 * layers + 1), "head": 0}


# ---- outputs of small models by the formulas of the papers


def sample_ids(*, end: bool = False) -> tuple[Tensor, Tensor]:
    """Two rows of token ids and their mask: the second one is shorter; with `end`, both have two segments."""
    ids, mask = torch.randint(4, VOCABULARY, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, LENGTH - 2 :] = False
    ids[:, 2] = 2 if end else ids[:, 2]
    return ids * mask, mask


def run_translation(model: Model) -> tuple[Tensor, Tensor]:
    (source, mask), (target, written) = sample_ids(), sample_ids()
    found = model.writer.head(model.writer(target, written, model.reader(source, mask)))
    expected = apply_linear(model.writer.output, decode(model, target, encode(model, source, mask), mask))
    return found[written], expected[written]


def run_encoder(model: Model, style: Style) -> tuple[Tensor, Tensor]:
    ids, mask = sample_ids(end=True)
    memory = model.reader(ids, mask)
    found = torch.cat((memory.states, model.writer.hidden(pool_states(memory, "first"))[:, None]), 1)
    real = F.pad(mask, (0, 1), value=True)
    states = encode_text(model, ids, style, mask)
    expected = torch.cat((states, apply_linear(model.writer.hidden, states[:, :1]).tanh()), 1)
    return found[real], expected[real]


def run_permuted(model: Model) -> tuple[Tensor, Tensor]:
    ids, mask = sample_ids(end=True)
    order, at = torch.stack([torch.randperm(LENGTH) for _ in ids]), torch.arange(LENGTH).expand_as(ids)
    streams = model.writer(model.reader, ids, order, at=at, keep=mask, segments=find_segments(ids))
    rows = [
        compute_two_streams(model, *row, at=torch.arange(len(row[0])), segments=find_segments(row[0]))
        for row in ((one[real], ranks[real]) for one, ranks, real in zip(ids, order, mask, strict=True))
    ]
    expected = apply_linear(model.writer.output, pad_sequence([row.query for row in rows], batch_first=True))
    sees_some = mask & ((order[:, None] < order[:, :, None]) & mask[:, None]).any(-1)
    return model.writer.head(streams.query)[sees_some], expected[sees_some]


def run_decoder(model: Model, style: Style, windows: Sequence[int | None] = (None,)) -> tuple[Tensor, Tensor]:
    ids, mask = sample_ids()
    found = model.writer.head(model.writer(ids, mask, None))
    return found[mask], apply_linear(model.writer.output, decode_text(model.writer, ids, style, windows))[mask]


def build_small_model(size: Size, changes: Sequence[str]) -> Model:
    """Build the model of a recipe with two layers of width 12, in float64, with random biases and norms."""
    given = load(size.recipe)
    sides = [name for name, part in (("reader", given.reader), ("writer", given.writer)) if part.embedding_tables]
    sizes = [f"{side}.stack.{item}" for side in sides for item in ("layers=2", "dim=12", "heads=3", "ff=20")]
    recipe = load(size.recipe, overrides=[*size.overrides, *sizes, *changes])
    model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY).double().eval()
    return randomize_parameters(model)


def count_unused(model: Model, output: Tensor) -> int:
    """The parameters that do not change an output: matrices and vectors without any gradient.

    The matrices of queries, keys and values, which are stored as one parameter of four dimensions, count one by one.
    """
    model.zero_grad()
    if output.requires_grad:
        (output * torch.randn_like(output)).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    parts = [part for grad in grads for part in (grad.unbind(1) if grad.dim() == 4 else [grad])]
    return sum(part.numel() for part in parts if not part.any())


# ---- the rows


def compare_size(
    counted: ModelCount, parts: Counts, run: Callable[[Model], tuple[Tensor, Tensor]], changes: Sequence[str] = ()
) -> list[Comparison]:
    """Compare a model with the numbers of the notes, its parts with a formula, its outputs with those written out."""
    size, built = counted.size, counted.model
    name, small = size.name, f"{size.name}, two layers of width 12"
    stacks = [part.stack for part in (built.reader, built.writer) if part is not None and part.stack is not None]
    heads, _, head_dim, width = stacks[-1].blocks[0].self.project.weight.shape
    model = build_small_model(size, changes)
    found, expected = run(model)
    ratio = counted.parameters / size.said
    return [
        expect_equal(f"{name}: parameters", counted.parameters, size.computed),
        expect_near(f"{name}: counted parameters over the number of the notes", ratio, 1, within=0.07),
        *(expect_equal(f"{name}: parameters, {part}", counted.parts.get(part, 0), n) for part, n in parts.items()),
        expect_equal(f"{name}: parameters of other parts", sum(counted.parts.values()) - sum(parts.values()), 0),
        expect_equal(f"{name}: layers of the built model", sum(len(stack.blocks) for stack in stacks), size.layers),
        expect_equal(f"{name}: width of the built model", width, size.width),
        expect_equal(f"{name}: heads of the built model", heads, size.heads),
        expect_equal(f"{name}: remainder of width divided by heads", width - heads * head_dim, 0),
        expect_at_most(
            f"{small}: largest difference of outputs from the formulas written out",
            max_difference(found, expected),
            1e-5,
        ),
        expect_equal(f"{small}: parameters that no output depends on", count_unused(model, found), 0),
    ]


def check_size(
    row: int,
    count: Callable[[int, int, int], Counts],
    run: Callable[[Model], tuple[Tensor, Tensor]],
    *changes: str,
    more: Sequence[Comparison] = (),
    drawing: Lines | None = None,
) -> CheckResult:
    """Check all models of a row; `changes` are those of its recipe at the small size."""
    models = [growth.count_model(size) for size in tables.load_sizes() if size.row == row]
    compared = [
        comparison
        for found in models
        for comparison in compare_size(
            found, count(found.size.layers, found.size.width, found.size.vocabulary), run, changes
        )
    ]
    return build_result(*compared, *more, drawing=drawing, table=build_size_table(models))


def build_size_table(models: Sequence[ModelCount]) -> list[tuple[str, ...]]:
    """Build the lines of the scaling table for these models."""
    titles = ("model", "layers", "width", "heads", "parameters", "counted", "data", "training", "source")
    cells = [
        (
            *(size.name, str(size.layers), str(size.width), str(size.heads), f"{size.said:.3g}"),
            *(f"{found.parameters:,}", size.data, size.training, size.source),
        )
        for found in models
        for size in [found.size]
    ]
    return [titles, *cells]


TRANSFORMER_FORMULA = r"6 (12 d^2 + 13 d) + 6 (16 d^2 + 19 d) + V d"
DECODER_FORMULA = r"L (12 d^2 + 13 d) + (V + P) d + 2 d"
GENERAL_BREAKS = ("uniform-attention", "no-positions", "inverted-feed-forward-bias", "narrow-feed-forward")
TRANSLATION_BREAKS = (*GENERAL_BREAKS, "untied-output", "memory-not-read", "single-head")
ENCODER_BREAKS = (*GENERAL_BREAKS, "no-segment-vectors", "pooler-of-the-mean", "one-layer-more")
DECODER_BREAKS = (
    "uniform-attention",
    "no-positions",
    "untied-output",
    "inverted-feed-forward-bias",
    "unmasked-attention",
)


@check(
    88,
    "S3:1788",
    "Transformer-Base: 6 + 6 layers, width 512, 8 heads; 65M in the notes, exactly 63,082,496 with 37,000 tokens.",
    formula=TRANSFORMER_FORMULA + r", \quad d = 512, \quad V = 37,000",
    code=(build, Block, SelfAttention),
    recipes=("transformer",),
    breaks=TRANSLATION_BREAKS,
)
def transformer_base() -> CheckResult:
    return check_size(88, count_translation, run_translation, more=compare_head_check())


def compare_head_check() -> list[Comparison]:
    """Expect an error for the 6 heads of the notes (S3:1685): 512 is not divisible by 6."""
    try:
        SelfAttention(512, heads=6)
        outcome = "built"
    except SaccadeError:
        outcome = "refused"
    return [expect_equal("width 512 with the 6 heads of the notes", outcome, "refused")]


@check(
    89,
    "S3:1789",
    "Transformer-Large (big in the paper): width 1024, 16 heads; 213M parameters in the notes, exactly 214,245,376.",
    formula=TRANSFORMER_FORMULA + r", \quad d = 1024",
    code=(build, Block, SelfAttention),
    recipes=("transformer-big",),
    breaks=("uniform-attention", "no-positions", "untied-output", "memory-not-read", "one-layer-more"),
)
def transformer_big() -> CheckResult:
    return check_size(89, count_translation, run_translation)


@check(
    90,
    "S3:1790-1791",
    "BERT-Base has 110M parameters and BERT-Large 340M: counted without the heads of pretraining, 109.48M and 335.14M.",
    formula=r"L (12 d^2 + 13 d) + (V + P + 2) d + 2 d + d^2 + d",
    code=(build, Block, StatesWriter),
    recipes=("bert", "bert-large"),
    breaks=ENCODER_BREAKS,
)
def bert() -> CheckResult:
    run = partial(run_encoder, style=Style(activation=gelu, epsilon=1e-12))
    more = [
        expect_equal(
            f"{name}: parameters with the heads of both objectives", count_parameters(build_on_meta(load(name))), n
        )
        for name, n in (("bert", 110_106_428), ("bert-large", 336_226_108))
    ]
    return check_size(90, partial(count_encoder, segments=2, positions=512), run, more=more)


@check(
    91,
    "S3:1792",
    "XLNet-Large has about 340M parameters in the notes; counted, with the keys of relative positions, 360.3M.",
    formula=r"L (13 d^2 + 14 d) + V d + V + d",
    code=(build, TransformerXL, PermutedWriter),
    recipes=("xlnet", "xlnet-large"),
    breaks=(*GENERAL_BREAKS, "shared-relative-keys", "untied-output", "one-layer-more"),
)
def xlnet() -> CheckResult:
    return check_size(91, count_permuted, run_permuted)


@check(
    92,
    "S3:1793",
    "RoBERTa has 355M parameters: counted without the head of pretraining, 355.36M.",
    formula=r"L (12 d^2 + 13 d) + (V + P + 1) d + 2 d + d^2 + d",
    code=(build, Block, StatesWriter),
    recipes=("roberta", "roberta-large"),
    breaks=("uniform-attention", "no-positions", "no-segment-vectors", "pooler-of-the-mean", "single-head"),
)
def roberta() -> CheckResult:
    run = partial(run_encoder, style=Style(activation=gelu))
    return check_size(92, partial(count_encoder, segments=1, positions=514), run)


@check(
    93,
    "S3:1794",
    "GPT-2 has 1.5B parameters: counted, 1,557.6M; it has 25 heads, which the notes omit.",
    formula=DECODER_FORMULA,
    code=(build, Block, SelfAttention),
    recipes=("gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl", "shakespeare"),
    breaks=(*DECODER_BREAKS, "single-head"),
)
def gpt2() -> CheckResult:
    return check_size(93, partial(count_decoder, positions=1024), partial(run_decoder, style=GPT))


@check(
    94,
    "S3:1795",
    "Megatron-LM has 8.3B parameters: counted, 8.32B with a padded vocabulary.",
    formula=DECODER_FORMULA,
    code=(build, Block, SelfAttention),
    recipes=("megatron",),
    breaks=(*DECODER_BREAKS, "narrow-feed-forward"),
)
def megatron() -> CheckResult:
    return check_size(94, partial(count_decoder, positions=1024), partial(run_decoder, style=GPT))


@check(
    95,
    "S3:1796",
    "Turing-NLG has 17B parameters: counted, 17.18B.",
    formula=DECODER_FORMULA,
    code=(build, Block, SelfAttention),
    recipes=("turing-nlg",),
    breaks=(*DECODER_BREAKS, "one-layer-more"),
)
def turing() -> CheckResult:
    return check_size(95, partial(count_decoder, positions=1024), partial(run_decoder, style=GPT))


@check(
    96,
    "S3:1797",
    "GPT-3 has 175B parameters: counted, 174.60B.",
    formula=DECODER_FORMULA,
    code=(build, Block, SelfAttention),
    recipes=("gpt3",),
    breaks=(*DECODER_BREAKS, "window-settings-ignored"),
)
def gpt3() -> CheckResult:
    """The small model has a window of 2 in every other layer, as the large one has a window of 256."""
    run = partial(run_decoder, style=GPT, windows=(None, 2))
    return check_size(96, partial(count_decoder, positions=2048), run, "writer.stack.window=['none', 2]")


def count_blocks(model: Model) -> int:
    """The parameters of all blocks, without those of norms and of relative positions."""
    blocks = model.writer.stack.blocks
    named = ((name, parameter.numel()) for name, parameter in blocks.named_parameters())
    return sum(count for name, count in named if "norm" not in name and "term" not in name)


@check(
    97,
    "S3:1798",
    "Gopher has 280B parameters: 12 L d² is 257.7B, and 279.7B with keys of relative positions and embeddings.",
    formula=r"13 L d^2 + V d, \quad L = 80, \quad d = 16384",
    code=(build, TransformerXL, Block),
    recipes=("gopher",),
    breaks=("uniform-attention", "no-positions", "untied-output", "unmasked-attention", "shared-relative-keys"),
)
def gopher() -> CheckResult:
    sizes = tables.load_sizes()
    order = [float(number) for number in range(1, len(sizes) + 1)]
    points = {"in the notes": (order, [size.said for size in sizes])}
    points["counted"] = (order, [float(count_parameters(growth.build_model(size))) for size in sizes])
    caption = "Parameters of the models in the scaling table, according to the notes and by our count."
    style = Style(norm=apply_rms_norm, activation=gelu, pre_norm=True, epsilon=1e-6, relative=True)
    return check_size(
        97,
        count_gopher,
        partial(run_decoder, style=style),
        more=[expect_near("12 L d²", count_blocks(growth.build_model(sizes[-1])), 257.7e9, within=0.05e9)],
        drawing=Lines("line of the table", "parameters", points, caption, log_y=True),
    )
