"""Attention scores in multi-head, recurrent and convolutional attention, against explicit formulas in float64."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.protocols import ScoreCapabilities, get_capabilities
from saccade.errors import SaccadeError
from saccade.layers.attention.masks import Mask, causal, padding, window
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Alibi, Rotary
from saccade.layers.attention.scores import Additive, Bilinear, Concat, Dot, masked_softmax
from saccade.layers.blocks import repeated_passes
from saccade.layers.memory import Memory
from saccade.layers.packing import build_packing
from saccade.layers.record import record
from saccade.model.build.options import Options
from saccade.model.build.stacks import build_writer_stack

B, T, S, H, D, M, HIDDEN = 2, 5, 7, 3, 12, 11, 13
E = D // H
REAL = torch.arange(S) < torch.tensor([[7], [4]])


class Cosine(nn.Module):
    """A user's score: cosine similarity times a learned temperature of each head; declares nothing."""

    def __init__(self, query_dim: int, key_dim: int, heads: int = 1, *, temperature: float = 3.0) -> None:
        super().__init__()
        self.temperature = nn.Parameter(
            torch.full((heads, 1, 1), temperature) + 0.1 * torch.arange(heads)[:, None, None]
        )

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.temperature * nn.functional.normalize(query, dim=-1) @ nn.functional.normalize(key, dim=-1).mT


class FusedCosine(Cosine):
    """The same, declared as a dot product."""

    capabilities = ScoreCapabilities(dot_product=True, static_shapes=True)

    def project_query(self, query: Tensor) -> Tensor:
        return self.temperature * nn.functional.normalize(query, dim=-1)

    def project_keys(self, key: Tensor) -> Tensor:
        return nn.functional.normalize(key, dim=-1)


def build_score(kind: str, heads: int | None = H, query_dim: int = E, key_dim: int = E) -> Any:
    match kind:
        case "additive":
            return Additive(query_dim, key_dim=key_dim, hidden_dim=HIDDEN, heads=heads).double()
        case "concat":
            return Concat(query_dim, key_dim=key_dim, hidden_dim=HIDDEN, heads=heads).double()
        case "general":
            return Bilinear(query_dim, key_dim=key_dim, heads=heads).double()
        case "cosine":
            return Cosine(query_dim, key_dim, heads or 1).double()
        case "fused cosine":
            return FusedCosine(query_dim, key_dim, heads or 1).double()
    return Dot(scaled=kind == "scaled-dot")


def compute_by_formula(score: Any, kind: str, q: Tensor, k: Tensor, head: int) -> Tensor:
    """The score of one query and one key, as a sum over features."""
    match kind:
        case "scaled-dot":
            return sum(q * k) / math.sqrt(len(q))
        case "dot":
            return sum(q * k)
        case "cosine" | "fused cosine":
            return score.temperature[head, 0, 0] * sum(q * k) / (sum(q**2) * sum(k**2)).sqrt()
    own = [part.weight[head].T if part.weight.ndim == 3 else part.weight for part in score.children()]
    if kind == "general":
        return sum(q[i] * own[0][i, j] * k[j] for i in range(len(q)) for j in range(len(k)))
    w, u, v = own
    return sum(v[0] * torch.tanh(torch.cat((w, u), 1) @ torch.cat((q, k))))  # W [q; k], in one matrix


KINDS = ["scaled-dot", "dot", "general", "additive", "concat", "cosine", "fused cosine"]
OTHERS = KINDS[2:]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [None, H])
def test_scores_equal_their_formula(kind: str, heads: int | None) -> None:
    score = build_score(kind, heads)
    shape = (B,) if heads is None else (B, H)
    q, k = torch.randn(*shape, 2, E).double(), torch.randn(*shape, 3, E).double()
    got = score(q, k)
    assert got.shape == (*shape, 2, 3)
    for index in torch.cartesian_prod(*map(torch.arange, got.shape)).tolist():
        *rows, i, j = index
        head = rows[1] if heads else 0
        wanted = compute_by_formula(score, kind, q[(*rows, i)], k[(*rows, j)], head)
        torch.testing.assert_close(got[tuple(index)], wanted, atol=1e-12, rtol=0)


def test_heads_differ() -> None:
    """Each head has parameters of its own."""
    q, k = (torch.randn(1, 1, 4, E).double().expand(B, H, 4, E) for _ in range(2))
    for kind in OTHERS:
        got = build_score(kind)(q, k)
        assert not torch.allclose(got[:, 0], got[:, 1]), kind


