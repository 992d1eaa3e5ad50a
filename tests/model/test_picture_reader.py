"""Readers of pictures, as recipes build them."""

import pytest
import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.model.build.model import build


def pictures(count, size, states):
    return Pictures(torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8), torch.ones(count, states).bool())


def test_a_vit_has_a_state_before_its_patches():
    recipe = load("vit", tiny=True)
    model = build(recipe, source_size=9, target_size=7).eval()
    memory = model.read(Batch({"source": pictures(2, 48, 37)}))
    assert memory.states.shape == (2, 37, 64)
    assert memory.grid == (6, 6)
    assert model.writer(memory).shape == (2, 7)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_positions_tell_cells_apart(positions):
    changes = [f"reader.positions={positions}", "reader.class_token=false", "writer.pooling=mean"]
    model = build(load("vit", tiny=True, overrides=changes), source_size=9, target_size=7).eval()
    grey = Pictures(torch.full((1, 3, 48, 48), 9, dtype=torch.uint8), torch.ones(1, 36).bool())
    states = model.read(Batch({"source": grey})).states[0]
    assert (states[1:] - states[:1]).abs().amax(-1).min() > 1e-3


def test_without_positions_equal_patches_have_equal_states():
    changes = ["reader.positions=none", "reader.class_token=false", "writer.pooling=mean"]
    model = build(load("vit", tiny=True, overrides=changes), source_size=9, target_size=7).eval()
    grey = Pictures(torch.full((1, 3, 48, 48), 9, dtype=torch.uint8), torch.ones(1, 36).bool())
    states = model.read(Batch({"source": grey})).states[0]
    torch.testing.assert_close(states, states[:1].expand_as(states))


def test_self_attention_may_go_over_the_cells_of_a_grid():
    changes = ["reader.stack={kind='transformer', layers=1, dim=64, heads=2, ff=32}"]
    model = build(load("show-attend-tell", tiny=True, overrides=changes), source_size=9, target_size=7).eval()
    assert model.read(Batch({"source": pictures(2, 48, 36)})).states.shape == (2, 36, 64)
    assert model.reader.stack.blocks[0].self is not None


def test_an_lstm_over_the_largest_of_each_column_stands_for_the_picture():
    model = build(load("show-attend-read", tiny=True), source_size=9, target_size=9).eval()
    source = Pictures(torch.randint(0, 256, (2, 3, 24, 72), dtype=torch.uint8), torch.ones(2, 54).bool())
    memory = model.read(Batch({"source": source}))
    assert memory.grid == (3, 18)
    columns = memory.states.unflatten(1, (3, 18)).max(1).values
    torch.testing.assert_close(memory.final[-1][0], model.reader.columns.layers[0](columns)[1][0][0])


def test_steps_of_a_caption_are_those_of_the_whole():
    model = build(load("show-attend-tell", tiny=True), source_size=9, target_size=9).eval()
    batch = Batch({"source": pictures(2, 48, 36), "target": pad([[1, 5, 6, 7], [1, 8, 4, 4]])})
    memory, ids = model.read(batch), batch["target"].ids
    whole = model.writer.head(model.writer(ids, None, memory))
    state = model.writer.start(memory, capacity=4)
    for at in range(4):
        step = model.writer.step(ids[:, at : at + 1], state)
        state = step.state
        torch.testing.assert_close(step.logits, whole[:, at], atol=1e-5, rtol=1e-5)
