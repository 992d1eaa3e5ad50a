"""Positions at the input, on queries and keys, and as a score term. Rows are those of the lectures."""

import math

import pytest
import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.layers.attention.masks import make_positions
from saccade.layers.attention.positions import Alibi, Bucketed, Learned, Rotary, RotaryScaling, Shaw, Sinusoidal


def first(length: int) -> Tensor:
    return make_positions(length, torch.device("cpu"))


@pytest.mark.parametrize(("position", "column", "value"), [
    (0, 0, 0.0), (0, 1, 1.0),
    (1, 0, 0.8414709848), (1, 1, 0.5403023059),  # sin 1, cos 1
    (2, 2, 0.1986693308), (2, 3, 0.9800665778),  # 10000^(2/8) = 10: sin 0.2, cos 0.2
    (3, 4, 0.0299955002), (3, 5, 0.9995500337),  # 10000^(4/8) = 100: sin 0.03, cos 0.03
    (50, 6, 0.0499791693), (50, 7, 0.9987502604),  # 10000^(6/8) = 1000: sin 0.05, cos 0.05
])  # fmt: skip
def test_sinusoidal_golden_values(position: int, column: int, value: float) -> None:
    """Row 70: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) the cosine, here with D = 8."""
    assert Sinusoidal(8)(first(51))[0, position, column] == pytest.approx(value, abs=1e-6)


def test_a_shift_is_a_rotation_that_does_not_depend_on_the_position() -> None:
    """Row 70: PE(pos + k) is one fixed rotation of PE(pos)."""
    dim, k = 26, 5
    code = Sinusoidal(dim)(first(60))[0].double()
    angles = k / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    pairs = code.unflatten(-1, (-1, 2))
    sin, cos = pairs.unbind(-1)
    turned = torch.stack((sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin()), -1)
    torch.testing.assert_close(turned[:-k], pairs[k:], atol=1e-5, rtol=0)


def test_concatenated_layout_is_a_permutation_of_the_columns() -> None:
    """Row 71: sines first, then cosines, of the same frequencies."""
    dim = 14
    order = [*range(0, dim, 2), *range(1, dim, 2)]
    interleaved, concatenated = Sinusoidal(dim), Sinusoidal(dim, layout="concatenated")
    assert torch.equal(concatenated(first(40)), interleaved(first(40))[..., order])


