"""Convolutions over time. Rows are those of the lectures."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.config import schema
from saccade.layers.blocks.convolution import (
    AttentionSource,
    ConvS2SAttention,
    GatedBlock,
    ResidualBlock,
    WeightNormLinear,
    gather_neighbors,
    run_block,
)
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.build.convolution import build_convolution

B, T, S, D, E = 3, 5, 7, 11, 13  # E: the width of embeddings
BLOCKS = ("gated", "residual")


def block(kind: str = "gated", *, kernel: int = 3, dilation: int = 1, cross: bool = False, weight_norm: bool = True):
    attention = ConvS2SAttention(D if kind == "gated" else E, memory_dim=E, weight_norm=weight_norm) if cross else None
    settings = {"kernel": kernel, "dilation": dilation, "weight_norm": weight_norm, "cross": attention}
    return GatedBlock(D, **settings) if kind == "gated" else ResidualBlock(E, hidden_dim=D, **settings)


def stack(
    kind: str = "gated", *, layers: int = 2, dilations: tuple[int, ...] = (1,), kernel: int = 3, cross: bool = False,
    **settings: object,
) -> ConvolutionStack:  # fmt: skip
    dilation = [dilations[i % len(dilations)] for i in range(layers)]
    blocks = [block(kind, kernel=kernel, dilation=one, cross=cross) for one in dilation]
    ends = (
        (WeightNormLinear(E, D, weight_norm=True), WeightNormLinear(D, E, weight_norm=True))
        if kind == "gated"
        else None
    )
    made = ConvolutionStack(blocks, dim=E, ends=ends, **settings)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0, std=0.1)  # biases of zero hide mistakes, and so do dead ReLUs
    return made.double()


def inputs(length: int = T, rows: int = B) -> Tensor:
    return torch.randn(rows, length, E, dtype=torch.float64)


def read(values: bool = True) -> Memory:
    keep = torch.arange(S) < torch.tensor([[S], [4], [1]])
    return Memory(inputs(S), keep, values=inputs(S) if values else None)


def seen_by(made: ConvolutionStack, length: int, at: int) -> list[int]:
    """The positions on which the output at one position depends, by gradients."""
    x = inputs(length, rows=1).requires_grad_()
    made(x, None)[0][0, at].sum().backward()
    return x.grad[0].abs().sum(-1).nonzero().flatten().tolist()


# ---- products


def test_weight_norm_splits_a_matrix_into_lengths_and_directions() -> None:
    one = WeightNormLinear(E, D, weight_norm=True)
    torch.testing.assert_close(one.compute_weight(), one.weight)  # at the beginning
    with torch.no_grad():
        one.length.copy_(torch.arange(1.0, D + 1))
        one.weight.mul_(17)  # says nothing about the length any more
    torch.testing.assert_close(one.compute_weight().norm(dim=1), torch.arange(1.0, D + 1))
    torch.testing.assert_close(F.cosine_similarity(one.compute_weight(), one.weight), torch.ones(D))
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(E, D))
    theirs.parametrizations.weight.original0.data = one.length.data[:, None]
    theirs.parametrizations.weight.original1.data = one.weight.data
    theirs.bias.data = one.bias.data
    x = torch.randn(T, E)
    torch.testing.assert_close(one(x, one.compute_weight()), theirs(x))


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 1), (3, 4), (5, 2)])
def test_a_product_of_neighbours_is_a_convolution(kernel: int, dilation: int) -> None:
    """Row 11, against torch's own."""
    one, x = WeightNormLinear(kernel * E, D, weight_norm=False), torch.randn(B, 17, E)
    weight = one.weight.unflatten(1, (kernel, E)).transpose(1, 2)
    expected = F.conv1d(x.transpose(1, 2), weight, dilation=dilation).transpose(1, 2)
    torch.testing.assert_close(
        one(gather_neighbors(x, kernel=kernel, dilation=dilation), one.compute_weight()), expected
    )


# ---- blocks


