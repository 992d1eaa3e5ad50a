"""Batches padded to few static shapes."""

import functools

import pytest
import small
import torch
from test_convolution import STACKS
from test_recurrent import RECURRENT, stacks

from saccade.config.load import load
from saccade.config.schema import Train
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.model.build.model import build
from saccade.train.batches.layout import can_capture_padded, choose_transform
from saccade.train.batches.pack import get_shape_key
from saccade.train.batches.static_shapes import pad_to_static_shape
from saccade.train.objectives.objectives import build_objectives, next_token_loss, r_drop_loss

SYSTEMS = {
    **{name: {"stack": stack} for name, stack in STACKS.items()},
    **{name: {"parts": stacks(name)} for name in RECURRENT},
    "transformer": {},
}


def build_model(name):
    torch.manual_seed(1)
    return build(small.small(**SYSTEMS[name]), source_size=13, target_size=13)


def gradients(model, objective, given):
    """Terms and gradients of a batch."""
    model.zero_grad()
    terms = objective(model, given, torch.Generator())
    sum(term.sum * term.weight for term in terms.values()).backward()
    return {key: (term.sum, term.count) for key, term in terms.items()}, {
        key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("objective", [next_token_loss, functools.partial(r_drop_loss, alpha=3.0)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_rows_that_are_added_change_neither_loss_nor_gradients(name, objective, batch):
    model = build_model(name).double().eval()
    filled = pad_to_static_shape(batch, budget=64)
    assert filled["source"].ids.shape == filled["target"].ids.shape == (4, 8)
    torch.testing.assert_close(gradients(model, objective, filled), gradients(model, objective, batch))


@pytest.mark.parametrize("name", ["show-attend-tell", "show-attend-tell-transformer", "show-attend-read"])
def test_pictures_that_are_added_change_neither_loss_nor_gradients(name):
    torch.manual_seed(1)
    recipe = load(name, tiny=True, overrides=["reader.dropout=0"])
    model = build(recipe, source_size=9, target_size=9).double().eval()
    values = torch.randint(0, 256, (3, 3, *recipe.reader.image_shape), dtype=torch.uint8)
    source = Pictures(values, torch.ones(3, recipe.reader.states).bool())
    batch = Batch({"source": source, "target": pad([[5, 6, 2], [7, 2], [2]])})
    filled = pad_to_static_shape(batch, budget=8 * recipe.reader.states)
    assert (len(filled["source"].values), filled["target"].ids.shape) == (4, (4, 8))
    objective = functools.partial(next_token_loss, coverage=0.5 if name == "show-attend-tell" else 0.0)
    torch.testing.assert_close(gradients(model, objective, filled), gradients(model, objective, batch))


def test_batches_within_a_budget_have_few_shapes():
    drawn = torch.Generator().manual_seed(1)
    shapes = set()
    for _ in range(200):
        width = int(torch.randint(17, 25, (), generator=drawn))
        rows = 1024 // width
        sides = [
            pad([list(range(int(n))) for n in torch.randint(width - 4, width + 1, (rows,), generator=drawn)])
            for _ in range(2)
        ]
        shapes.add(
            get_shape_key(pad_to_static_shape(Batch(dict(zip(("source", "target"), sides, strict=True))), budget=1024))
        )
    assert len(shapes) <= 3


def test_all_stacks_but_those_that_hand_over_cells_are_even():
    assert {name for name in SYSTEMS if not can_capture_padded(build_model(name), [], requested=False)} == {"sutskever"}


def test_batches_are_padded_to_static_shapes_if_requested():
    shape = choose_transform(Train(batch_tokens=64), packed=False, padded=True, device=torch.device("cpu"))
    assert shape(Batch({"target": pad([[1, 2, 3]])}))["target"].ids.shape == (2, 8)


HARD = ["writer.stack.hard_attention=true", "objectives=[{kind='reinforce'}]"]


@pytest.mark.parametrize(
    ("name", "settings", "usual"),
    [("vit", [], True), ("cnn-self-attention", [], True), ("show-attend-tell", [], True),
     ("show-attend-read", [], True), ("show-attend-tell", HARD, False), ("vit-masked", [], False)],
)  # fmt: skip
def test_graphs_of_pictures_are_usual_where_a_gpu_has_been_seen_to_learn_by_them(name, settings, usual):
    recipe = load(name, tiny=True, overrides=settings)
    model = build(recipe, source_size=9, target_size=9)
    objectives = build_objectives(recipe)
    assert can_capture_padded(model, objectives, requested=True)
    assert can_capture_padded(model, objectives, requested=False) == usual


def test_only_pictures_have_one_size():
    assert not build_model("transformer").capabilities.fixed_inputs
    assert build(load("vit", tiny=True), source_size=9, target_size=9).capabilities.fixed_inputs
