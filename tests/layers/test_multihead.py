"""Attention with several heads. Rows are those of the lectures."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.kernels.weights import Unsupported
from saccade.layers.attention.masks import Mask, causal, dense, padding, window
from saccade.layers.attention.multihead import CrossAttention, Form, HeadProjection, SelfAttention
from saccade.layers.attention.positions import Alibi, Rotary, Shaw, Sinusoidal
from saccade.layers.attention.scores import AttentionLayer, attend
from saccade.layers.record import record

B, T, S, H, D, M = 2, 5, 7, 3, 12, 11
FORMS = ("paper", "full", "split")


def self_attention(form: Form = "paper", **settings: object) -> SelfAttention:
    return SelfAttention(D, heads=H, form=form, **settings).double()


def inputs(length: int = T) -> Tensor:
    return torch.randn(B, length, D, dtype=torch.float64)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_heads_at_once_equal_a_loop_over_heads(form: Form, bias: bool) -> None:
    """Rows 57, 63 and 64: head_i = Attention(X W_i^Q, X W_i^K, X W_i^V), concatenated, times W^O."""
    layer, x = self_attention(form, bias=bias), inputs()
    if bias:
        nn.init.normal_(layer.project.bias)
    heads = []
    for h in range(H):
        own = x.chunk(H, -1)[h] if form == "split" else x  # row 63: the third form splits the input
        parts = own @ layer.project.weight[h].mT[:, None]  # (3, B, T, E)
        if bias:
            parts = parts + layer.project.bias[h][:, None, None]
        heads.append(attend(*parts)[0])
    joined = torch.cat(heads, -1)
    assert joined.shape[-1] == (H * D if form == "full" else D)
    torch.testing.assert_close(layer(x), layer.heads.out(joined))


@pytest.mark.parametrize("key_dim, value_dim", [(3, 5), (5, 2)])
def test_values_may_have_a_width_of_their_own(key_dim: int, value_dim: int) -> None:
    """Vaswani et al. 2017, section 3.2.2: W_i^V has d_v columns, and W^O h d_v rows."""
    layer, x = self_attention((key_dim, value_dim)), inputs()
    assert layer.value is not None and layer.heads.out.in_features == H * value_dim
    q, k = (part.transpose(1, 2) for part in layer.project(x))
    (v,) = (part.transpose(1, 2) for part in layer.value(x))
    assert (k.shape[-1], v.shape[-1]) == (key_dim, value_dim)
    joined = ((q @ k.mT / key_dim**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.heads.out(joined))


def test_heads_may_go_without_scaling() -> None:
    layer, x = self_attention(scale=False), inputs()
    q, k, v = (part.transpose(1, 2) for part in layer.project(x))
    joined = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.heads.out(joined))


def copy_from_torch(theirs: nn.MultiheadAttention, ours: SelfAttention | CrossAttention) -> None:
    """torch stacks W_Q, W_K, W_V and has heads inside each; here a head's rows stand together."""
    if theirs.in_proj_weight is not None:
        weights = list(theirs.in_proj_weight.chunk(3))
    else:
        weights = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    weights = [w.unflatten(0, (H, -1)) for w in weights]
    biases = [b.unflatten(0, (H, -1)) for b in theirs.in_proj_bias.chunk(3)]
    with torch.no_grad():
        if isinstance(ours, SelfAttention):
            ours.project.weight.copy_(torch.stack(weights, 1))
            ours.project.bias.copy_(torch.stack(biases, 1))
        else:
            ours.query.weight.copy_(weights[0][:, None])
            ours.query.bias.copy_(biases[0][:, None])
            ours.memory.weight.copy_(torch.stack(weights[1:], 1))
            ours.memory.bias.copy_(torch.stack(biases[1:], 1))
        ours.heads.out.load_state_dict(theirs.out_proj.state_dict())


def reference(**settings: int) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64, **settings)
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    return module