def test_a_gated_block_is_the_papers_formula() -> None:
    """Gehring et al. 2017, section 3.2: v([A B]) = A sigmoid(B), plus the input, times sqrt(0.5)."""
    one, x = block(weight_norm=False), torch.randn(B, T, D)
    nn.init.normal_(one.convolution.bias)
    weight, bias = one.convolution.weight, one.convolution.bias
    y = run_block(one, 1, x, None, False, x, None)
    for i in range(T):
        around = [x[:, j] if 0 <= j < T else torch.zeros(B, D) for j in (i - 1, i, i + 1)]
        a, b = (torch.cat(around, -1) @ weight.T + bias).chunk(2, -1)
        torch.testing.assert_close(y[:, i], (a * torch.sigmoid(b) + x[:, i]) * math.sqrt(0.5))


def test_a_gated_block_that_changes_the_width_maps_its_input_to_the_sum() -> None:
    """Gehring et al. 2017, section 3.2: "linear mappings to map between embedding and hidden sizes"."""
    one, x = GatedBlock(D, input_dim=E, kernel=3, weight_norm=False), torch.randn(B, T, E)
    around = torch.cat((F.pad(x, (0, 0, 1, 0))[:, :T], x, F.pad(x, (0, 0, 0, 1))[:, 1:]), -1)
    a, b = F.linear(around, one.convolution.weight, one.convolution.bias).chunk(2, -1)
    expected = (a * torch.sigmoid(b) + F.linear(x, one.shortcut.weight, one.shortcut.bias)) * math.sqrt(0.5)
    torch.testing.assert_close(run_block(one, 1, x, None, False, x, None), expected)


def test_widths_and_kernels_by_layer_are_built() -> None:
    table = schema.ConvolutionStack(layers=4, dim=E, hidden_dim=[5, 5, 7], kernel=[3, 1])
    made = build_convolution(table, memory_dim=E, causal=True, recompute=False)
    assert [one.convolution.weight.shape for one in made.blocks] == [(10, 15), (10, 5), (14, 15), (10, 7)]
    assert [one.shortcut is None for one in made.blocks] == [True, True, False, False]
    assert made.ends[1].weight.shape == (E, 5)
    residual = schema.ConvolutionStack(block="residual", layers=2, dim=E, hidden_dim=[5, 6], kernel=[3, 5])
    made = build_convolution(residual, memory_dim=None, causal=False, recompute=False)
    assert [one.convolution.weight.shape for one in made.blocks] == [(5, 15), (6, 30)]


def test_a_residual_block_is_the_papers_figure() -> None:
    """Kalchbrenner et al. 2016, figure 3: norm, ReLU, product, three times, the middle one a masked convolution."""
    one, x = block("residual", dilation=2, weight_norm=False), torch.randn(B, T, E)
    for parameter in one.parameters():
        nn.init.normal_(parameter, std=0.5)
    first, second, third = one.norms
    inner = F.relu(second(F.linear(F.relu(first(x)), one.narrow.weight, one.narrow.bias)))
    kernel = one.convolution.weight.unflatten(1, (3, D)).transpose(1, 2)
    mixed = F.conv1d(F.pad(inner.transpose(1, 2), (4, 0)), kernel, one.convolution.bias, dilation=2).transpose(1, 2)
    expected = x + F.linear(F.relu(third(mixed)), one.widen.weight, one.widen.bias)
    torch.testing.assert_close(run_block(one, 2, x, None, True, x, None), expected)


@torch.no_grad()
def test_first_weights_keep_variances() -> None:
    """Gehring et al. 2017, section 3.4: what goes in and what comes out are about alike, layer after layer."""
    x = torch.randn(31, 41, 97) * 0.1  # appendix A.1 is for small ones, of which a gate leaves a quarter
    for layer in range(1, 6):
        x = run_block(GatedBlock(97, kernel=3), 1, x, None, True, x, None)
        assert 0.8 < float(x[:, 2 * layer :].var()) / 0.01 < 1.25  # where a kernel sees no zeros


