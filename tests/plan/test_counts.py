"""Parameters by part, and operations for a token, against counts by hand."""

import pytest
from torch import nn

from saccade.config import schema
from saccade.config.load import load, shipped
from saccade.errors import SaccadeError
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.plan.counts import by_part, on_meta, parameters, passed, products, stack_of, trained
from saccade.plan.work import work

# 1 + 2 layers of width 6 with 2 heads, 10 wide inside, 11 pieces
SMALL = [
    *(f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("dim=6", "heads=2", "ff=10")),
    "reader.stack.layers=1",
    "writer.stack.layers=2",
    "tokenizer.size=11",
]
ATTENTION, NETWORK, NORM = 4 * (6 * 6 + 6), 6 * 10 + 10 + 10 * 6 + 6, 2 * 6


def small(*changes):
    return on_meta(load("transformer", overrides=[*SMALL, *changes]))


def test_parts_of_a_small_model_by_hand():
    assert by_part(small()) == {
        "embedding": {"reader": 11 * 6, "writer": 0},
        "self-attention": {"reader": ATTENTION, "writer": 2 * ATTENTION},
        "cross-attention": {"writer": 2 * ATTENTION},
        "feed-forward": {"reader": NETWORK, "writer": 2 * NETWORK},
        "norms": {"reader": 2 * NORM, "writer": 2 * 3 * NORM},
        "head": {"writer": 0},
    }


def test_what_is_not_tied_is_counted_where_it_stands():
    found = by_part(small("writer.tie=none", "writer.positions={kind='learned', length=300}"))
    assert found["embedding"] == {"reader": 66, "writer": 66}
    assert found["head"] == {"writer": 66}
    assert found["positions"] == {"writer": 300 * 6}


def test_transformer_base():
    model = on_meta(load("transformer"))
    assert parameters(model) == 63_082_496
    assert sum(count for sides in by_part(model).values() for count in sides.values()) == 63_082_496


@pytest.mark.parametrize("name", shipped())
def test_parts_of_every_recipe_add_up(name):
    model = on_meta(load(name))
    found = by_part(model)
    assert sum(count for sides in found.values() for count in sides.values()) == parameters(model)
    assert parameters(model) == sum(p.numel() for p in model.parameters())
    assert found.get("other", {}).keys() <= {"writer"}  # what tells the length of an output, in a writer that fills


def test_frozen_parts_are_not_trained():
    model = small("freeze=reader", "writer.tie=none")
    assert parameters(model) - trained(model) == sum(p.numel() for p in model.reader.parameters())


def test_operations_are_two_for_each_number_that_a_token_passes():
    """Keys and values of memory are made of what is read; the tied head is a product all the same."""
    model, of_memory = small(), 2 * (6 * 6 + 6)
    assert passed(model, of_source=True) == ATTENTION + NETWORK + 2 * NORM + 2 * of_memory
    written = 2 * (2 * ATTENTION - of_memory + NETWORK + 3 * NORM) + 11 * 6
    assert passed(model, of_source=False) == written
    found = work(model, length=5)
    assert found.target == 2 * written + 2 * 2 * 4 * 5 * 6  # 2 layers, 2 attentions
    assert found.training() == 3 * found.mean == 1.5 * (found.source + found.target)
    assert found.training(recompute=True) == 4 * found.mean


def test_a_window_bounds_the_keys():
    wide, near = (work(small(*more), length=50) for more in ([], ["reader.stack.window=3"]))
    assert wide.source - near.source == 4 * 6 * (50 - 7)


def test_of_experts_only_the_chosen_ones_work():
    changes = ["reader.stack.experts={count=8, chosen=2, noise=false}"]
    model = small(*changes)
    experts, gate = 8 * NETWORK, 8 * 6
    assert by_part(model)["feed-forward"]["reader"] == experts + gate
    rest = passed(small(), of_source=True) - NETWORK
    assert passed(model, of_source=True) == rest + experts / 4 + gate


def test_layers_that_share_their_weights_work_all_the_same():
    stack = schema.TransformerStack(layers=2, dim=6, heads=2, ff=10)
    model = Model(None, build_writer(schema.TokenWriter(stack=stack, tie="output"), size=11))
    before, once = passed(model, of_source=False), parameters(model)
    model.writer.stack.blocks[1] = model.writer.stack.blocks[0]
    assert passed(model, of_source=False) == before
    assert parameters(model) == once - (ATTENTION + NETWORK + 2 * NORM)


def test_narrow_copies_are_of_matrices_alone():
    stack = schema.TransformerStack(layers=1, dim=6, heads=2, ff=10)
    model = Model(None, build_writer(schema.TokenWriter(stack=stack, tie="output"), size=11))
    assert products(model) == 4 * 36 + 2 * 60


def test_a_users_own_kind_is_refused():
    recipe = load("transformer", overrides=["reader.kind=mine"], kinds={"mine": lambda size, *, dim=3: None})
    with pytest.raises(SaccadeError, match="plan knows only the kinds that come with saccade, got 'mine'"):
        on_meta(recipe)


def test_meta_and_real_model_have_the_same_numbers():
    recipe = load("transformer", overrides=SMALL)
    assert parameters(on_meta(recipe)) == parameters(build(recipe, source_size=11, target_size=11))


@pytest.mark.parametrize(("name", "part"), [("gnmt", "recurrence"), ("convs2s", "convolution")])
def test_other_stacks_have_parts_of_their_own(name, part):
    found = by_part(on_meta(load(name)))
    assert found[part].keys() == {"reader", "writer"}
    assert found["cross-attention"]["writer"] > 0
    assert "self-attention" not in found


def test_attention_of_another_kind_is_not_taken_for_the_usual_one():
    model = small()
    assert stack_of(model.reader) is model.reader.stack
    model.reader.stack.blocks[0].self = nn.Identity()
    assert stack_of(model.reader) is None