def test_tensor2tensor_has_other_frequencies_not_only_another_order() -> None:
    """The hidden trap of the lectures: the exponent is i / (D/2 - 1), so the slowest wave is exactly 1/10000."""
    dim, at = 14, torch.tensor([[1]])
    paper = Sinusoidal(dim, layout="concatenated")(at)[0, 0]
    theirs = Sinusoidal(dim, layout="concatenated", frequencies="tensor2tensor")(at)[0, 0]
    rates = [10000 ** (-i / (dim / 2 - 1)) for i in range(dim // 2)]
    torch.testing.assert_close(theirs[: dim // 2], torch.tensor(rates).sin())
    assert theirs[dim // 2 - 1] == pytest.approx(math.sin(1e-4))
    assert not torch.allclose(paper.sort().values, theirs.sort().values, atol=1e-3)


def test_nearness_is_encoded() -> None:
    """Row 72: PE(p) . PE(p + k) depends only on k and falls strictly for k <= 40 at D = 512."""
    code = Sinusoidal(512)(first(200))[0].double()
    products = code @ code.T
    by_distance = products[0, :41]
    assert (by_distance.diff() < 0).all()
    for p in (1, 17, 150):
        torch.testing.assert_close(products[p, p : p + 41], by_distance, atol=1e-3, rtol=0)


@pytest.mark.parametrize("module", [Sinusoidal(6), Rotary(6)])
def test_positions_are_computed_in_float32_whatever_the_model_is(module: torch.nn.Module) -> None:
    """bfloat16 has 8 bits: it would put positions 256 and 257 at one place."""
    far = torch.tensor([[256, 257]])
    args = (torch.ones(1, 1, 2, 6), far) if isinstance(module, Rotary) else (far,)
    before = module(*args)
    after = module.bfloat16()(*args)
    assert torch.equal(before, after)
    assert not torch.allclose(after[..., 0, :], after[..., 1, :], atol=0.1)


def test_learned_positions_are_rows_of_a_table() -> None:
    """Row 74."""
    learned = Learned(5, max_length=11)
    assert torch.equal(learned(torch.tensor([[2, 7]]))[0], learned.table.weight[[2, 7]])
    assert [tuple(p.shape) for p in learned.parameters()] == [(11, 5)]


def test_more_positions_than_learned_is_said() -> None:
    with pytest.raises(SaccadeError, match="a sequence of 12 tokens has more positions than were learned, 11"):
        Learned(5, max_length=11)(first(12))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Sinusoidal(7), "sinusoidal positions need an even width, got 7"),
    (lambda: Rotary(7), "rotary positions need an even head width, got 7"),
    (lambda: Rotary(6, scaling=RotaryScaling(8.0, 4.0, 4.0, 99)), "must be below high_freq_factor, got 4 and 4"),
    (lambda: Bucketed(2, buckets=3, max_distance=20, bidirectional=True), "at least 4 buckets .* got buckets = 3"),
    (lambda: Bucketed(2, buckets=32, max_distance=8, bidirectional=True), "distance above 8, got .* distance = 8"),
])  # fmt: skip
def test_impossible_sizes_are_said(make: object, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        make()


def test_rotary_scores_depend_only_on_the_distance() -> None:
    """Row 74, Su et al. 2021, equation 11: (R_m q) . (R_n k) is a function of n - m."""
    rotary = Rotary(10)
    q, k = torch.randn(2, 1, 1, 1, 10).expand(2, 1, 1, 30, 10)
    scores = (rotary(q, first(30)) @ rotary(k, first(30)).mT)[0, 0]
    for distance in range(-29, 30):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=0)
    assert scores[0, 1] != pytest.approx(scores[0, 5].item(), abs=1e-3)


def test_rotary_turns_pairs_and_keeps_lengths() -> None:
    x = torch.randn(2, 3, 5, 6)
    turned = Rotary(6, base=100.0)(x, first(5))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    angle = 3 * 100 ** (-2 / 6)  # position 3, second pair
    a, b = x[0, 0, 3, 2], x[0, 0, 3, 3]
    assert turned[0, 0, 3, 2].item() == pytest.approx((a * math.cos(angle) - b * math.sin(angle)).item(), abs=1e-6)


def test_stretched_positions_keep_fast_turns_and_slow_down_slow_ones() -> None:
    """Pairs that turn 16, 2.5 and 0.4 times in 100 positions: as before, half of the way, 8 times slower."""
    frequencies = [1.0, 2.5 * 2 * math.pi / 100, 0.025]
    slowed = RotaryScaling(8.0, 1.0, 4.0, 100).scale_frequencies(torch.tensor(frequencies))
    expected = [1.0, frequencies[1] * (1 + 1 / 8) / 2, 0.025 / 8]
    torch.testing.assert_close(slowed, torch.tensor(expected))
    x, stretched = torch.randn(1, 2, 30, 6), Rotary(6, scaling=RotaryScaling(8.0, 1.0, 4.0, 100))
    turned, plain = stretched(x, first(30)), Rotary(6)(x, first(30))
    assert torch.equal(turned[..., :2], plain[..., :2])
    angle = 29 * 10000 ** (-4 / 6) / 8  # the last position, third pair
    a, b = x[0, 0, 29, 4:].tolist()
    assert turned[0, 0, 29, 4].item() == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-6)


def test_shaw_equals_a_double_loop() -> None:
    """Row 74, Shaw et al. 2018, equation 4: e_ij = q_i . (k_j + a_ij), a by the clipped distance j - i."""
    shaw = Shaw(7, max_distance=3)
    query, q_pos, k_pos = torch.randn(2, 3, 5, 7), torch.tensor([[4, 5, 6, 7, 8]]), first(11)
    term = shaw(query, q_pos, k_pos)
    expected = torch.empty(2, 3, 5, 11)
    for i in range(5):
        for j in range(11):
            clipped = max(-3, min(3, j - (i + 4)))
            expected[:, :, i, j] = query[:, :, i] @ shaw.table.weight[clipped + 3]
    torch.testing.assert_close(term, expected)


@pytest.mark.parametrize(("heads", "slopes"), [
    (8, [2**-n for n in range(1, 9)]),
    (12, [2**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    (1, [2**-8]),
])  # fmt: skip
def test_alibi_slopes_are_those_of_the_paper(heads: int, slopes: list[float]) -> None:
    """Row 74, Press et al. 2022, section 3, and its code for a number of heads that is no power of two."""
    torch.testing.assert_close(Alibi(heads).slopes, torch.tensor(slopes))


def test_alibi_is_minus_slope_times_distance() -> None:
    query = torch.randn(2, 4, 3, 5)
    term = Alibi(4)(query, torch.tensor([[2, 3, 4]]), first(7))
    for h, slope in enumerate([2**-2, 2**-4, 2**-6, 2**-8]):
        assert term[0, h].tolist() == [[-slope * abs(j - i) for j in range(7)] for i in (2, 3, 4)]


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_t5(both_sides: bool, buckets: int, distance: int) -> None:
    """Row 74, Raffel et al. 2020, against the code of transformers."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    away = torch.arange(-300, 301)
    theirs = modeling.T5Attention._relative_position_bucket(away, both_sides, buckets, distance)
    ours = Bucketed(2, buckets=buckets, max_distance=distance, bidirectional=both_sides).get_bucket(away)
    assert torch.equal(ours, theirs)


def test_bucketed_bias_has_a_value_for_each_head() -> None:
    bucketed = Bucketed(3, buckets=8, max_distance=20, bidirectional=True)
    term = bucketed(torch.randn(2, 3, 4, 5), torch.tensor([[3, 4, 5, 6]]), first(7))
    assert term.shape == (1, 3, 4, 7)
    assert torch.equal(term[0, :, 1, 6], bucketed.table.weight[bucketed.get_bucket(torch.tensor(2))])
