"""Scores and local attention of a recurrent writer (Luong et al. 2015)."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.load import validate
from saccade.config.protocols import get_capabilities
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import LocalWindow, SoftAttention
from saccade.layers.attention.scores import Concat, masked_softmax
from saccade.layers.blocks.recurrence import BahdanauRecurrence, LuongRecurrence
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.build.options import Options
from saccade.model.build.stacks import build_writer_stack

B, T, S, D, M = 3, 6, 11, 10, 7
LENGTHS = torch.tensor([11, 6, 1])
REAL = torch.arange(S) < LENGTHS[:, None]


def make_distance(query_dim: int, key_dim: int, *, power: float = 2.0) -> Any:
    """A user's score without parameters: minus the distance of the first features."""
    width = min(query_dim, key_dim)
    return lambda query, key: -torch.cdist(query[..., :width], key[..., :width], p=power)


class Early(nn.Module):
    """A user's score that attends before each step."""

    attends_before_step = True

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(query_dim, key_dim)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.project(query) @ key.mT


OWN = {"distance": make_distance, "early": Early}
SCORES: list[Any] = [
    {"attention": "additive"},
    {"attention": "dot"},
    {"attention": "general"},
    {"attention": "concat"},
    {"attention": "score", "score": {"kind": "concat", "hidden_dim": 3}},
    {"attention": "score", "score": {"kind": "additive", "hidden_dim": 3}},
    {"attention": "score", "score": "scaled-dot"},
    {"attention": "score", "score": {"kind": "distance", "power": 1.0}},
    {"attention": "score", "score": "early"},
]
WINDOWS: list[Any] = ["none", {"kind": "monotonic", "window": 2}, {"kind": "predictive", "window": 2}]


def load_stack(**stack: Any) -> Any:
    part = {
        "kind": "tokens", "tie": "output", "positions": {"kind": "none"},
        "stack": {"kind": "recurrent", "cell": "gru", "layers": 2, "dim": D, "dropout": 0.0, **stack},
    }  # fmt: skip
    return validate({"writer": part}, kinds=OWN).writer


def get_width(stack: dict[str, Any]) -> int:
    return D if "dot" in (stack["attention"], str(stack.get("score"))[-3:]) else M


def build(**stack: Any) -> Any:
    torch.manual_seed(5)
    built = build_writer_stack(load_stack(**stack), Options(schema.Train()), memory_dim=get_width(stack))
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.6)
    return built.double().eval()


def read(width: int) -> Memory:
    return Memory(torch.randn(B, S, width).double(), REAL)


@torch.no_grad()
@pytest.mark.parametrize("local", WINDOWS, ids=str)
@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("feeding", [True, False])
def test_steps_equal_teacher_forcing(score: dict[str, Any], local: Any, feeding: bool) -> None:
    """One by one, after a prompt of three, and with reordered rows; weights outside of window and source are zero."""
    early = score["attention"] == "additive" or any(name in str(score.get("score")) for name in ("additive", "early"))
    if early and not feeding:
        return
    stack, x = build(**score, local=local, input_feeding=feeding), torch.randn(B, T, D).double()
    assert isinstance(stack.recurrence, BahdanauRecurrence if early else LuongRecurrence)
    memory = read(get_width(score))
    with record(stack) as maps:
        expected = stack(x, None, memory)[0]
    weights = maps["recurrence.cross"]
    assert weights.shape == (B, 1, T, S) and not weights.mT[~REAL[:, None].expand(B, 1, S)].any()
    if local != "none":
        assert (weights > 0).sum(-1).max() <= 5  # 2 D + 1
    state, outputs, order = stack.start(memory, rows=B, capacity=T), [], torch.tensor([2, 0, 1])
    y, _, state, _ = stack(x[:, :3], None, None, state)
    outputs.append(y)
    for part in x[:, 3:].split(1, 1):
        y, _, state, _ = stack(part[order], None, None, state.reorder(order))
        outputs.append(y[order.argsort()])
        state = state.reorder(order.argsort())
    torch.testing.assert_close(torch.cat(outputs, 1), expected, atol=1e-12, rtol=0)


def test_concat_has_one_matrix_for_query_and_key() -> None:
    """v . tanh(W [q; k]), and W is initialized with the fan-in of both."""
    score = Concat(D, key_dim=M, hidden_dim=64)
    matrix = torch.cat((score.query.weight, score.key.weight), 1)
    q, k = torch.randn(D), torch.randn(M)
    expected = score.energy.weight[0] @ torch.tanh(matrix @ torch.cat((q, k)))
    torch.testing.assert_close(score(q[None], k[None])[0, 0], expected)
    assert 0.9 * (D + M) ** -0.5 < matrix.abs().max() <= (D + M) ** -0.5


