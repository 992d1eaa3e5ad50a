"""The attention function and its scores. Rows are those of the lectures."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers.attention.scores import Additive, AttentionLayer, Bilinear, attend, dot, masked_softmax, scaled_dot

B, Q, K, E, V = 2, 3, 5, 7, 11
WIDTHS = (16, 64, 256, 1024, 4096)


def tensors(*, key_dim: int = E, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(B, n, d, dtype=dtype) for n, d in ((Q, E), (K, key_dim), (K, V)))


@pytest.mark.parametrize("score", ["additive", "dot", "scaled", "bilinear"])
def test_any_score_gives_weights_and_their_weighted_sum(score: str) -> None:
    """Row 35: e = f_att(q, k), a = softmax(e), y = sum_j a_j v_j, whatever f_att is."""
    wide = 13 if score in ("additive", "bilinear") else E
    query, key, value = tensors(key_dim=wide)
    additive, bilinear = Additive(E, key_dim=wide, hidden_dim=17).double(), Bilinear(E, key_dim=wide).double()
    f_att = {"additive": additive, "dot": dot, "scaled": scaled_dot, "bilinear": bilinear}[score]
    by_hand = {
        "additive": lambda q, k: (
            additive.energy.weight[0] @ torch.tanh(additive.query.weight @ q + additive.key.weight @ k)
        ),
        "dot": lambda q, k: q @ k,
        "scaled": lambda q, k: q @ k / math.sqrt(E),
        "bilinear": lambda q, k: q @ bilinear.key.weight @ k,
    }[score]

    y, weights = attend(query, key, value, score=f_att)

    for b in range(B):
        for i in range(Q):
            a = torch.stack([by_hand(query[b, i], key[b, j]) for j in range(K)]).softmax(0)
            torch.testing.assert_close(weights[b, i], a)
            torch.testing.assert_close(y[b, i], sum(a[j] * value[b, j] for j in range(K)))


def test_a_user_may_bring_any_score() -> None:
    """Row 35: f_att is pluggable; here keys near the query count (Nadaraya-Watson)."""
    query, key, value = tensors()
    weights = attend(query, key, value, score=lambda q, k: -(torch.cdist(q, k) ** 2))[1]
    assert (weights.argmax(-1) == torch.cdist(query, key).argmin(-1)).all()


def test_dot_product_names_both_widths_where_they_differ() -> None:
    """Row 36: needs D_X = D_Q."""
    query, key, value = tensors(key_dim=13)
    with pytest.raises(ValueError, match="D_Q = 7 and D_X = 13"):
        attend(query, key, value, score=dot)
    with pytest.raises(ValueError, match="D_Q = 7 and D_X = 13"):
        attend(query, key, value)


def test_scaled_dot_is_dot_over_root_of_width() -> None:
    """Row 37: not their length, not the number of keys; 8 for the paper's 64, 1.732 for the notes' drawing of 3."""
    query, key, _ = tensors()
    torch.testing.assert_close(scaled_dot(query, key), dot(query, key) / 7**0.5)
    for width, scale in ((64, 8.0), (3, 1.7320508)):
        assert scaled_dot(torch.ones(1, width), torch.ones(1, width)).item() == pytest.approx(width / scale)


def jacobian_norms(width: int, *, scale: bool) -> tuple[Tensor, Tensor]:
    """Frobenius norms of d softmax(e) / d e and of d softmax(e) / d q for 300 random queries with 10 keys each."""
    query, key = torch.randn(300, 1, width, dtype=torch.float64), torch.randn(300, 10, width, dtype=torch.float64)
    a = (scaled_dot if scale else dot)(query, key).squeeze(1).softmax(-1)
    by_score = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
    by_query = by_score @ key * (1 / math.sqrt(width) if scale else 1.0)
    return by_score.flatten(1).norm(dim=1), by_query.flatten(1).norm(dim=1)


def test_softmax_saturates_with_the_width_unless_scores_are_scaled() -> None:
    """Row 38: large scores make softmax flat; scaling keeps its Jacobian about constant."""
    plain = [jacobian_norms(width, scale=False)[0].median() for width in WIDTHS]
    scaled = [jacobian_norms(width, scale=True)[0].median() for width in WIDTHS]
    assert all(wide < 0.5 * narrow for narrow, wide in itertools.pairwise(plain))
    assert max(scaled) / min(scaled) < 1.25


def test_the_gradient_of_the_query_does_not_vanish_on_the_average() -> None:
    """Row 38: the keys, whose length grows as sqrt(D), make up for the flat softmax; few queries get all of it."""
    plain = [jacobian_norms(width, scale=False)[1] for width in WIDTHS]
    assert all(0.7 < norms.mean() < 2.0 for norms in plain)
    assert plain[-1].median() < 1e-6


def test_constant_vectors_still_grow_after_scaling() -> None:
    """Row 38: the slide's argument by constant vectors is illustrative only; a . a / sqrt(D) grows as sqrt(D)."""
    scores = [float(scaled_dot(torch.full((1, d), 0.5), torch.full((1, d), 0.5))) for d in WIDTHS]
    assert scores == pytest.approx([0.25 * math.sqrt(d) for d in WIDTHS])