@pytest.mark.parametrize("masked", ["nothing", "causal", "padding", "both"])
def test_self_attention_equals_torch(masked: str) -> None:
    """Row 64: MultiHead(Q, K, V) = Concat(head_1 .. head_h) W^O; torch's masks say True where we say False."""
    theirs, ours, x = reference(), self_attention(), inputs()
    copy_from_torch(theirs, ours)
    keep = torch.tensor([[True] * T, [True] * 3 + [False] * 2])
    look_ahead = torch.ones(T, T, dtype=torch.bool).triu(1) if masked in ("causal", "both") else None
    hidden = ~keep if masked in ("padding", "both") else None
    mask: Mask | None = {
        "nothing": None, "causal": causal(), "padding": padding(keep), "both": causal() & padding(keep),
    }[masked]  # fmt: skip
    expected, weights = theirs(x, x, x, attn_mask=look_ahead, key_padding_mask=hidden, average_attn_weights=False)
    torch.testing.assert_close(ours(x, mask=mask), expected, atol=1e-10, rtol=0)
    with record(ours) as maps:
        ours(x, mask=mask)
    torch.testing.assert_close(maps[""], weights, atol=1e-10, rtol=0)


@pytest.mark.parametrize("width", [D, M])
def test_cross_attention_equals_torch(width: int) -> None:
    """Rows 64 and 68: queries from one sequence, keys and values from another, which may have another width."""
    theirs = reference(kdim=width, vdim=width)
    ours = CrossAttention(D, heads=H, memory_dim=width).double()
    copy_from_torch(theirs, ours)
    x, memory = inputs(), torch.randn(B, S, width, dtype=torch.float64)
    keep = torch.tensor([[True] * S, [True] * 4 + [False] * 3])
    expected = theirs(x, memory, memory, key_padding_mask=~keep, need_weights=False)[0]
    torch.testing.assert_close(ours(x, ours.project_memory(memory), mask=keep), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("form", "expected"), [("paper", 1_048_576), ("full", 8_388_608), ("split", 98_304)])
def test_parameter_counts_of_the_three_forms(form: Form, expected: int) -> None:
    """Row 63, at D = 512 and 8 heads without biases."""
    assert count(SelfAttention(512, heads=8, form=form, bias=False)) == expected
    assert count(CrossAttention(512, heads=8, memory_dim=512, form=form, bias=False)) == expected


def test_only_the_papers_form_has_as_many_parameters_for_any_number_of_heads() -> None:
    """Rows 63 and 65: d_head = d_model / h; the full form grows with h, the split form falls."""
    paper, full, split = (
        [count(SelfAttention(16, heads=h, form=form, bias=False)) for h in (1, 2, 4, 8)] for form in FORMS
    )
    assert len(set(paper)) == 1
    assert full == sorted(full) and len(set(full)) == 4
    assert split == sorted(split, reverse=True) and len(set(split)) == 4
    assert SelfAttention(16, heads=8).heads.head_dim == 2
    assert SelfAttention(16, heads=8, form="full").heads.head_dim == 16


def test_one_head_of_the_papers_form_is_the_single_head_layer() -> None:
    """Rows 57 and 65: with one head and W^O = 1 it is the lectures' self-attention layer."""
    layer, single = SelfAttention(D, heads=1, bias=False), AttentionLayer(D, key_dim=D, value_dim=D)
    with torch.no_grad():
        nn.init.eye_(layer.heads.out.weight)
        for part, linear in zip(layer.project.weight[0], (single.query, single.key, single.value), strict=True):
            linear.weight.copy_(part)
    x = torch.randn(B, T, D)
    torch.testing.assert_close(layer(x), single(x))


def test_one_product_equals_three() -> None:
    """Row 52: stacked [Q; K; V] times x is Q x, K x and V x."""
    project = HeadProjection(D, heads=H, head_dim=4, parts=3, form="paper", bias=False)
    x = torch.randn(B, T, D)
    for part, got in enumerate(project(x)):
        torch.testing.assert_close(got.flatten(2), x @ project.weight[:, part].flatten(0, 1).T)


# ---- order


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_self_attention_does_not_know_the_order(form: Form, n: int) -> None:
    """Row 58: f(s(x)) = s(f(x)) at every stage, for all permutations."""
    layer, x = self_attention(form), inputs(n)
    with record(layer) as maps:
        y = layer(x)
        for order in itertools.permutations(range(n)):
            permuted = layer(x[:, order])
            torch.testing.assert_close(permuted, y[:, order])
            for before, after in zip(layer.project(x), layer.project(x[:, order]), strict=True):
                torch.testing.assert_close(after, before[:, order])
            torch.testing.assert_close(maps[max(maps, key=call)], maps[""][:, :, order][:, :, :, order])


