"""The stack of a recurrent writer: context, attention, initial states. Rows are those of the lectures."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.attention.scores import Bilinear, Dot
from saccade.layers.blocks.recurrence import BahdanauRecurrence, FixedContextRecurrence, LuongRecurrence
from saccade.layers.blocks.recurrent import CELLS, LayerWeights, RecurrentStack, step_cell
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.layers.memory import Memory
from saccade.layers.record import record

B, T, S, D, M = 3, 5, 7, 10, 6
LENGTHS = torch.tensor([7, 4, 1])
KEEP = torch.arange(S) < LENGTHS[:, None]
FORMS = ["none", "none fed", "additive", "dot", "dot fed", "general", "general fed"]


def stack(form: str, *, cell: str = "gru", layers: int = 2, connections: str = "none", **first: Any) -> RecurrentWriter:
    kind, feeds = form.removesuffix(" fed"), form.endswith(" fed")
    width = D if kind == "dot" else M
    sizes: Any = {"cell": cell, "layers": layers}
    more: Any = {**sizes, "connections": connections}
    recurrence: Any
    if kind == "none":
        recurrence = FixedContextRecurrence(D, memory_dim=width if feeds else 0, **more)
    elif kind == "additive":
        recurrence = BahdanauRecurrence(D, memory_dim=width, **more)
    else:
        score = Dot() if kind == "dot" else Bilinear(D, key_dim=width)
        recurrence = LuongRecurrence(D, memory_dim=width, cross=SoftAttention(score), input_feeding=feeds, **more)
    begin = InitialState(D, memory_dim=width, **sizes, **{"context": "last", "initial": "predicted", **first})
    made = RecurrentWriter(recurrence, first=begin, dim=D)
    for name, parameter in made.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)  # zeros would hide mistakes
    return made.double().eval()


def inputs(*, length: int = T, width: int = D) -> Tensor:
    return torch.randn(B, length, width, dtype=torch.float64)


def read(form: str) -> Memory:
    width = D if form.startswith("dot") else M
    return Memory(inputs(length=S, width=width), KEEP, final=((torch.randn(B, width).double(),),))


@torch.no_grad()
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("form", FORMS)
def test_steps_equal_teacher_forcing(form: str, cell: str) -> None:
    """Rows 3 and 17: the whole text at once, step by step, and after a prompt; one and three layers."""
    for layers, connections in ((1, "residual"), (3, "residual"), (1, "fast-forward"), (3, "fast-forward")):
        one, x, memory = stack(form, cell=cell, layers=layers, connections=connections), inputs(), read(form)
        whole, _, nothing, aux = one(x, None, memory)
        assert nothing is None and set(aux) <= {"attention"}
        for sizes in ([1] * T, [3, 1, 1]):
            state, parts = one.start(memory, rows=B, capacity=T), []
            for part in x.split(sizes, 1):
                y, _, state, _ = one(part, None, None, state)
                parts.append(y)
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)
            assert state.lengths.tolist() == [T] * B


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_steps_equal_teacher_forcing_with_tokens_of_another_width(form: str) -> None:
    kind, feeds = form.removesuffix(" fed"), form.endswith(" fed")
    width, memory, widths = D if kind == "dot" else M, read(form), (4, D)
    sizes: Any = {"cell": "gru", "layers": 3, "connections": "fast-forward"}
    recurrence: Any
    if kind == "none":
        recurrence = FixedContextRecurrence(widths, memory_dim=width if feeds else 0, **sizes)
    elif kind == "additive":
        recurrence = BahdanauRecurrence(widths, memory_dim=width, **sizes)
        recurrence.use_maxout(7)
    else:
        score = SoftAttention(Dot() if kind == "dot" else Bilinear(D, key_dim=width))
        recurrence = LuongRecurrence(widths, memory_dim=width, cross=score, input_feeding=feeds, **sizes)
    begin = InitialState(D, cell="gru", layers=3, memory_dim=width, context="last", initial="predicted")
    one = RecurrentWriter(recurrence, first=begin, dim=7 if kind == "additive" else D, input_dim=4).double().eval()
    x = inputs(width=4)
    whole, state, parts = one(x, None, memory)[0], one.start(memory, rows=B, capacity=T), []
    for part in x.split([2, 1, 2], 1):
        y, _, state, _ = one(part, None, None, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)
    assert whole.shape[-1] == one.dim


@torch.no_grad()
def test_maxout_is_the_larger_one_of_two_linear_maps() -> None:
    """Bahdanau et al. 2015, appendix A.2.2: t_ij = max(u_{i, 2j-1}, u_{i, 2j}) of U s + V y + C c."""
    one, x, memory = stack("additive", layers=1), inputs(), read("additive")
    plain = one(x, None, memory)[0]
    before = torch.atanh(plain)  # W [s; c; y] + b
    weight, bias = one.recurrence.readout.weight, one.recurrence.readout.bias
    one.recurrence.use_maxout(D // 2)
    one.double()
    one.recurrence.readout.weight.copy_(weight)
    one.recurrence.readout.bias.copy_(bias)
    expected = torch.stack([torch.maximum(before[..., 2 * j], before[..., 2 * j + 1]) for j in range(D // 2)], -1)
    torch.testing.assert_close(one(x, None, memory)[0], expected, atol=1e-8, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_the_padding_of_memory_and_later_words_change_nothing(form: str) -> None:
    one, x, memory = stack(form), inputs(), read(form)
    before = one(x, None, memory)[0]
    noise = torch.where(KEEP[..., None], memory.states, 1e4)
    changed = x.clone()
    changed[:, 3:] += 1
    after = one(changed, None, replace(memory, states=noise))[0]
    torch.testing.assert_close(after[:, :3], before[:, :3], atol=1e-12, rtol=0)
    assert not torch.allclose(after[:, 3], before[:, 3])


@torch.no_grad()
@pytest.mark.parametrize("rows", [[2], [1, 1, 0, 2, 2], [2, 0, 1], [0, 1, 2]])
@pytest.mark.parametrize("form", FORMS)
def test_reordered_rows_go_on_as_themselves(form: str, rows: list[int]) -> None:
    one, x, memory = stack(form, cell="lstm"), inputs(), read(form)
    expected = one(x, None, memory)[0]
    state = one(x[:, :3], None, None, one.start(memory, rows=B, capacity=T))[2].reorder(torch.tensor(rows))
    for t in (3, 4):
        y, _, state, _ = one(x[rows, t : t + 1], None, None, state)
        torch.testing.assert_close(y[:, 0], expected[rows, t], atol=1e-12, rtol=0)


def test_beams_of_one_sentence_leave_its_memory_where_it_is() -> None:
    state = stack("additive").start(read("additive"), rows=B, capacity=T).reorder(torch.tensor([0, 0, 1, 1]))
    assert state.reorder(torch.tensor([1, 1, 2, 3])).memory is state.memory
    assert state.reorder(torch.tensor([2, 1, 2, 3])).memory is not state.memory


# ---- no attention


@torch.no_grad()
def test_the_context_is_the_last_state_and_the_same_at_each_step() -> None:
    """Rows 2 and 3: c == h_T exactly, and s_t = g_U(y_{t-1}, s_{t-1}, c) with one c."""
    reader = RecurrentStack(M, cell="gru", layers=2).double().eval()
    states, mask, final, _ = reader(inputs(length=S, width=M), KEEP)
    memory = Memory(states, mask, final=final)
    one, x = stack("none fed", layers=1), inputs()
    state = one.start(memory, rows=B, capacity=T)
    c = state.input_feed
    assert torch.equal(c, states[torch.arange(B), LENGTHS - 1])
    layer, hidden = one.recurrence.layers[0], state.hidden[0]
    torch.testing.assert_close(hidden[0], torch.tanh(one.first.predict(c)))
    y, _, after, _ = one(x, None, None, state)
    for t in range(T):
        both = torch.cat((x[:, t], c), -1)
        hidden = step_cell(
            "gru", LayerWeights(*layer.parameters()), both @ layer.weight_ih_l0.T + layer.bias_ih_l0, hidden
        )
        torch.testing.assert_close(y[:, t], hidden[0], atol=1e-12, rtol=0)
    assert after.input_feed is c


@torch.no_grad()
def test_first_states_are_copied() -> None:
    """Row 6: the writer begins where the reader ended, in every layer, the cell of an LSTM included."""
    reader = RecurrentStack(D, cell="lstm", layers=2).double().eval()
    states, mask, final, _ = reader(inputs(length=S), KEEP)
    one = stack("none", cell="lstm", initial="copied")
    assert one.first.predict is None
    assert one.start(Memory(states, mask, final=final), rows=B, capacity=T).hidden is final


@torch.no_grad()
def test_contexts_of_other_readers() -> None:
    """c without a last state is the state of the last word; or the mean of all words, padding left out."""
    memory = Memory(inputs(length=S, width=M), KEEP)
    last = stack("none fed").first.summarize(memory)
    mean = stack("none fed", context="mean").first.summarize(memory)
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(last[row], memory.states[row, length - 1])
        torch.testing.assert_close(mean[row], memory.states[row, :length].mean(0))


def test_a_writer_without_memory_begins_with_zeros() -> None:
    first = InitialState(D, cell="lstm", layers=2, memory_dim=None, context="last", initial="predicted")
    one = RecurrentWriter(FixedContextRecurrence(D, cell="lstm", layers=2), first=first, dim=D)
    state = one.start(None, rows=4, capacity=T)
    assert [tuple(part.shape) for layer in state.hidden for part in layer] == [(4, D)] * 4
    assert not any(part.any() for layer in state.hidden for part in layer)
    assert one(torch.randn(4, T, D), None)[0].shape == (4, T, D)


# ---- attention


@torch.no_grad()
@pytest.mark.parametrize("cell", CELLS)
def test_bahdanau_by_hand(cell: str) -> None:
    """Rows 14 to 17: e = v tanh(W s_{t-1} + U h), a = softmax(e), c = sum a h, s_t = g(y_{t-1}, s_{t-1}, c_t)."""
    one, x, memory = stack("additive", cell=cell, layers=1), inputs(), read("additive")
    with record(one) as maps:
        y = one(x, None, memory)[0]
    weights, score, layer = maps["recurrence.cross"], one.recurrence.cross.score, one.recurrence.layers[0]
    hidden = one.start(memory, rows=B, capacity=T).hidden[0]
    for t in range(T):
        inner = torch.tanh((hidden[0] @ score.query.weight.T)[:, None] + memory.states @ score.key.weight.T)
        energies = (inner @ score.energy.weight[0]).masked_fill(~KEEP, -torch.inf)
        a = energies.softmax(-1)
        torch.testing.assert_close(weights[:, 0, t], a, atol=1e-12, rtol=0)
        c = (a[..., None] * memory.states).sum(1)
        both = torch.cat((x[:, t], c), -1)
        hidden = step_cell(
            cell, LayerWeights(*layer.parameters()), both @ layer.weight_ih_l0.T + layer.bias_ih_l0, hidden
        )
        outputs = torch.tanh(one.recurrence.readout(torch.cat((hidden[0], c, x[:, t]), -1)))
        torch.testing.assert_close(y[:, t], outputs, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("form", ["dot", "dot fed", "general", "general fed"])
def test_luong_by_hand(form: str) -> None:
    """Luong et al. 2015, section 3.1 and equation 5: the state after a step is the query; with input feeding, its
    attentional state enters the next step."""
    one, x, memory = stack(form, layers=1), inputs(), read(form)
    with record(one) as maps:
        y = one(x, None, memory)[0]
    weights, block = maps["recurrence.cross"], one.recurrence
    layer, hidden, fed = block.layers[0], one.start(memory, rows=B, capacity=T).hidden[0], torch.zeros(B, D).double()
    keys = memory.states if form.startswith("dot") else memory.states @ block.cross.score.key.weight.T
    for t in range(T):
        both = torch.cat((x[:, t], fed), -1) if form.endswith("fed") else x[:, t]
        hidden = step_cell(
            "gru", LayerWeights(*layer.parameters()), both @ layer.weight_ih_l0.T + layer.bias_ih_l0, hidden
        )
        a = (keys @ hidden[0][..., None])[..., 0].masked_fill(~KEEP, -torch.inf).softmax(-1)
        torch.testing.assert_close(weights[:, 0, t], a, atol=1e-12, rtol=0)
        c = (a[..., None] * memory.states).sum(1)
        fed = torch.tanh(block.readout(torch.cat((c, hidden[0]), -1)))
        torch.testing.assert_close(y[:, t], fed, atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", ["additive", "dot", "dot fed", "general", "general fed"])
def test_weights_are_a_distribution_over_real_words(form: str) -> None:
    """Rows 15 and 19: 0 <= a <= 1, each row sums to 1, padding gets exactly 0; another look at each step."""
    one, memory = stack(form), read(form)
    with record(one) as maps:
        one(inputs(), None, memory)
    [(address, weights)] = maps.items()
    assert address == "recurrence.cross" and weights.shape == (B, 1, T, S)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, 1, T).double())
    assert (weights >= 0).all()
    assert (weights[:, 0][~KEEP[:, None].expand(B, T, S)] == 0).all()
    assert not torch.allclose(weights[0, 0, 0], weights[0, 0, 1])


def test_steps_have_addresses_of_their_own() -> None:
    one, memory = stack("additive"), read("additive")
    with record(one) as maps:
        state = one.start(memory, rows=B, capacity=3)
        for n in (2, 1):
            state = one(inputs(length=n), None, None, state)[2]
    assert {address: tuple(weights.shape) for address, weights in maps.items()} == {
        "recurrence.cross": (B, 1, 2, S),
        "recurrence.cross#1": (B, 1, 1, S),
    }


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_parameter_and_memory(form: str) -> None:
    """Rows 18 and 20: all is differentiable, from the words back to what was read."""
    one, memory = stack(form, cell="lstm", connections="fast-forward"), read(form)
    states, final = memory.states.requires_grad_(), memory.final[0][0].requires_grad_()
    one(inputs(), None, memory)[0].square().sum().backward()
    without = [name for name, parameter in one.named_parameters() if not parameter.grad.any()]
    assert without == []
    assert final.grad.any()
    assert form.startswith("none") or bool(((states.grad != 0).any(-1) == KEEP).all())


@pytest.mark.parametrize("form", ["additive", "general fed"])
def test_gradients_are_those_of_differences(form: str) -> None:
    """Row 18: gradcheck through e, a and c."""
    one, memory, x = stack(form, layers=1), read(form), inputs(length=2)

    def outputs(x: Tensor, states: Tensor) -> Tensor:
        return one(x, None, replace(memory, states=states))[0]

    assert torch.autograd.gradcheck(outputs, (x.requires_grad_(), memory.states.requires_grad_()))


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_layers_from_the_third_on_add_their_input(form: str) -> None:
    """Wu et al. 2016, section 3.1: with a third layer that gives zeros, the output is that of two layers."""
    deep, x, memory = stack(form, layers=3, connections="residual"), inputs(), read(form)
    shallow = stack(form, layers=2, connections="residual")
    weights = deep.state_dict()
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        weights[f"recurrence.layers.2.{name}"].zero_()
    weights["first.predict.weight"][2 * D :].zero_()
    weights["first.predict.bias"][2 * D :].zero_()
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("recurrence.layers.2")}
    kept |= {name: weights[name][: 2 * D] for name in ("first.predict.weight", "first.predict.bias")}
    shallow.load_state_dict(kept)
    torch.testing.assert_close(deep(x, None, memory)[0], shallow(x, None, memory)[0], atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_linear_maps_lead_past_all_layers(form: str) -> None:
    """Zhou et al. 2016, section 3.1: with layers that are silent, the output follows from f^{k+1} = W [0, f^k]."""
    one, x, memory = stack(form, layers=3, connections="fast-forward"), inputs(), read(form)
    for parameter in [*one.recurrence.layers.parameters(), *one.first.predict.parameters()]:
        parameter.zero_()
    f = x
    for join in one.recurrence.connections.joins:
        f = f @ join.weight[:, D:].T
    outputs = one(x, None, memory)[0]
    if form.startswith("none"):
        torch.testing.assert_close(outputs, f, atol=1e-12, rtol=0)
        return
    with record(one) as maps:
        one(x, None, memory)
    values = (maps["recurrence.cross"][:, 0, ..., None] * memory.states[:, None]).sum(2)
    parts = (f, values, x) if form == "additive" else (values, f)
    torch.testing.assert_close(outputs, torch.tanh(one.recurrence.readout(torch.cat(parts, -1))), atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_fast_forward_by_hand(form: str) -> None:
    """The same with layers that speak: what the second of two is given is W [h^1, f^1], and so is the output."""
    one, x, memory = stack(form, layers=2, connections="fast-forward"), inputs(length=1), read(form)
    with record(one) as maps:
        outputs = one(x, None, memory)[0][:, 0]
    begin, (low, high), joins = (
        one.start(memory, rows=B, capacity=1),
        one.recurrence.layers,
        one.recurrence.connections.joins,
    )
    context = None if not maps else torch.einsum("bs,bsm->bm", maps["recurrence.cross"][:, 0, 0], memory.states)
    beside = [context] if form == "additive" else [] if begin.input_feed is None else [begin.input_feed]

    def layer(which: Any, given: Tensor, before: Any, *, fed: bool) -> Tensor:
        both = torch.cat((given, *beside), -1) if fed else given
        return step_cell(
            "gru", LayerWeights(*which.parameters()), both @ which.weight_ih_l0.T + which.bias_ih_l0, before
        )[0]

    h = layer(low, x[:, 0], begin.hidden[0], fed=True)
    f = joins[0](torch.cat((h, x[:, 0]), -1))
    h = layer(high, f, begin.hidden[1], fed=form in ("additive", "none fed"))
    f = joins[1](torch.cat((h, f), -1))
    if form == "additive":
        f = torch.tanh(one.recurrence.readout(torch.cat((f, context, x[:, 0]), -1)))
    elif context is not None:
        f = torch.tanh(one.recurrence.readout(torch.cat((context, f), -1)))
    torch.testing.assert_close(outputs, f, atol=1e-12, rtol=0)


def test_memory_is_projected_once_however_many_words_are_written() -> None:
    one, calls = stack("additive"), []
    one.recurrence.cross.score.key.register_forward_hook(lambda *_: calls.append(1))
    one(inputs(), None, read("additive"))
    state = one.start(read("additive"), rows=B, capacity=9)
    for _ in range(9):
        state = one(inputs(length=1), None, None, state)[2].reorder(torch.arange(B))
    assert len(calls) == 2


def test_dropout_is_between_layers_and_at_the_end() -> None:
    """Of the output; the recurrence itself and what is fed are whole."""
    first = InitialState(D, cell="gru", layers=1, memory_dim=M, context="last", initial="predicted")
    block = BahdanauRecurrence(D, cell="gru", layers=1, memory_dim=M, dropout=0.5)
    one, x, memory = RecurrentWriter(block, first=first, dim=D, dropout=0.5).double(), inputs(), read("additive")
    dropped, whole = one(x, None, memory)[0], one.eval()(x, None, memory)[0]
    kept = dropped != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept], rtol=1e-4, atol=0)