def attend_by_hand(layer: SelfAttention, score: Any, x: Tensor, allowed: Tensor | None, bias: Any = 0.0) -> Tensor:
    """softmax(score(q, k) + bias) v for all heads, with the layer's projections."""
    *queries, key, value = layer.project(x)
    query = queries[0] if len(queries) == 1 else torch.stack(queries, -2).flatten(-3, -2)
    times = query.shape[2] // key.shape[2]
    key, value = (part.repeat_interleave(times, 2) for part in (key, value))
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    if layer.rotary is not None:
        q, k = (layer.rotary(part, torch.arange(x.shape[1])[None]) for part in (q, k))
    weights = masked_softmax(score(q, k) + bias, allowed)
    return layer.heads.out((weights @ v).transpose(1, 2).flatten(2))


def build_layer(kind: str, **more: Any) -> tuple[SelfAttention, Any]:
    layer = SelfAttention(D, heads=more.pop("heads", H), **more).double()
    score = build_score(kind, query_dim=layer.heads.head_dim, key_dim=layer.heads.head_dim)
    layer.heads.set_score(score)
    return layer, score


@torch.no_grad()
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("more", [{}, {"form": "full"}, {"form": "split"}, {"heads": (H, 1)}, {"rotary": Rotary(E)}])
def test_multi_head_attention_uses_the_score(kind: str, more: dict[str, Any]) -> None:
    """Of heads of all forms, with grouped keys, with rotary positions, and with every mask."""
    layer, score = build_layer(kind, **more)
    x, places = torch.randn(B, S, D).double(), torch.arange(S)
    masks: list[tuple[Mask | None, Tensor | None]] = [
        (None, None),
        (causal(), places <= places[:, None]),
        (padding(REAL), REAL[:, None, None]),
        (causal() & window(2), (places <= places[:, None]) & (places >= places[:, None] - 2)),
        (window(1), (places - places[:, None]).abs() <= 1),
    ]
    for mask, allowed in masks:
        torch.testing.assert_close(layer(x, mask=mask), attend_by_hand(layer, score, x, allowed), atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", OTHERS)
def test_a_bias_of_distances_is_added_to_the_score(kind: str) -> None:
    layer, score = build_layer(kind, term=Alibi(H))
    x, places = torch.randn(B, S, D).double(), torch.arange(S)[None]
    bias = layer.heads.term(torch.zeros(B, H, S, E).double(), places, places)
    torch.testing.assert_close(layer(x), attend_by_hand(layer, score, x, None, bias), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", OTHERS)
def test_padding_gets_zero_weight_and_weights_sum_to_one(kind: str) -> None:
    layer, _ = build_layer(kind)
    with record(layer) as maps:
        layer(torch.randn(B, S, D).double(), mask=padding(REAL))
    weights = maps[""]
    assert weights.shape == (B, H, S, S) and not weights[1, :, :, 4:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, S).double())


@pytest.mark.parametrize("kind", OTHERS)
def test_recording_does_not_change_the_output(kind: str) -> None:
    layer, x = build_layer(kind)[0].eval(), torch.randn(B, S, D).double()
    with record(layer):
        recorded = layer(x, mask=causal())
    torch.testing.assert_close(layer(x, mask=causal()), recorded, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", OTHERS)
def test_gradients_reach_every_parameter_of_the_score(kind: str) -> None:
    layer, score = build_layer(kind)
    layer(torch.randn(B, S, D).double(), mask=padding(REAL)).square().sum().backward()
    for name, parameter in score.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().amax(tuple(range(1, parameter.ndim))).min() > 0, name


@torch.no_grad()
@pytest.mark.parametrize("kind", OTHERS)
def test_packed_sequences_attend_as_padded_ones_do(kind: str) -> None:
    layer, lengths = build_layer(kind)[0], [7, 4]
    x, row = torch.randn(B, S, D).double(), build_packing(lengths, tokens=sum(lengths))
    packed = layer(torch.cat([x[i, :n] for i, n in enumerate(lengths)])[None], mask=causal(), packing=row)
    expected = layer(x, mask=causal())
    torch.testing.assert_close(packed[0], torch.cat([expected[i, :n] for i, n in enumerate(lengths)]))


@torch.no_grad()
@pytest.mark.parametrize("kind", OTHERS)
def test_rows_that_share_memory_attend_as_if_each_had_its_own(kind: str) -> None:
    cross = CrossAttention(D, heads=H, memory_dim=M).double()
    cross.heads.set_score(build_score(kind))
    x, states = torch.randn(3 * B, 1, D).double(), torch.randn(B, S, M).double()
    each = [part.repeat_interleave(3, 0) for part in (states, REAL)]
    got = cross(x, cross.project_memory(states), mask=REAL)
    with torch.enable_grad():  # not the C kernels of a decoding step
        expected = cross(x, cross.project_memory(each[0]), mask=each[1])
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


# ---- stacks of recipes

OWN = {"cosine": Cosine, "fused-cosine": FusedCosine}
SIZES = {"layers": 2, "dim": D, "heads": H, "ff": 17, "dropout": 0.0}
SCORES: list[Any] = ["scaled-dot", "dot", "general", "additive", {"kind": "additive", "hidden_dim": 5}, "concat"]
SCORES += [{"kind": "cosine", "temperature": 2.0}, "fused-cosine"]


def build_stack(*, memory_dim: int | None = M, positions: str = "none", causal: bool = True, **stack: Any) -> Any:
    from saccade.config.load import validate

    torch.manual_seed(3)
    part = {"kind": "tokens", "tie": "output", "stack": {**SIZES, **stack}, "positions": {"kind": positions}}
    table = validate({"writer": part}, kinds=OWN).writer
    built = build_writer_stack(table, Options(schema.Train()), memory_dim=memory_dim, causal=causal)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.4)
    return built.double().eval()


@torch.no_grad()
@settings(max_examples=60, deadline=None)
@given(
    score=st.sampled_from(SCORES),
    cross_score=st.sampled_from([*SCORES, "none"]),
    positions=st.sampled_from(["none", "rotary", "alibi", "bucketed"]),
    heads=st.sampled_from([{}, {"kv_heads": 1}, {"head_projection": "full"}, {"head_dim": 5}]),
    window=st.sampled_from(["none", 1, 2]),
    norm=st.sampled_from(["pre", "post"]),
    first=st.integers(1, T - 1),
)
def test_steps_with_a_cache_equal_a_full_pass(score, cross_score, positions, heads, window, norm, first) -> None:
    """A prompt of `first` positions, then one at a time, with rows reordered between; drawn at random."""
    head_dim = heads.get("head_dim", E)
    positions = "none" if positions == "rotary" and head_dim % 2 else positions
    stack = build_stack(score=score, cross_score=cross_score, positions=positions, window=window, norm=norm, **heads)
    x, memory = torch.randn(B, T, D).double(), Memory(torch.randn(B, S, M).double(), REAL)
    with torch.enable_grad():  # not the C kernels of a decoding step
        expected = stack(x, None, memory)[0].detach()
    state, outputs = stack.start(memory, rows=B, capacity=T), []
    for part in (x[:, :first], *x[:, first:].split(1, 1)):
        y, _, state, _ = stack(part, None, None, state)
        outputs.append(y)
        state = state.reorder(torch.arange(B))
    torch.testing.assert_close(torch.cat(outputs, 1), expected, atol=1e-5, rtol=0)  # buckets and slopes are float32


@torch.no_grad()
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_steps_follow_reordered_beams(score: Any) -> None:
    stack, x = build_stack(score=score), torch.randn(B, T, D).double()
    memory = Memory(torch.randn(B, S, M).double(), REAL)
    order = torch.tensor([1, 1])
    state = stack(x[:, :3], None, None, stack.start(memory, rows=B, capacity=T))[2].reorder(order)
    got = stack(x[order][:, 3:4], None, None, state)[0]
    with torch.enable_grad():
        expected = stack(x[order], None, Memory(memory.states[order], REAL[order]))[0][:, 3:4]
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("score", ["general", "fused-cosine"])
def test_dot_products_run_on_static_buffers_and_in_repeated_passes(score: str) -> None:
    from saccade.layers.attention.static_cache import StaticSizes

    stack, x = build_stack(score=score), torch.randn(B, 1, D).double()
    memory = Memory(torch.randn(B, S, M).double(), REAL)
    state = stack.start_static(StaticSizes(rows=B, beams=1, capacity=4, source_length=S))
    state.reset(1)
    state.load_memory(stack.project_memory(memory.states), REAL)
    assert get_capabilities(stack).static_step
    torch.testing.assert_close(stack.step_static(x, state), stack(x, None, memory)[0], atol=1e-12, rtol=0)

    stack = build_stack(score=score, causal=False)
    cross = repeated_passes.project_memory(stack, memory.states, REAL)
    assert repeated_passes.supports(stack)
    got = repeated_passes.run_stack(stack, x, None, cross)
    torch.testing.assert_close(got, stack(x, None, memory)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("score", "lacking"),
    [
        ("scaled-dot", {}),
        ("dot", {}),
        ("general", {}),
        ("fused-cosine", {}),
        ("additive", dict.fromkeys(("static_step", "fused_cpu_step"), "attention score Additive is not a dot product")),
        (
            "cosine",
            {
                "packed_rows": "attention score Cosine does not declare static_shapes",
                "static_shapes": "attention score Cosine does not declare static_shapes",
                "static_step": "attention score Cosine is not a dot product",
                "fused_cpu_step": "attention score Cosine is not a dot product",
            },
        ),
    ],
)
def test_a_stack_says_what_it_cannot_do_with_a_score(score: str, lacking: dict[str, str]) -> None:
    found = get_capabilities(build_stack(score=score), "stack")
    for name in ("packed_rows", "static_shapes", "static_step", "fused_cpu_step"):
        assert found.explain_missing(name).removeprefix("stack's ") == lacking.get(name, ""), name
    filling = build_stack(score=score, causal=False)
    assert repeated_passes.supports(filling) is False  # gradients are enabled
    assert get_capabilities(filling).repeated_passes == (score not in ("additive", "cosine"))


@pytest.mark.parametrize("score", ["general", "additive", "cosine"])
def test_kernels_of_a_decoding_step_decline(score: str) -> None:
    from saccade.kernels.weights import Unsupported

    with pytest.raises(Unsupported, match=r"its attention score is \w+, not a scaled dot product"):
        build_stack(score=score).describe_step()
    build_stack(score="dot").describe_step()


@pytest.mark.parametrize("positions", ["shaw", "transformer-xl"])
def test_positions_that_are_dot_products_need_one(positions: str) -> None:
    for score in ("general", "fused-cosine"):
        build_stack(score=score, positions=positions)
    with pytest.raises(SaccadeError, match=f'positions.kind = "{positions}" is a part of a dot product, got stack.sco'):
        build_stack(score="additive", positions=positions)


# ---- scores that users bring


def test_a_score_of_the_wrong_shape_is_one_line() -> None:
    layer = SelfAttention(D, heads=H).double()
    layer.heads.set_score(lambda query, key: query.sum(-1))
    expected = r"score <lambda> must return scores \(..., queries, keys\) = \(2, 3, 5, 5\), got \(2, 3, 5\)"
    with pytest.raises(SaccadeError, match=expected):
        layer(torch.randn(B, T, D).double())


def test_a_dot_product_of_another_width_is_one_line() -> None:
    layer, score = build_layer("fused cosine")
    score.project_keys = lambda key: key[..., 1:]
    with pytest.raises(SaccadeError, match="its queries and keys must keep the width 4 of a head, got 3"):
        layer(torch.randn(B, T, D).double())


def test_keys_are_projected_once_for_all_steps() -> None:
    stack, calls = build_stack(score="additive"), []
    stack.blocks[0].self.heads.score.key.register_forward_hook(lambda module, given, made: calls.append(made.shape[-2]))
    stack.blocks[0].cross.heads.score.key.register_forward_hook(
        lambda module, given, made: calls.append(made.shape[-2])
    )
    with torch.no_grad():
        state = stack.start(Memory(torch.randn(B, S, M).double(), REAL), rows=B, capacity=3)
        calls.clear()
        for _ in range(3):
            state = stack(torch.randn(B, 1, D).double(), None, None, state)[2]
    assert calls == [1, 1, 1]


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (
            lambda width, *, a=1: None,
            r"take \(query_dim, key_dim\) or \(query_dim, key_dim, heads\) .* got \(width\)",
        ),
        (lambda q, k, h: None, r"got \(q, k, h\); change its parameters"),
        (lambda q, k: 3, "return a module or function from queries and keys to scores, got int"),
    ],
)
def test_a_maker_that_cannot_be_called_is_one_line(maker: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN, "bad", maker)
    with pytest.raises(SaccadeError, match=f"the attention score 'bad' must .*{message}"):
        build_stack(score="bad")


