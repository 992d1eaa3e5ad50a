"""Recurrent layers and the stack of a reader. Rows are those of the lectures."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.layers.blocks.recurrent import (
    CELLS,
    LayerWeights,
    RecurrentStack,
    TwoColumns,
    build_recurrent_layer,
    reverse_sequences,
    run_layer,
    step_cell,
)

B, T, D = 3, 7, 10
LENGTHS = torch.tensor([7, 4, 1])
KEEP = torch.arange(T) < LENGTHS[:, None]
TORCH = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def inputs(*, width: int = D) -> Tensor:
    return torch.randn(B, T, width, dtype=torch.float64)


def noisy(module: Any) -> Any:
    """Zeros would hide mistakes."""
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def stack(cell: str = "gru", *, layers: int = 2, **settings: Any) -> RecurrentStack:
    return noisy(RecurrentStack(D, cell=cell, layers=layers, **settings))


@pytest.mark.parametrize("cell", CELLS)
def test_a_layer_is_its_cell_step_by_step(cell: str) -> None:
    """Row 1: h_t = f_W(x_t, h_{t-1}): the fused kernel, our own step and torch's cell give the same."""
    layer, x = noisy(build_recurrent_layer(cell, D, 13)), inputs()
    begin = tuple(torch.randn(B, 13, dtype=torch.float64) for _ in range(CELLS[cell].states))
    whole, last = run_layer(layer, x, begin)
    single = TORCH[cell](D, 13).double()
    single.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    ours, theirs = begin, begin
    for t in range(T):
        ours = step_cell(
            cell, LayerWeights(*layer.parameters()), x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0, ours
        )
        outputs = single(x[:, t], theirs if cell == "lstm" else theirs[0])
        theirs = outputs if isinstance(outputs, tuple) else (outputs,)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
        torch.testing.assert_close(ours[0], whole[:, t], atol=1e-12, rtol=0)
    for a, b in zip(ours, last, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_stack_is_that_of_torch(cell: str, bidirectional: bool) -> None:
    """All layers in one module of torch, on packed rows."""
    ours, x = stack(cell, directions="both" if bidirectional else "one", layers=3), inputs()
    width = D // 2 if bidirectional else D
    theirs = CELLS[cell].module(D, width, 3, batch_first=True, bidirectional=bidirectional).double()
    theirs.load_state_dict(
        {
            name.replace("_l0", f"_l{number}"): value
            for number, layer in enumerate(ours.layers)
            for name, value in layer.state_dict().items()
        }
    )
    packed, last = theirs(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    states, mask, final, aux = ours(x, KEEP)
    torch.testing.assert_close(states, expected, atol=1e-12, rtol=0)
    assert mask is KEEP and aux == {}
    last = last if isinstance(last, tuple) else (last,)
    for number, layer in enumerate(final):
        for ours_last, theirs_last in zip(layer, last, strict=True):
            wanted = theirs_last.unflatten(0, (3, -1))[number].transpose(0, 1).flatten(1)
            torch.testing.assert_close(ours_last, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"reverse": True},
        {"directions": "both"},
        {"directions": "both at first"},
        {"directions": "in turn", "layers": 3, "connections": "fast-forward"},
    ],
)
def test_padding_changes_nothing(cell: str, how: dict) -> None:
    """Row 9: lengths are respected in every direction."""
    one, x = stack(cell, **how), inputs()
    states, _, final, _ = one(torch.where(KEEP[..., None], x, 1e6), KEEP)
    for row, length in enumerate(LENGTHS.tolist()):
        alone, _, last, _ = one(x[row : row + 1, :length], None)
        torch.testing.assert_close(states[row, :length], alone[0], atol=1e-12, rtol=0)
        for layer, other in zip(final, last, strict=True):
            for a, b in zip(layer, other, strict=True):
                torch.testing.assert_close(a[row], b[0], atol=1e-12, rtol=0)
    assert (states[~KEEP] == 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_both_directions_stand_side_by_side(cell: str) -> None:
    """Row 9: output = concat(forward, reversed backward)."""
    both, x = stack(cell, directions="both", layers=1), inputs()
    weights = both.layers[0].state_dict()
    halves = []
    for ending in ("", "_reverse"):
        layer = CELLS[cell].module(D, D // 2, batch_first=True).double()
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        layer.load_state_dict({name: weights[name + ending] for name in names})
        halves.append(layer)
    forward, backward = halves[0](x)[0], halves[1](x.flip(1))[0].flip(1)
    torch.testing.assert_close(both(x, None)[0], torch.cat((forward, backward), -1), atol=1e-12, rtol=0)


def test_reversed_reading_is_reading_of_the_reversed_text() -> None:
    """Row 6: the source from its last word to its first; each state stays with its word."""
    plain = stack("lstm")
    other = RecurrentStack(D, cell="lstm", layers=2, reverse=True).double()
    other.load_state_dict(plain.state_dict())
    x = inputs()
    expected, _, last, _ = plain(reverse_sequences(x, LENGTHS), KEEP)
    states, _, final, _ = other(x, KEEP)
    assert torch.equal(states[KEEP], reverse_sequences(expected, LENGTHS)[KEEP])
    torch.testing.assert_close(final, last)
    torch.testing.assert_close(reverse_sequences(x, LENGTHS)[1, :4], x[1, :4].flip(0))
    assert torch.equal(reverse_sequences(x, LENGTHS)[1, 4:], x[1, 4:])


@pytest.mark.parametrize("cell", CELLS)
def test_the_last_state_is_that_of_the_last_word(cell: str) -> None:
    """Row 2: h_T; with a reversed source, that of the first word."""
    rows = torch.arange(B)
    for reverse, at in ((False, LENGTHS - 1), (True, torch.zeros(B, dtype=torch.long))):
        states, _, final, _ = stack(cell, reverse=reverse)(inputs(), KEEP)
        assert torch.equal(final[-1][0], states[rows, at])


def test_the_last_state_depends_on_every_word_and_on_nothing_else() -> None:
    """Rows 1 and 9."""
    one, x = stack("rnn"), inputs().requires_grad_()
    one(x, KEEP)[2][-1][0].sum().backward()
    assert ((x.grad != 0).any(-1) == KEEP).all()


def test_layers_from_the_third_on_add_their_input() -> None:
    """Wu et al. 2016, section 3.1."""
    one, x = stack("lstm", layers=4, directions="both at first", connections="residual"), inputs()
    assert [layer.bidirectional for layer in one.layers] == [True, False, False, False]
    expected = x
    for number, layer in enumerate(one.layers):
        y = layer(expected)[0]
        expected = y + expected if number >= 2 else y
    torch.testing.assert_close(one(x, None)[0], expected, atol=1e-12, rtol=0)


def test_each_direction_of_the_first_layer_may_have_the_whole_width() -> None:
    """Wu et al. 2016, section 3.2: both directions, concatenated, enter the second layer."""
    one, x = stack("lstm", layers=3, directions="full at first"), inputs()
    assert [layer.input_size for layer in one.layers] == [D, 2 * D, D]
    expected = x
    for layer in one.layers:
        expected = layer(expected)[0]
    torch.testing.assert_close(one(x, None)[0], expected, atol=1e-12, rtol=0)
    assert expected.shape[-1] == one.dim == D


@pytest.mark.parametrize("connections", ["none", "residual", "fast-forward"])
def test_the_first_layer_takes_inputs_of_another_width(connections: str) -> None:
    one = RecurrentStack((13, D), cell="gru", layers=3, connections=connections).double().eval()
    x = torch.randn(*KEEP.shape, 13, dtype=torch.float64)
    f = x[1, : LENGTHS[1]]
    for number, layer in enumerate(one.layers):
        f = one.connections(number, f, layer(f)[0])
    torch.testing.assert_close(one(x, KEEP)[0][1, : LENGTHS[1]], f, atol=1e-12, rtol=0)
    assert (one.input_dim, one.dim) == (13, D)


@pytest.mark.parametrize("discard", [False, True])
def test_two_columns_begin_from_both_sides(discard: bool) -> None:
    """Zhou et al. 2016, section 3.2: layer k of the second column runs against layer k of the first."""
    columns = [
        RecurrentStack((D, 4), cell="lstm", layers=3, directions="in turn", reverse=reverse, connections="fast-forward")
        for reverse in (False, True)
    ]
    one, x = TwoColumns(*columns).double().eval(), inputs()
    one = one.discard_cell_states() if discard else one
    states, mask, final, aux = one(x, KEEP)
    assert (one.input_dim, one.dim) == (D, 8) and mask is KEEP and aux == {}
    for row, length in enumerate(LENGTHS.tolist()):
        parts = []
        for backward, column in enumerate(columns):
            f, lasts = x[row, :length], []
            for number, layer in enumerate(column.layers):
                turned = (number + backward) % 2 == 1
                h, (last, _) = layer(f.flip(0) if turned else f)
                lasts.append(last[0])
                f = torch.cat((h.flip(0) if turned else h, f), -1) @ column.connections.joins[number].weight.T
            parts.append((f, lasts))
        torch.testing.assert_close(states[row, :length], torch.cat([f for f, _ in parts], -1), atol=1e-12, rtol=0)
        for number in range(3):
            wanted = torch.cat([lasts[number] for _, lasts in parts])
            torch.testing.assert_close(final[number][0][row], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("connections", ["none", "fast-forward"])
def test_every_second_layer_reads_from_right_to_left(connections: str) -> None:
    """Zhou et al. 2016, section 3: h^k = r(f^k), f^{k+1} = W [h^k, f^k], in directions that take turns."""
    one, x = stack("lstm", layers=4, directions="in turn", connections=connections), inputs()
    states, _, final, _ = one(x, KEEP)
    for row, length in enumerate(LENGTHS.tolist()):
        f = x[row, :length]
        for number, layer in enumerate(one.layers):
            h, (last, cell) = layer(f.flip(0) if number % 2 else f)
            torch.testing.assert_close(final[number][0][row], last[0], atol=1e-12, rtol=0)
            torch.testing.assert_close(final[number][1][row], cell[0], atol=1e-12, rtol=0)
            h = h.flip(0) if number % 2 else h
            f = h if connections == "none" else torch.cat((h, f), -1) @ one.connections.joins[number].weight.T
        torch.testing.assert_close(states[row, :length], f, atol=1e-12, rtol=0)


def test_two_layers_in_turn_know_of_all_words() -> None:
    """Row 9: every state depends on every word, which those of the first layer do not."""
    one = stack("gru", directions="in turn")
    each = torch.autograd.functional.jacobian(lambda x: one(x, None)[0].sum((0, 2)), inputs())
    assert (each.abs().sum((1, 3)) > 0).all()


def test_dropout_is_between_layers_and_at_the_end() -> None:
    one = RecurrentStack(D, cell="gru", layers=1, dropout=0.5).double()
    x = inputs()
    dropped, whole = one(x, None)[0], one.eval()(x, None)[0]
    kept = dropped != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept], rtol=1e-4, atol=0)


def test_autocast_leaves_the_recurrence_alone() -> None:
    one, x = stack("lstm").float(), inputs().float()
    with torch.autocast("cpu", torch.bfloat16):
        states = one(x, KEEP)[0]
    assert states.dtype == torch.float32
    assert torch.equal(states, one(x, KEEP)[0])


def test_an_empty_row_is_no_mistake() -> None:
    """Batches are widened by rows of padding where a graph wants two rows."""
    states, _, _, _ = stack("lstm")(inputs(), KEEP & (torch.arange(B) < 2)[:, None])
    assert states.isfinite().all()


def test_first_weights() -> None:
    """Recurrent matrices are orthogonal, gate by gate; the gate that forgets is open (Jozefowicz et al. 2015)."""
    layer = build_recurrent_layer("lstm", D, 5)
    for gate in layer.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5))
    assert layer.bias_ih_l0.tolist() == [0] * 5 + [1] * 5 + [0] * 10
    assert not layer.bias_hh_l0.any()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("directions", ["one", "both", "both at first", "in turn"])
def test_padding_that_is_read_changes_nothing(cell: str, directions: str) -> None:
    """States of words, last states and gradients are those of packed rows, whatever stands behind the text."""
    read, x = stack(cell, layers=3, directions=directions, connections="residual"), inputs()
    x[~KEEP] = 9.0
    results = []
    for way in (read.run_packed, read.run_padded):
        given = x.clone().requires_grad_()
        states, final, _ = way(given, LENGTHS)
        read.zero_grad()
        (states[KEEP].square().sum() + sum(layer[0].sum() for layer in final)).backward()
        gradients = [parameter.grad for parameter in read.parameters()]
        results.append([states[KEEP], *(layer[0] for layer in final), given.grad, *gradients])
    for packed, rectangle in zip(*results, strict=True):
        torch.testing.assert_close(rectangle, packed, atol=1e-10, rtol=0)


def test_the_cells_of_an_lstm_are_known_at_the_end_of_packed_rows_only() -> None:
    assert not stack("lstm").reads_padding
    assert stack("lstm").discard_cell_states().reads_padding
    assert stack("gru").reads_padding
