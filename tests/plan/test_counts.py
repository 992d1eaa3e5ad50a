"""Parameters by part and FLOPs per token, compared with counts by hand."""

import pytest
from torch import nn

from saccade.config import schema
from saccade.config.load import list_recipes, load
from saccade.errors import SaccadeError
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.plan.counts import (
    build_on_meta,
    count_active,
    count_by_part,
    count_matmul_parameters,
    count_parameters,
    count_trainable,
    get_transformer_stack,
)
from saccade.plan.flops import count_flops

# 1 + 2 layers of width 6 with 2 heads, 10 wide inside, 11 tokens
SMALL = [
    *(f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("dim=6", "heads=2", "ff=10")),
    "reader.stack.layers=1",
    "writer.stack.layers=2",
    "tokenizer.size=11",
]
ATTENTION, NETWORK, NORM = 4 * (6 * 6 + 6), 6 * 10 + 10 + 10 * 6 + 6, 2 * 6
ATTENTIONS = ("self-attention", "cross-attention")


def small(*changes):
    return build_on_meta(load("transformer", overrides=[*SMALL, *changes]))


def test_parts_of_a_small_model_by_hand():
    assert count_by_part(small()) == {
        "embedding": {"reader": 11 * 6, "writer": 0},
        "self-attention": {"reader": ATTENTION, "writer": 2 * ATTENTION},
        "cross-attention": {"writer": 2 * ATTENTION},
        "feed-forward": {"reader": NETWORK, "writer": 2 * NETWORK},
        "norms": {"reader": 2 * NORM, "writer": 2 * 3 * NORM},
        "head": {"writer": 0},
    }


def test_untied_parameters_are_counted_in_their_part():
    found = count_by_part(small("writer.tie=none", "writer.positions={kind='learned', length=300}"))
    assert found["embedding"] == {"reader": 66, "writer": 66}
    assert found["head"] == {"writer": 66}
    assert found["positions"] == {"writer": 300 * 6}


def test_transformer_base():
    model = build_on_meta(load("transformer"))
    assert count_parameters(model) == 63_082_496
    assert sum(count for sides in count_by_part(model).values() for count in sides.values()) == 63_082_496


@pytest.mark.parametrize("name", list_recipes())
def test_parts_of_every_recipe_add_up(name):
    model = build_on_meta(load(name))
    found = count_by_part(model)
    assert sum(count for sides in found.values() for count in sides.values()) == count_parameters(model)
    assert count_parameters(model) == sum(p.numel() for p in model.parameters())
    assert found.get("other", {}).keys() <= {"writer"}  # the length predictor of a non-autoregressive writer


def test_frozen_parts_are_not_trained():
    model = small("freeze=reader", "writer.tie=none")
    assert count_parameters(model) - count_trainable(model) == sum(p.numel() for p in model.reader.parameters())


def test_two_flops_per_active_parameter():
    """Keys and values of the memory count as source; the tied head counts as a matmul."""
    model, of_memory = small(), 2 * (6 * 6 + 6)
    assert count_active(model, is_source=True) == ATTENTION + NETWORK + 2 * NORM + 2 * of_memory
    written = 2 * (2 * ATTENTION - of_memory + NETWORK + 3 * NORM) + 11 * 6
    assert count_active(model, is_source=False) == written
    found = count_flops(model, length=5)
    assert found.target == 2 * written + 2 * 2 * 4 * 5 * 6  # 2 layers, 2 attentions
    assert found.get_training() == 3 * found.mean == 1.5 * (found.source + found.target)
    assert found.get_training(recompute=True) == 4 * found.mean


def test_a_window_bounds_the_keys():
    wide, near = (count_flops(small(*more), length=50) for more in ([], ["reader.stack.window=3"]))
    assert wide.source - near.source == 4 * 6 * (50 - 7)


def test_only_active_experts_count():
    changes = ["reader.stack.experts={count=8, top_k=2, noise=false}"]
    model = small(*changes)
    experts, gate = 8 * NETWORK, 8 * 6
    assert count_by_part(model)["feed-forward"]["reader"] == experts + gate
    rest = count_active(small(), is_source=True) - NETWORK
    assert count_active(model, is_source=True) == rest + experts / 4 + gate