# ---- attention


def test_attention_by_hand() -> None:
    """Gehring et al. 2017, equations 1 and 2, word by word."""
    one, memory = ConvS2SAttention(D, memory_dim=E, weight_norm=False).double(), read()
    nn.init.normal_(one.query.bias), nn.init.normal_(one.out.bias)
    h, g = torch.randn(B, T, D, dtype=torch.float64), inputs()
    y = one(h, g, AttentionSource.from_memory(memory), one.compute_weights())
    for b, real in enumerate((S, 4, 1)):
        z, z_and_e = memory.states[b, :real], memory.values[b, :real]
        for i in range(T):
            d = (one.query.weight @ h[b, i] + one.query.bias + g[b, i]) * math.sqrt(0.5)
            weights = torch.exp(z @ d) / torch.exp(z @ d).sum()
            c = sum(weights[j] * z_and_e[j] for j in range(real)) * (real * math.sqrt(1 / real))
            expected = (one.out.weight @ c + one.out.bias + h[b, i]) * math.sqrt(0.5)
            torch.testing.assert_close(y[b, i], expected)


@torch.no_grad()
def test_weights_can_be_seen_under_the_address_of_their_layer() -> None:
    made = stack(cross=True, causal=True)
    plain = made(inputs(), None, read())[0]
    with record(made) as maps:
        torch.manual_seed(0)
        made(inputs(), None, read())
    assert list(maps) == ["blocks.0.cross", "blocks.1.cross"]
    assert maps["blocks.1.cross"].shape == (B, 1, T, S)
    torch.testing.assert_close(maps["blocks.1.cross"].sum(-1), torch.ones(B, 1, T, dtype=torch.float64))
    assert (maps["blocks.0.cross"][1, :, :, 4:] == 0).all()
    assert plain.isfinite().all()


@torch.no_grad()
def test_without_values_the_states_are_mixed() -> None:
    made, x, memory = stack(cross=True, causal=True), inputs(), read(values=False)
    same = Memory(memory.states, memory.mask, values=memory.states)
    torch.testing.assert_close(made(x, None, memory)[0], made(x, None, same)[0])
    assert not torch.equal(made(x, None, memory)[0], made(x, None, read())[0])


def test_values_of_a_reader_are_states_plus_embeddings() -> None:
    """Gehring et al. 2017, section 3.3: z + e; a block of ByteNet needs none, and neither does a writer."""
    x = inputs()
    y, _, _, aux = stack()(x, None)
    torch.testing.assert_close(aux["values"], (y + x) * math.sqrt(0.5))
    assert stack("residual")(x, None)[3] == {} == stack(causal=True)(x, None)[3]


# ---- who sees whom


@pytest.mark.parametrize("kind", BLOCKS)
def test_receptive_field_of_a_reader(kind: str) -> None:
    """Row 11: (k - 1) / 2 more on each side with every layer, times the dilation."""
    assert seen_by(stack(kind, layers=3, kernel=3), 17, at=8) == list(range(5, 12))
    assert seen_by(stack(kind, layers=2, kernel=5), 17, at=8) == list(range(4, 13))
    assert seen_by(stack(kind, layers=3, kernel=3, dilations=(1, 2, 4)), 19, at=9) == list(range(2, 17))


@pytest.mark.parametrize("kind", BLOCKS)
def test_receptive_field_of_a_writer(kind: str) -> None:
    """It never looks to the right; five blocks of ByteNet see 2 x (1 + 2 + 4 + 8 + 16) = 62 positions back."""
    assert seen_by(stack(kind, layers=3, kernel=3, causal=True), 17, at=8) == list(range(2, 9))
    deep = stack(kind, layers=5, dilations=(1, 2, 4, 8, 16), causal=True)
    assert seen_by(deep, 71, at=68) == list(range(6, 69))