@torch.no_grad()
@pytest.mark.parametrize("predictive", [False, True])
def test_local_attention_equals_its_formula(predictive: bool) -> None:
    """Luong et al. 2015, section 3.2: p_t, the softmax over the window, and the Gaussian, in loops over positions."""
    radius, score = 2, Concat(D, key_dim=M, hidden_dim=5).double()
    local = LocalWindow(D, radius=radius, predictive=predictive).double()
    for parameter in local.parameters():
        nn.init.normal_(parameter)
    cross, memory = SoftAttention(score, local), read(M)
    query, steps = torch.randn(B, T, D).double(), torch.arange(T).expand(B, T)
    context, weights = cross(query, cross.project_memory(memory), steps)
    centers = set()
    for row in range(B):
        for t in range(1, T + 1):
            h, length = query[row, t - 1], int(LENGTHS[row])
            p = float(t)
            if predictive:
                p = length * torch.sigmoid(local.center.weight[0] @ torch.tanh(local.hidden.weight @ h)).item()
            centers.add(p)
            inside = [s for s in range(1, length + 1) if p - radius <= s <= p + radius]
            scores = torch.tensor([score(h[None], memory.states[row, s - 1][None]).item() for s in inside]).double()
            expected = torch.zeros(S).double()
            for s, weight in zip(inside, scores.softmax(0), strict=True):
                gauss = torch.exp(torch.tensor(-((s - p) ** 2) / (2 * (radius / 2) ** 2))) if predictive else 1.0
                expected[s - 1] = weight * gauss
            torch.testing.assert_close(weights[row, t - 1], expected, atol=1e-6, rtol=0)
            torch.testing.assert_close(context[row, t - 1], expected @ memory.states[row], atol=1e-5, rtol=0)
    assert len(centers) == (B * T if predictive else T)


def test_an_output_that_outruns_its_source_attends_to_nothing() -> None:
    """local-m: the window is behind the source of one state from step 1 + D + 1 on."""
    cross, memory = (
        SoftAttention(Concat(D, key_dim=M, hidden_dim=5), LocalWindow(D, radius=2, predictive=False)),
        read(M),
    )
    cross = cross.double()
    context, weights = cross(torch.randn(B, T, D).double(), cross.project_memory(memory), torch.arange(T).expand(B, T))
    assert weights[2].sum(-1).tolist() == [1, 1, 1, 0, 0, 0] and not context[2, 3:].any()


def test_gradients_reach_the_predicted_position() -> None:
    stack = build(attention="general", local={"kind": "predictive", "window": 2})
    stack(torch.randn(B, T, D).double(), None, read(M))[0].square().sum().backward()
    for parameter in stack.recurrence.cross.parameters():
        assert parameter.grad.abs().max() > 0


@torch.no_grad()
def test_a_wide_window_of_local_m_is_global_attention() -> None:
    x, memory = torch.randn(B, T, D).double(), read(M)
    whole, local = build(attention="general"), build(attention="general", local={"kind": "monotonic", "window": 99})
    torch.testing.assert_close(whole(x, None, memory)[0], local(x, None, memory)[0])


@torch.no_grad()
def test_attention_weights_are_those_of_the_score() -> None:
    """A user's score, after the step: the weights follow from the states that come out of the layers."""
    stack = build(attention="score", score={"kind": "distance", "power": 1.0}, input_feeding=False)
    memory, seen = read(M), []
    stack.recurrence.cross.register_forward_hook(lambda module, given, made: seen.append((given[0], made[1])))
    stack(torch.randn(B, T, D).double(), None, memory)
    [(query, weights)] = seen
    expected = masked_softmax(-torch.cdist(query[..., :M], memory.states, p=1.0), REAL[:, None])
    torch.testing.assert_close(weights, expected)


def test_scores_that_declare_nothing_are_kept_out_of_graphs() -> None:
    for score in SCORES[:-2]:
        assert get_capabilities(build(**score)).static_shapes
    for score, name in zip(SCORES[-2:], ("<lambda>", "Early"), strict=True):
        reason = get_capabilities(build(**score)).explain_missing("static_shapes")
        assert reason.endswith(f"attention score {name} does not declare static_shapes")


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ({"attention": "score"}, 'attention = "score" needs the key score, such as score = "concat"; set it'),
        ({"score": "concat"}, 'score = "concat" is for attention = "score", got "none"; set attention = "score"'),
        ({"attention": "dot", "score": "concat"}, 'is for attention = "score", got "dot"'),
        ({"attention": "score", "score": "early", "input_feeding": False}, '"early" is computed before each step'),
        ({"attention": "concat", "context_gate": True}, 'context_gate = true is for attention = "additive", got "conc'),
        ({"local": {}}, 'local attention has soft weights over a sequence, got attention = "none"; leave local out'),
        ({"attention": "around", "local": {}}, 'local attention .* got attention = "around"; leave local out'),
        ({"attention": "additive", "hard_attention": True, "local": {}}, "got hard_attention = true; leave local out"),
        ({"attention": "dot", "local": {"window": 0}}, "writer.stack.local.window: expected at least 1, got 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(stack: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        load_stack(**stack)
    assert "\n" not in str(error.value)


def test_dot_products_need_one_width() -> None:
    for stack in ({"attention": "dot"}, {"attention": "score", "score": "scaled-dot"}):
        with pytest.raises(SaccadeError, match="needs a writer as wide as its reader, got 10 and 7"):
            build_writer_stack(load_stack(**stack), Options(schema.Train()), memory_dim=M)


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (
            {"score": "additive", "scale_attention": False},
            'scale_attention is for score = "scaled-dot", got "add',
        ),
        (
            {"score": "concat", "residual": "reversible", "norm": "pre", "attention": "lsh"},
            'computes scaled dot products, also in "local" and "lsh" attention; leave score = "concat" out',
        ),
        (
            {"kind": "convolution", "score": "general", "attention": [False]},
            'score = "general" is for attention to the memory, but no layer attends',
        ),
    ],
)
def test_stacks_say_where_a_score_cannot_be(stack: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        validate({"reader": {"stack": stack}})
    assert "\n" not in str(error.value)