@pytest.mark.parametrize("width", WIDTHS)
def test_scores_of_unit_variance_vectors_have_variance_d_and_scaled_ones_1(width: int) -> None:
    """Row 39: E[q . k] = 0, Var[q . k] = d; within three standard errors of 4000 samples."""
    n = 4000
    query, key = torch.randn(n, 1, width), torch.randn(n, 1, width)
    scores, scaled = dot(query, key).flatten(), scaled_dot(query, key).flatten()
    kurtosis = 3 + 6 / width  # of a sum of d products of two normal variables
    assert abs(scores.mean()) < 3 * math.sqrt(width / n)
    assert abs(scores.var() / width - 1) < 3 * math.sqrt((kurtosis - 1) / n)
    assert abs(scaled.var() - 1) < 3 * math.sqrt((kurtosis - 1) / n)


def test_each_row_of_weights_sums_to_one() -> None:
    """Rows 40 and 43: softmax over the keys, the last dimension, also with batch dimensions in front."""
    query, key, value = tensors()
    y, weights = attend(query, key, value)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, Q, dtype=torch.float64))
    assert not torch.allclose(weights.sum(1), torch.ones(B, K, dtype=torch.float64))
    torch.testing.assert_close(y[1, 2], weights[1, 2] @ value[1])


def test_two_dimensional_input_is_the_lectures_case() -> None:
    """Row 43: for a 2D tensor dim=1 and dim=-1 are the same; row 40: Y = A X with E = Q X^T / sqrt(D_Q)."""
    query, x = torch.randn(Q, E), torch.randn(K, E)
    y, weights = attend(query, x, x)
    torch.testing.assert_close(weights, torch.softmax(query @ x.T / math.sqrt(E), dim=1))
    torch.testing.assert_close(y, weights @ x)


def test_keys_and_values_have_their_own_widths() -> None:
    """Rows 41 and 46: W_Q, W_K are D_X x D_Q, W_V is D_X x D_V; E is N_Q x N_X and Y is N_Q x D_V."""
    n_q, n_x, d_x, d_q, d_v = 3, 5, 7, 11, 13
    x, query = torch.randn(n_x, d_x), torch.randn(n_q, d_q)
    w_k, w_v = torch.randn(d_x, d_q), torch.randn(d_x, d_v)
    y, weights = attend(query, x @ w_k, x @ w_v)
    assert (x @ w_k).shape == (n_x, d_q) and (x @ w_v).shape == (n_x, d_v)
    assert weights.shape == (n_q, n_x) and y.shape == (n_q, d_v)


def test_a_word_of_the_target_finds_its_source_word() -> None:
    """Row 42: in translation the query is the target word, keys are the source words, values their embeddings."""
    source = torch.eye(3) * 30  # le, chat, noir: three words that have nothing in common
    asks_for_chat = torch.tensor([[0.0, 1.0, 0.0]])
    y, weights = attend(asks_for_chat, source, torch.tensor([[1.0], [2.0], [3.0]]), score=dot)
    assert weights.argmax() == 1
    assert y.item() == pytest.approx(2.0)