@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("distance", [1, 4, 7, 13])
def test_path_length(kernel: int, distance: int) -> None:
    """Rows 7 and 84: layers that two positions need to meet, distance / (k - 1); only its logarithm where dilated."""

    def layers(dilation: int) -> int:
        """How many until the last position sees the one so far before it; dilations are powers of this number."""
        for count in range(1, 14):
            made = stack(layers=count, kernel=kernel, causal=True, dilations=tuple(dilation**i for i in range(count)))
            if 0 in seen_by(made, distance + 1, at=distance):
                return count
        raise AssertionError

    assert layers(1) == math.ceil(distance / (kernel - 1))
    assert layers(kernel) == math.ceil(math.log(distance + 1, kernel))


@torch.no_grad()
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("unfold", [(1.0, 0.0), (1.2, 0.0), (1.5, 3.0)])
def test_padding_changes_nothing(kind: str, unfold: tuple[float, float]) -> None:
    """Row 11's reader: the same states, values and lengths with any number of masked positions of any content."""
    one, x = stack(kind, unfold=unfold), inputs()
    short, real, _, aux = one(x, torch.ones(B, T, dtype=torch.bool))
    noise = torch.cat((x, torch.full((B, 4, E), 1e6, dtype=torch.float64)), 1)
    padded, keep, _, more = one(noise, (torch.arange(T + 4) < T).expand(B, T + 4))
    n = math.ceil(unfold[0] * T + unfold[1])
    assert real.sum(1).tolist() == keep.sum(1).tolist() == [n] * B
    torch.testing.assert_close(padded[:, :n], short[:, :n])
    for name in aux:
        torch.testing.assert_close(more[name][:, :n], aux[name][:, :n])


def test_unfolding_makes_states_for_words_behind_the_end() -> None:
    """Kalchbrenner et al. 2016, section 3.2: a |s| + b, rounded up; they see the text as far as kernels reach."""
    made = stack(unfold=(1.2, 1.0))
    x = inputs().requires_grad_()
    y, keep, _, _ = made(x, torch.arange(T) < torch.tensor([[T], [3], [1]]))
    assert y.shape == (B, 7, E)
    assert keep.sum(1).tolist() == [7, 5, 3]
    y[1, 4].sum().backward()
    assert x.grad[1].abs().sum(-1).nonzero().flatten().tolist() == [2]


@torch.no_grad()
def test_without_attention_memory_is_added_place_by_place() -> None:
    """ByteNet: the writer stands on the reader; behind memory's end, and at its padding, there are zeros."""
    made, memory = stack("residual", layers=1, kernel=1, causal=True), read()
    for length in (5, 9):
        x = inputs(length)
        places = torch.zeros(B, length, E, dtype=torch.float64)
        for b, real in enumerate((S, 4, 1)):
            places[b, : min(real, length)] = memory.states[b, : min(real, length)]
        torch.testing.assert_close(made(x, None, memory)[0], made(x + places, None)[0])


@pytest.mark.parametrize("cross", [False, True])
def test_recomputing_activations_changes_nothing(cross: bool) -> None:
    plain, memory = stack(cross=cross, causal=True), read()
    saving = ConvolutionStack(list(plain.blocks), dim=E, ends=tuple(plain.ends), causal=True, recompute=True)
    x, results = inputs().requires_grad_(), []
    for one in (plain, saving):
        y = one(x, None, memory)[0]
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *plain.parameters()])))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dropout_is_before_each_convolution_and_behind_a_writer() -> None:
    """Gehring et al. 2017, section 4.2: embeddings, the input of every block, and what the writer gives."""
    one = GatedBlock(D, kernel=1, dropout=0.5, weight_norm=False)
    seen: list[Tensor] = []
    one(torch.ones(B, T, D), lambda y: seen.append(y) or y, one.compute_weights(), torch.ones(B, T, D), None)
    assert set(seen[0].unique().tolist()) == {0.0, 2.0}
    made = stack(causal=True, dropout=0.5)
    assert (made(inputs(), None)[0] == 0).float().mean() > 0.3
    assert not (stack(dropout=0.5)(inputs(), None)[0] == 0).any()