def call(address: str) -> int:
    return int(address.partition("#")[2] or 0)


def test_a_pooled_output_is_the_same_for_any_order() -> None:
    """Row 59: attention works on sets."""
    layer, x = self_attention(), inputs(5)
    pooled = [layer(x[:, order]).mean(1) for order in itertools.permutations(range(5))]
    assert all(torch.allclose(pooled[0], other, atol=1e-12) for other in pooled)


@pytest.mark.parametrize("what", ["causal", "sinusoidal", "rotary", "shaw", "alibi", "window"])
def test_order_matters_once_there_are_positions_or_a_causal_mask(what: str) -> None:
    """Row 58: equivariance fails, and is meant to."""
    rotary, term = (
        (Rotary(4) if what == "rotary" else None),
        {"shaw": Shaw(4, max_distance=2), "alibi": Alibi(H)}.get(what),
    )
    layer, x = self_attention(rotary=rotary, term=term), inputs(5)
    code = Sinusoidal(D)(torch.arange(5)[None]).double() if what == "sinusoidal" else 0.0
    mask = {"causal": causal(), "window": window(1)}.get(what)
    order = [4, 2, 0, 1, 3]
    y = layer(x + code, mask=mask)[:, order]
    assert not torch.allclose(layer(x[:, order] + code, mask=mask), y, atol=1e-3)


@pytest.mark.parametrize("mask", [causal(), causal() & window(3)], ids=["causal", "banded"])
@pytest.mark.parametrize("looking", [False, True], ids=["fused", "explicit"])
def test_no_look_ahead(mask: Mask, looking: bool) -> None:
    """Row 61: whatever becomes of x_j, y_i stays the same to the last bit for i < j."""
    layer, x = SelfAttention(D, heads=H), torch.randn(B, 7, D)

    def run(x: Tensor) -> Tensor:
        if not looking:
            return layer(x, mask=mask)
        with record(layer):
            return layer(x, mask=mask)

    y = run(x)
    for j in range(7):
        changed = x.clone()
        changed[:, j] += 100 * torch.randn(D)
        after = run(changed)
        assert torch.equal(after[:, :j], y[:, :j])
        assert not torch.equal(after[:, j], y[:, j])


def test_masked_scores_are_minus_infinity() -> None:
    """Row 61: E_ij = -inf for j > i, so that the weights are those of softmax over the keys up to i."""
    layer, x = self_attention(), inputs()
    with record(layer) as maps:
        layer(x, mask=causal())
    q, k, _ = (part.transpose(1, 2) for part in layer.project(x))
    scores = q @ k.mT / math.sqrt(4)
    scores[..., torch.ones(T, T, dtype=torch.bool).triu(1)] = -math.inf
    torch.testing.assert_close(maps[""], scores.softmax(-1))


# ---- paths