# ---- convolutional attention


@torch.no_grad()
@pytest.mark.parametrize("score", ["dot", "scaled-dot", "general", "additive", "concat", "cosine"])
def test_convolutional_steps_equal_a_full_pass(score: str) -> None:
    from saccade.config.load import validate

    stack_table = {"kind": "convolution", "layers": 2, "dim": D, "score": score, "dropout": 0.0}
    part = {"kind": "tokens", "tie": "output", "stack": stack_table, "positions": {"kind": "none"}}
    table = validate({"writer": part}, kinds=OWN).writer
    stack = build_writer_stack(table, Options(schema.Train()), memory_dim=D).double().eval()
    x, memory = torch.randn(B, T, D).double(), Memory(torch.randn(B, S, D).double(), REAL)
    with record(stack) as maps:
        expected = stack(x, None, memory)[0]
    weights = maps["blocks.0.cross"]
    assert not weights[1, :, :, 4:].any()
    cross = stack.blocks[0].cross
    assert (cross.score is None) == (score == "dot")
    state, outputs = stack.start(memory, rows=B, capacity=T), []
    for part in x.split(1, 1):
        y, _, state, _ = stack(part, None, None, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, atol=1e-12, rtol=0)
    missing = get_capabilities(stack).explain_missing("static_shapes")
    assert missing.endswith("attention score Cosine does not declare static_shapes") == (score == "cosine")