@pytest.mark.parametrize("constant", [0.0, 3.0, -11.0])
def test_worked_example_of_the_lecture(constant: float) -> None:
    """Row 44: softmax(q . k) = [.6, .1, .2, .1] and c = .6 v1 + .1 v2 + .2 v3 + .1 v4, in float32."""
    expected = torch.tensor([0.6, 0.1, 0.2, 0.1])
    query = torch.tensor([[1.0]])
    key = (expected.double().log() + constant).float()[:, None]
    value = torch.tensor([[1.0, 0.0], [0.0, 10.0], [100.0, 0.0], [0.0, 1000.0]])
    context, weights = attend(query, key, value, score=dot)
    torch.testing.assert_close(weights[0], expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(context[0], torch.tensor([20.6, 101.0]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_equals_torch(masked: bool) -> None:
    """Row 45: Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, as torch has it."""
    query, key, value = tensors()
    mask = torch.rand(B, Q, K) > 0.4 if masked else None
    if mask is not None:
        mask[..., 0] = True
    ours = attend(query, key, value, mask=mask)[0]
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, mask), atol=1e-10, rtol=0)


def test_the_layer_has_three_matrices_and_nothing_else() -> None:
    """Rows 46, 47 and 57: what is trained is W_q, W_k and W_v; E is N_X x N_X."""
    layer = AttentionLayer(7, key_dim=11, value_dim=13)
    x = torch.randn(2, 5, 7)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {"query.weight": (11, 7), "key.weight": (11, 7), "value.weight": (13, 7)}
    q, k, v = x @ layer.query.weight.T, x @ layer.key.weight.T, x @ layer.value.weight.T
    e = q @ k.transpose(1, 2) / math.sqrt(11)
    assert e.shape == (2, 5, 5)
    torch.testing.assert_close(layer(x), e.softmax(-1) @ v)


def test_masked_keys_get_exactly_zero() -> None:
    query, key, value = tensors()
    mask = torch.tensor([True, False, True, True, False])
    weights = attend(query, key, value, mask=mask)[1]
    assert (weights[..., ~mask] == 0).all()
    assert (weights[..., mask] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, Q, dtype=torch.float64))


def test_masked_values_do_not_matter_even_if_huge() -> None:
    query, key, value = tensors()
    mask = torch.tensor([True, True, True, True, False])
    before = attend(query, key, value, mask=mask)[0]
    key[:, 4], value[:, 4] = 1e30, -1e30
    assert torch.equal(attend(query, key, value, mask=mask)[0], before)


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients() -> None:
    query, key, value = (x.requires_grad_() for x in tensors())
    mask = torch.ones(B, Q, K, dtype=torch.bool)
    mask[0, 1] = False
    y, weights = attend(query, key, value, mask=mask)
    y.square().sum().backward()
    assert (y[0, 1] == 0).all() and (weights[0, 1] == 0).all() and (y[1] != 0).all()
    assert all(x.grad.isfinite().all() for x in (query, key, value))
    assert (query.grad[0, 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masking_before_softmax_equals_renormalising_after_it(dtype: torch.dtype) -> None:
    """Row 62: for scores up to 20 the two forms are one."""
    scores = (torch.rand(50, 7, 7, dtype=dtype) * 2 - 1) * 20
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    after = scores.softmax(-1) * mask
    after = after / after.sum(-1, keepdim=True)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(masked_softmax(scores, mask), after, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("dtype", "lead"), [(torch.float32, 110.0), (torch.float64, 750.0)])
def test_renormalising_breaks_where_a_masked_score_leads(dtype: torch.dtype, lead: float) -> None:
    """Row 62: softmax of what may be seen underflows to 0, and 0/0 is not a number; masking before is safe."""
    scores = torch.tensor([[0.0, 0.0, lead]], dtype=dtype)
    mask = torch.tensor([[True, True, False]])
    after = scores.softmax(-1) * mask
    assert (after / after.sum(-1, keepdim=True)).isnan().any()
    assert masked_softmax(scores, mask).tolist() == [[0.5, 0.5, 0.0]]


def test_dropout_takes_weights_away_and_keeps_their_mean() -> None:
    query, key, value = torch.zeros(1, 1000, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, 1)
    y = attend(query, key, value, dropout=0.25)[0]
    torch.testing.assert_close(y.unique(), torch.tensor([0.0, 4 / 3]))
    assert y.mean() == pytest.approx(1.0, abs=0.1)