MASKS: dict[str, Mask | None] = {
    "nothing": None,
    "causal": causal(),
    "padding": padding(torch.tensor([[True] * T, [True] * 2 + [False] * 3])),
    "window": window(1),
    "dense": dense(torch.eye(T, dtype=torch.bool)[None] | torch.ones(1, T, T, dtype=torch.bool).tril(-2)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_seen_is_what_was_used(form: Form, name: str) -> None:
    """The recorded path gives the outputs and gradients of the one that nobody looks at."""
    layer, x = self_attention(form), inputs().requires_grad_()
    y = layer(x, mask=MASKS[name])
    wanted = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    with record(layer) as maps:
        seen = layer(x, mask=MASKS[name])
    got = torch.autograd.grad(seen.square().sum(), [x, *layer.parameters()])
    assert maps[""].shape == (B, H, T, T)
    torch.testing.assert_close(seen, y)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_shaw_is_added_to_the_key() -> None:
    """Shaw et al. 2018, equation 4: e_ij = x_i W_Q (x_j W_K + a_ij) / sqrt(d_z), also where scores are not scaled."""
    for scale in (True, False):
        layer, x = self_attention(term=Shaw(4, max_distance=2), scale=scale), inputs()
        q, k, v = (part.transpose(1, 2) for part in layer.project(x))
        away = (torch.arange(T)[None, :] - torch.arange(T)[:, None]).clamp(-2, 2) + 2
        keys = k[:, :, None] + layer.heads.term.table.weight[away]  # (B, H, Q, K, E)
        scores = torch.einsum("bhqe,bhqke->bhqk", q, keys) * (0.5 if scale else 1.0)
        expected = layer.heads.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(layer(x), expected)


def test_attention_dropout_acts_in_training_only() -> None:
    for settings in ({}, {"term": Alibi(H)}):
        layer, x = self_attention(dropout=0.5, **settings), inputs()
        assert not torch.equal(layer(x), layer(x))
        layer.eval()
        assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_autocast_is_near_to_float32(form: Form) -> None:
    """8 bits are good for about 3e-2 here."""
    layer, cross = SelfAttention(D, heads=H, form=form), CrossAttention(D, heads=H, memory_dim=D, form=form)
    x = torch.randn(B, T, D)
    expected = cross(layer(x, mask=causal()), cross.project_memory(x))
    with torch.autocast("cpu", torch.bfloat16):
        memory = cross.project_memory(x)
        got = cross(layer(x, mask=causal()), memory)
    assert memory.keys.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected, atol=3e-2, rtol=3e-2)


def test_sizes_that_do_not_fit_are_said() -> None:
    with pytest.raises(SaccadeError, match="multiple of the heads, got dim = 10 and heads = 4"):
        SelfAttention(10, heads=4)
    with pytest.raises(SaccadeError, match="dim = 512 and heads = 6"):
        SelfAttention(512, heads=6)  # as one of the notes has it; the paper's base model has 8
    with pytest.raises(SaccadeError, match="3 heads cannot split a width of 11"):
        CrossAttention(D, heads=3, memory_dim=11, form="split")


def test_xavier_bound_is_that_of_each_matrix_alone() -> None:
    weight = HeadProjection(64, heads=4, head_dim=16, parts=3, form="paper", bias=True).weight
    bound = math.sqrt(6 / (64 + 64))
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


# ---- values of another width than keys (d_v)


@pytest.mark.parametrize("cross", [False, True])
@torch.no_grad()
def test_values_of_their_own_width_follow_the_formula(cross):
    """softmax(Q K^T / sqrt(d_k)) V with d_k = 3 and d_v = 5, head by head."""
    torch.manual_seed(1)
    x, memory = torch.randn(2, 7, 12).double(), torch.randn(2, 6, 10).double()
    if cross:
        layer = CrossAttention(12, heads=2, memory_dim=10, form=(3, 5)).double()
        got, keys, parts = layer(x, layer.project_memory(memory)), memory, (layer.query, layer.memory)
    else:
        layer = SelfAttention(12, heads=2, form=(3, 5)).double()
        got, keys, parts = layer(x), x, (layer.project, layer.project)
    heads = []
    for h in range(2):
        query = x @ parts[0].weight[h, 0].T + parts[0].bias[h, 0]
        key = keys @ parts[1].weight[h, -1].T + parts[1].bias[h, -1]
        value = keys @ layer.value.weight[h, 0].T + layer.value.bias[h, 0]
        heads.append((query @ key.mT / 3**0.5).softmax(-1) @ value)
    expected = torch.cat(heads, -1) @ layer.heads.out.weight.T + layer.heads.out.bias
    torch.testing.assert_close(got, expected)
    assert layer.value.weight.shape == (2, 1, 5, 10 if cross else 12) and layer.heads.out.weight.shape == (12, 10)
    assert layer.width == 2 * (3 + 5) // 2


def test_equal_widths_are_one_projection():
    """Runs and kernels know this form; a pair of equal widths is it too."""
    layer = SelfAttention(12, heads=2, form=(5, 5))
    assert layer.value is None and layer.project.weight.shape == (2, 3, 5, 12)


def test_kernels_decline_values_of_their_own_width():
    with pytest.raises(Unsupported, match="its values have another width than its keys"):
        SelfAttention(12, heads=2, form=(3, 5)).describe()
