"""LSTMs whose hidden states are projected from wider cell states (LSTMP, Sak et al. 2014)."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.attention.scores import Bilinear
from saccade.layers.blocks.recurrence import BahdanauRecurrence, FixedContextRecurrence, LuongRecurrence
from saccade.layers.blocks.recurrent import LayerWeights, RecurrentStack, build_recurrent_layer, run_layer, step_cell
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.layers.memory import Memory

B, T = 3, 7
LENGTHS = torch.tensor([7, 4, 1])
KEEP = torch.arange(T) < LENGTHS[:, None]


def randomize_biases(module: Any) -> Any:
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)  # zeros would hide mistakes
    return module.double().eval()


def inputs(width: int, length: int = T) -> Tensor:
    return torch.randn(B, length, width, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(8))
def test_a_stack_is_that_of_torch(seed: int) -> None:
    """nn.LSTM with proj_size, for random widths, layers and directions, over packed and over padded sequences."""
    draw = random.Random(seed)
    layers, ways, width, input_dim = draw.randint(1, 3), draw.choice([1, 2]), draw.randint(2, 6), draw.choice([4, 7])
    units = width + draw.randint(1, 5)
    widths = (input_dim, ways * width, ways * units)
    ours = randomize_biases(RecurrentStack(widths, cell="lstm", layers=layers, directions=("one", "both")[ways - 1]))
    theirs = nn.LSTM(
        input_dim, units, layers, batch_first=True, bidirectional=ways == 2, proj_size=width, dtype=torch.float64
    )
    theirs.load_state_dict(
        {
            name.replace("_l0", f"_l{number}"): value
            for number, layer in enumerate(ours.layers)
            for name, value in layer.state_dict().items()
        }
    )
    x = inputs(input_dim)
    packed, last = theirs(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    for states, final in (ours(x, KEEP)[::2][:2], ours.run_padded(x, LENGTHS)[:2]):
        torch.testing.assert_close(states[KEEP], expected[KEEP], atol=1e-12, rtol=0)
        for number, layer in enumerate(final):
            for part, whole in zip(layer, last, strict=False):
                wanted = whole.unflatten(0, (layers, -1))[number].transpose(0, 1).flatten(1)
                torch.testing.assert_close(part, wanted, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("directions", ["one", "both"])
def test_single_precision_gives_no_warning(directions: Any) -> None:
    """Warnings are errors in tests; torch notes that oneDNN has no projections."""
    stack = RecurrentStack((4, 6, 12), cell="lstm", layers=2, directions=directions)
    x = inputs(4).float()
    torch.testing.assert_close(stack(x, KEEP)[0][KEEP], stack.run_padded(x, LENGTHS)[0][KEEP])


@torch.no_grad()
def test_a_layer_is_its_cell_step_by_step() -> None:
    layer, x = randomize_biases(build_recurrent_layer("lstm", 4, 5, cell_dim=11)), inputs(4)
    state = (torch.randn(B, 5).double(), torch.randn(B, 11).double())
    whole, last = run_layer(layer, x, state)
    for t in range(T):
        gates = x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0
        state = step_cell("lstm", LayerWeights(*layer.parameters()), gates, state)
        torch.testing.assert_close(state[0], whole[:, t], atol=1e-12, rtol=0)
    torch.testing.assert_close(state, last, atol=1e-12, rtol=0)


def test_initial_weights_are_as_without_a_projection() -> None:
    layer = build_recurrent_layer("lstm", 4, 5, cell_dim=11)
    assert layer.bias_ih_l0.view(4, 11).mean(1).tolist() == [0, 1, 0, 0] and not layer.bias_hh_l0.any()
    for gate in layer.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate.T @ gate, torch.eye(5), atol=1e-5, rtol=0)
    assert layer.weight_hr_l0.shape == (5, 11) and 0 < layer.weight_hr_l0.abs().max() <= (6 / 16) ** 0.5


@torch.no_grad()
@pytest.mark.parametrize("initial", ["predicted", "zero"])
@pytest.mark.parametrize("form", ["fixed", "additive", "general", "general fed"])
def test_a_writer_decodes_in_steps_and_in_any_order_of_rows(form: str, initial: Any) -> None:
    widths, memory_dim, sizes = (4, 5, 11), 6, {"cell": "lstm", "layers": 2}
    recurrence: Any
    if form == "fixed":
        recurrence = FixedContextRecurrence(widths, memory_dim=memory_dim, **sizes)
    elif form == "additive":
        recurrence = BahdanauRecurrence(widths, memory_dim=memory_dim, **sizes)
    else:
        cross = SoftAttention(Bilinear(5, key_dim=memory_dim))
        recurrence = LuongRecurrence(
            widths, memory_dim=memory_dim, cross=cross, input_feeding=form.endswith("fed"), **sizes
        )
    first = InitialState(widths, memory_dim=memory_dim, context="mean", initial=initial, **sizes)
    writer = randomize_biases(RecurrentWriter(recurrence, first=first, dim=5, input_dim=4))
    x, memory, order = inputs(4, 3), Memory(inputs(memory_dim), KEEP), torch.tensor([2, 0, 1])
    whole, state = writer(x, None, memory)[0], writer.start(memory, rows=B, capacity=3)
    assert [[part.shape[1] for part in layer] for layer in state.hidden] == [[5, 11]] * 2
    y, _, state, _ = writer(x[:, :1], None, None, state)
    rest, _, _, _ = writer(x[order, 1:], None, None, state.reorder(order))
    torch.testing.assert_close(torch.cat((y, rest[order.argsort()]), 1), whole, atol=1e-12, rtol=0)
