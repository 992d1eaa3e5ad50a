"""Recurrent parts of a recipe. Rows are those of the lectures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from saccade.config.load import validate
from saccade.config.schema import RecurrentReaderStack, RecurrentWriterStack, TokenWriter
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right

NONE = {"kind": "none"}
GRU = {"kind": "recurrent", "cell": "gru", "dim": 14}
TRANSFORMER = {"layers": 1, "dim": 14, "heads": 2, "ff": 17}


def make(reader: dict[str, Any], writer: dict[str, Any], *, positions: Any = NONE, **sections: Any) -> Model:
    sides = {"reader": {"stack": reader, "positions": positions}, "writer": {"stack": writer, "positions": positions}}
    return build(validate({**sides, **sections}), source_size=23, target_size=23)


def logits(model: Model, batch: Batch) -> torch.Tensor:
    target = batch["target"]
    return model.writer.head(model.writer(shift_right(target.ids, 1), target.mask, model.read(batch)))


def test_parameters_computed_by_hand() -> None:
    """Bahdanau et al. 2015, appendix A: two GRUs that read, one that writes, v, W, U, first state and readout."""
    d, v = 14, 23
    gru: Callable[[int, int], int] = lambda inputs, width: 3 * width * (inputs + width + 2)  # noqa: E731
    look, first, readout = 2 * d * d + d, d * d + d, 3 * d * d + d
    model = make({**GRU, "bidirectional": True}, {**GRU, "attention": "additive"})
    assert (
        sum(p.numel() for p in model.parameters())
        == v * d + 2 * gru(d, d // 2) + gru(2 * d, d) + look + first + readout
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "writer",
    [{"attention": "none"}, {"attention": "additive", "layers": 2}, {"attention": "dot"}, {"attention": "general"}],
)
def test_training_steps_reach_every_parameter(batch: Batch, writer: dict[str, Any], precision: str) -> None:
    """Row 20: gradients update all parameters, those of attention and of the reader too."""
    model = make({**GRU, "bidirectional": True, "layers": 2}, {**GRU, **writer}).train()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = nn.functional.cross_entropy(logits(model, batch).flatten(0, 1).float(), batch["target"].ids.flatten())
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@torch.no_grad()
@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (TRANSFORMER, {**GRU, "attention": "additive"}),
        (TRANSFORMER, {**GRU, "attention": "none"}),
        ({**GRU, "bidirectional": True}, TRANSFORMER),
        ({**GRU, "dim": 10}, {**GRU, "cell": "lstm", "attention": "general"}),
    ],
)
def test_readers_and_writers_of_all_kinds_go_together(batch: Batch, reader: dict, writer: dict) -> None:
    tie = {"tie": "output"}
    sides = {"reader": {"stack": reader}, "writer": {"stack": writer, **tie}}
    model = build(validate(sides), source_size=23, target_size=23).eval()
    ids = torch.randint(4, 23, (3, 5))
    memory = model.read(batch)
    expected = model.writer.head(model.writer(ids, None, memory))
    state = model.writer.start(memory, capacity=5)
    for t in range(5):
        step = model.writer.step(ids[:, t : t + 1], state)
        state = step.state
        torch.testing.assert_close(step.logits, expected[:, t], atol=1e-5, rtol=1e-5)


def test_alternating_layers_have_the_whole_width() -> None:
    """Zhou et al. 2016: a layer reads in one direction; an odd width is no mistake."""
    reader = {**GRU, "dim": 13, "layers": 3, "bidirectional": "alternate", "fast_forward": True}
    model = make(reader, {**GRU, "dim": 13, "layers": 3, "fast_forward": True, "attention": "additive"})
    for stack in (model.reader.stack, model.writer.stack.recurrence):
        assert [layer.hidden_size for layer in stack.layers] == [13] * 3
        assert [tuple(join.weight.shape) for join in stack.connections.joins] == [(13, 26)] * 3


@torch.no_grad()
def test_a_language_model_is_a_writer_without_memory() -> None:
    stack = RecurrentWriterStack(dim=14, layers=2)
    writer = build_writer(TokenWriter(stack=stack, tie="output"), size=23).eval()
    ids = torch.randint(4, 23, (3, 5))
    whole, state = writer.head(writer(ids, None, None)), writer.start(None, capacity=5, rows=3)
    step = writer.step(ids, state)
    torch.testing.assert_close(step.logits, whole[:, -1])


def test_settings_have_sides() -> None:
    """A reader has directions, a writer has attention: what does not belong there is an unknown key."""
    assert {
        "bidirectional",
        "reverse",
    } <= RecurrentReaderStack.model_fields.keys() - RecurrentWriterStack.model_fields.keys()
    assert {
        "attention",
        "initial_state",
    } <= RecurrentWriterStack.model_fields.keys() - RecurrentReaderStack.model_fields.keys()
    with pytest.raises(SaccadeError, match=r"reader\.stack\.attention: unknown key"):
        make({**GRU, "attention": "dot"}, GRU)
    with pytest.raises(SaccadeError, match=r"writer\.stack\.bidirectional: unknown key"):
        make(GRU, {**GRU, "bidirectional": True})


@pytest.mark.parametrize(
    ("reader", "writer", "message"),
    [
        ({"bidirectional": True, "reverse": True}, {}, "reads in both directions already; take out reverse = true"),
        ({"bidirectional": True, "dim": 13}, {}, "bidirectional needs an even dim, .* got 13"),
        ({"bidirectional": "alternate", "columns": 2, "dim": 13}, {}, "bidirectional needs an even dim, .* got 13"),
        ({"columns": 2}, {}, 'columns = 2 is for bidirectional = "alternate", .* got bidirectional = false'),
        ({"bidirectional": True, "full_directions": True}, {}, 'is for bidirectional = "first" .* = true and layers'),
        ({"full_directions": True, "bidirectional": "first", "layers": 1}, {}, "at least two layers, got"),
        ({}, {"maxout_dim": 5, "attention": "dot"}, 'maxout_dim = 5 is for attention = "additive", got "dot"'),
        ({"experts": {"count": 6, "groups": 4}}, {}, "experts.groups must divide experts.count = 6 .*, got 4"),
        (
            {"residual": True, "fast_forward": True},
            {},
            "reader.stack: residual and fast_forward are both shortcuts past a layer",
        ),
        (
            {},
            {"residual": True, "fast_forward": True},
            "writer.stack: residual and fast_forward are both shortcuts past a layer",
        ),
        ({"bidirectional": "alternate", "reverse": True}, {}, "take out reverse = true"),
        (
            {},
            {"attention": "additive", "input_feeding": False},
            'input_feeding = false is for "dot", "general", "concat" and "around"',
        ),
        ({}, {"attention": "dot", "dim": 16}, 'attention = "dot" needs a writer as wide as its reader, got 16 and 14'),
        (
            {},
            {"initial_state": "copied", "layers": 2},
            r"cell, layers, dim and cell_dim \('gru', 2, 14, 14\), got \('gru', 1, 14, 14\)",
        ),
        ({"cell_dim": 28}, {}, 'cell_dim is for cell = "lstm" and larger than dim, got cell = "gru"; leave it out'),
        ({}, {"cell": "lstm", "cell_dim": 14}, "larger than dim, got cell_dim = 14 and dim = 14; leave it out"),
        ({"cell": "lstm", "cell_dim": 29, "bidirectional": True}, {}, "needs an even cell_dim, .* got 29"),
        (
            TRANSFORMER,
            {"initial_state": "copied"},
            'initial_state = "copied" needs a recurrent reader; set initial_state = "predicted"',
        ),
    ],
)
def test_incompatible_settings_are_reported(reader: dict, writer: dict, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        make(reader if "heads" in reader else {**GRU, **reader}, {**GRU, **writer})


def test_what_recurrent_stacks_do_not_have_is_reported() -> None:
    with pytest.raises(SaccadeError, match="train.recompute=true is for Transformer stacks, got a recurrent one"):
        make(GRU, GRU, train={"recompute": True})
    with pytest.raises(SaccadeError, match="rotary"):
        make(GRU, GRU, positions={"kind": "rotary"})
    with pytest.raises(SaccadeError, match='attention = "additive" needs a reader to attend to'):
        build_writer(TokenWriter(stack=RecurrentWriterStack(attention="additive"), tie="output"), size=23)