def test_shared_layers_count_once_as_parameters_and_each_as_flops():
    stack = schema.TransformerStack(layers=2, dim=6, heads=2, ff=10)
    model = Model(None, build_writer(schema.TokenWriter(stack=stack, tie="output"), size=11))
    before, once = count_active(model, is_source=False), count_parameters(model)
    model.writer.stack.blocks[1] = model.writer.stack.blocks[0]
    assert count_active(model, is_source=False) == before
    assert count_parameters(model) == once - (ATTENTION + NETWORK + 2 * NORM)


def test_only_matrices_are_copied_to_bf16():
    stack = schema.TransformerStack(layers=1, dim=6, heads=2, ff=10)
    model = Model(None, build_writer(schema.TokenWriter(stack=stack, tie="output"), size=11))
    assert count_matmul_parameters(model) == 4 * 36 + 2 * 60


def test_a_users_own_kind_is_refused():
    recipe = load("transformer", overrides=["reader.kind=mine"], kinds={"mine": lambda size, *, dim=3: None})
    with pytest.raises(SaccadeError, match="plan supports only the kinds that come with saccade, got 'mine'"):
        build_on_meta(recipe)


def test_meta_and_real_model_have_the_same_parameters():
    recipe = load("transformer", overrides=SMALL)
    assert count_parameters(build_on_meta(recipe)) == count_parameters(build(recipe, source_size=11, target_size=11))


@pytest.mark.parametrize(("name", "part"), [("gnmt", "recurrence"), ("convs2s", "convolution")])
def test_other_stacks_have_parts_of_their_own(name, part):
    found = count_by_part(build_on_meta(load(name)))
    assert found[part].keys() == {"reader", "writer"}
    assert found["cross-attention"]["writer"] > 0
    assert "self-attention" not in found


def test_other_attention_is_not_counted_as_self_attention():
    model = small()
    assert get_transformer_stack(model.reader) is model.reader.stack
    model.reader.stack.blocks[0].self = nn.Identity()
    assert get_transformer_stack(model.reader) is None


def test_scores_without_parameters_are_counted_too():
    """A dot product is as wide as the memory; "general" projects keys to the same width."""
    changes = ["reader.stack.dim=6", "reader.stack.bidirectional=false", "writer.stack.dim=6"]
    dot, general = (
        build_on_meta(load("bahdanau", overrides=[*changes, f"writer.stack.attention={score}"]))
        for score in ("dot", "general")
    )
    assert count_flops(dot, length=5).attention == count_flops(general, length=5).attention == 4 * 5 * 6


def test_parameters_of_scores_are_counted():
    """2 heads of width 3: W, U and v of each head in every attention; U of cross-attention is for source tokens."""
    plain, additive = small(), small("writer.stack.score={ kind = 'additive', hidden_dim = 5 }")
    own = 2 * (3 * 5 + 3 * 5 + 5)
    more = {part: count_by_part(additive)[part]["writer"] - count_by_part(plain)[part]["writer"] for part in ATTENTIONS}
    assert more == dict.fromkeys(ATTENTIONS, 2 * own)
    assert count_active(additive, is_source=True) - count_active(plain, is_source=True) == 2 * 2 * 3 * 5
    general = count_by_part(small("reader.stack.score=general"))["self-attention"]["reader"]
    assert general == ATTENTION + 2 * 3 * 3
    concat, local = (
        build_on_meta(load("bahdanau", overrides=["writer.stack.dim=6", "writer.tie=none", *changes]))
        for changes in (["writer.stack.attention=concat"], ["writer.stack.attention=concat", "writer.stack.local={}"])
    )
    assert count_by_part(concat)["cross-attention"] == {"writer": 6 * (6 + 512) + 6}
    assert count_by_part(local)["cross-attention"] == {"writer": 6 * (6 + 512) + 6 + 6 * 6 + 6}
