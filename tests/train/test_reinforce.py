"""Looks that are drawn learn by how likely the text became."""

import itertools
import math

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, Tokens
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import MIXED, NOT_DRAWN, HardLook
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.objectives import next_token
from saccade.train.objectives.reinforce import hard_look, reinforce

GENERATOR = torch.Generator()
SMALL = [
    "reader.size=8", "reader.channels=[4, 3]", "reader.dropout=0", "writer.dropout=0", "writer.stack.dim=5",
    "writer.stack.dropout=0", "writer.stack.hard=true", "objectives=[{kind='reinforce'}]",
]  # fmt: skip
STATES, LENGTH = 4, 2


def small():
    torch.manual_seed(3)
    model = build(load("show-attend-tell", overrides=SMALL), source_size=7, target_size=7).double()
    hard_look(model).score.energy.weight.data.mul_(8)  # weights that are far from equal
    return model


def batch():
    torch.manual_seed(4)
    pictures = Pictures(255 * torch.rand(1, 3, 8, 8).double(), torch.ones(1, STATES, dtype=torch.bool))
    target = Tokens(torch.tensor([[5, 2]]), torch.ones(1, LENGTH, dtype=torch.bool))
    return Batch({"source": pictures, "target": target})


def expected_gradient(model, fields):
    """Of -sum over all looks s of p(s) log p(y | s), half of it for mixtures, for the parameters of the look."""
    target, total = fields["target"], torch.zeros(()).double()
    for drawn in [*itertools.product(range(STATES), repeat=LENGTH), [NOT_DRAWN] * LENGTH]:
        likely, looked = forced(model, fields, drawn)
        total = total - (MIXED if NOT_DRAWN in drawn else 1 - MIXED) * looked.exp() * likely
    return torch.autograd.grad(total / target.mask.sum(), list(hard_look(model).score.parameters()))


def forced(model, fields, drawn):
    """log p(y | s) and log p(s) where s is given."""
    look, told, given = hard_look(model), [], iter(drawn)

    def forward(query, source):
        mixture, weights = super(HardLook, look).forward(query, source)
        place = next(given)
        told.append(torch.zeros(()) if place == NOT_DRAWN else weights[0, 0, place].log())
        seen = mixture if place == NOT_DRAWN else source.values[:, place : place + 1]
        return seen, weights, torch.full((1, 1), place)

    look.forward = forward
    target = fields["target"]
    hidden = model.writer(shift_right(target.ids, 1), target.mask, model.read(fields))
    del look.forward
    logs = model.writer.head(hidden).log_softmax(-1)
    return logs.gather(-1, target.ids[..., None]).sum(), torch.stack(told).sum()


def test_draws_give_the_gradient_of_the_expectation_in_the_mean():
    """REINFORCE (Williams 1992): 3,000 draws against the sum over all 16 sequences of looks, and mixtures."""
    model, fields = small(), batch()
    wanted = expected_gradient(model, fields)
    model.train()
    many = 3_000
    source = Pictures(fields["source"].values.expand(many, -1, -1, -1), fields["source"].mask.expand(many, -1))
    target = Tokens(fields["target"].ids.expand(many, -1), fields["target"].mask.expand(many, -1))
    torch.manual_seed(5)
    terms = reinforce(model, Batch({"source": source, "target": target}), GENERATOR, reward=1.0, entropy=0.0)
    loss = sum(term.weight * term.sum / term.count for term in terms.values() if term.weight)
    found = torch.autograd.grad(loss, list(hard_look(model).score.parameters()))
    assert any(part.abs().max() > 1e-2 for part in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05 * float(max(part.abs().max() for part in wanted)), rtol=0.05)


def test_the_usual_likelihood_follows_what_was_seen_while_learning_alone():
    model, fields = small(), batch()
    first = -reinforce(model.train(), fields, GENERATOR, decay=0.5)["nll"].sum / LENGTH
    usual = hard_look(model).usual
    torch.testing.assert_close(usual, first.double())
    second = -reinforce(model, fields, GENERATOR, decay=0.5)["nll"].sum / LENGTH
    torch.testing.assert_close(usual, (first + second).double() / 2)
    before = usual.clone()
    reinforce(model.eval(), fields, GENERATOR)
    assert torch.equal(usual, before)
    assert "writer.stack.recurrence.cross.usual" in model.state_dict()


def test_the_loss_of_validation_is_the_cross_entropy_alone():
    model, fields = small(), batch()
    weights = {
        name: [term.weight for term in reinforce(model.train(mode), fields, GENERATOR).values()]
        for name, mode in (("learning", True), ("validation", False))
    }
    assert weights == {"learning": [1.0, 0.1, 0.01, 0.0], "validation": [1.0, 0.0, 0.0, 0.0]}


def test_looks_that_are_surer_have_less_entropy():
    model, fields = small().eval(), batch()
    sure = reinforce(model, fields, GENERATOR)["entropy"].sum
    hard_look(model).score.energy.weight.data.zero_()
    even = reinforce(model, fields, GENERATOR)["entropy"].sum
    assert even.item() == pytest.approx(-LENGTH * math.log(STATES))
    assert sure > even


def test_likelihood_teaches_a_hard_look_nothing():
    """What is drawn has no gradient: that is what the objective is for."""
    model = small().eval()
    next_token(model, batch(), GENERATOR)["next-token"].sum.backward()
    assert all(part.grad is None for part in hard_look(model).score.parameters())


def test_a_model_without_hard_looks_is_refused():
    class Plain(nn.Module):
        def forward(self, memory: Memory) -> Memory:
            return memory

    with pytest.raises(SaccadeError, match=r'"reinforce" learns looks that are drawn; set writer.stack.hard = true'):
        hard_look(Plain())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["writer.stack.hard=true"], r'which the objective "reinforce" learns, and nothing else does; got hard = true'),
        (["objectives=[{kind='reinforce'}]"], r'got hard = false and "reinforce"'),
    ],
)
def test_hard_looks_and_their_objective_go_together(change, message):
    with pytest.raises(SaccadeError, match=message):
        load("show-attend-tell", overrides=change)
