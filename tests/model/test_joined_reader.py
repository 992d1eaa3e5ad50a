"""Readers of a picture and a question, as recipes build them."""

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.memory import Memory
from saccade.model.build.model import build

STACK = "stack={kind='transformer', layers=1, dim=24, heads=2, ff=16}"
JOINS = {
    "glimpses": (["reader.join.glimpses=3"], (2, 1, 3 * 64 + 64)),
    "hops": (["reader.join.kind=hops", "reader.join.dim=24"], (2, 1, 24)),
    "weighted words": (["reader.join={kind='hops', dim=64, question_length=40}"], (2, 1, 64)),
    "concat": ([f"reader.join={{kind='concat', dim=24, {STACK}}}"], (2, 36 + 4, 24)),
    "question": (["reader.join.kind=question"], (2, 1, 64)),
}


def make_questions(seed=0):
    made = torch.Generator().manual_seed(seed)
    pictures = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8, generator=made)
    return Batch({"source": Pictures(pictures, torch.ones(2, 36).bool()), "question": pad([[5, 6, 7, 2], [8, 2]])})


def small(*changes):
    torch.manual_seed(3)
    recipe = load("show-ask-attend-answer", tiny=True, overrides=list(changes))
    return build(recipe, source_size=9, target_size=7).eval()


@pytest.mark.parametrize("kind", JOINS)
def test_a_question_and_a_picture_give_one_memory(kind):
    changes, shape = JOINS[kind]
    model = small(*changes)
    memory = model.read(make_questions())
    assert memory.states.shape == shape
    assert model.reader.grid == (6, 6)
    assert model.writer(memory).shape == (2, 7)


@pytest.mark.parametrize("kind", JOINS)
def test_only_a_question_alone_does_not_see_the_picture(kind):
    model = small(*JOINS[kind][0])
    first, other = (model.read(make_questions(seed)).states for seed in (0, 1))
    assert torch.equal(first, other) == (kind == "question")
    assert (model.reader.look is None) == (kind == "question")


def test_weighted_words_need_no_layers_over_the_question():
    model = small(*JOINS["weighted words"][0])
    names = [name for name, _ in model.reader.ask.named_parameters()]
    assert names == ["embedding.tokens.weight"]
    question = pad([[5] * 40, [6, 2]])  # as long as data.max_length
    states = model.read(Batch({**make_questions().fields, "question": question})).states
    assert states.isfinite().all()


@pytest.mark.parametrize("kind", ["glimpses", "hops", "weighted words", "concat"])
def test_a_share_of_questions_sees_nothing_of_its_picture_in_training(kind):
    model = small(*JOINS[kind][0], "reader.image_dropout=0.5").train()
    values, words = make_questions()["source"].values[:1].repeat(40, 1, 1, 1), pad([[5, 6, 7, 2]] * 40)
    many = Batch({"source": Pictures(values, torch.ones(40, 36).bool()), "question": words})
    other = Batch({**many.fields, "source": Pictures(255 - many["source"].values, many["source"].mask)})
    found = []
    for batch in (many, other):
        torch.manual_seed(5)
        memory = model.read(batch)
        memory.states.square().sum().backward()
        found.append(memory.states.flatten(1))
    alike = (found[0] == found[1]).all(1)
    assert 10 < alike.sum() < 30
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())
    model.eval()
    assert not (model.read(many).states == model.read(other).states).flatten(1).all(1).any()


def test_patches_and_a_transformer_may_be_joined():
    changes = [
        "reader.image={kind='patches', size=48, patch_size=8, stack={layers=1, dim=24, heads=2, ff=16}}",
        "reader.question={stack={kind='transformer', layers=1, dim=20, heads=2, ff=16}, positions={kind='sinusoidal'}}",
    ]
    states = small(*changes, "reader.join.kind=hops", "reader.join.dim=24").read(
        Batch(
            {**make_questions().fields, "source": Pictures(make_questions()["source"].values, torch.ones(2, 37).bool())}
        )
    )
    assert states.states.shape == (2, 1, 24)


class Product(nn.Module):
    """A custom join."""

    def __init__(self, cells, words, *, dim: int = 8):
        super().__init__()
        self.cell, self.word, self.dim = nn.Linear(cells, dim), nn.Linear(words, dim), dim

    def forward(self, look, ask):
        both = self.cell(look.states.mean(1)) * self.word(ask.states.mean(1))
        return Memory(both[:, None], torch.ones(len(both), 1, dtype=torch.bool))


def test_a_join_of_ones_own():
    kinds = {"product": Product}
    recipe = load("show-ask-attend-answer", tiny=True, overrides=["reader.join={kind='product', dim=6}"], kinds=kinds)
    model = build(recipe, source_size=9, target_size=7)
    assert model.read(make_questions()).states.shape == (2, 1, 6)
