"""Hard attention with REINFORCE: gradients, baseline and entropy."""

import itertools
import math

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, Tokens
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import NOT_SAMPLED, SOFT_ATTENTION_RATE, HardAttention
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.reinforce import find_hard_attention, reinforce_loss

GENERATOR = torch.Generator()
SMALL = [
    "reader.size=8", "reader.channels=[4, 3]", "reader.dropout=0", "writer.dropout=0", "writer.stack.dim=5",
    "writer.stack.dropout=0", "writer.stack.hard_attention=true", "objectives=[{kind='reinforce'}]",
]  # fmt: skip
STATES, LENGTH = 4, 2


def small():
    torch.manual_seed(3)
    model = build(load("show-attend-tell", overrides=SMALL), source_size=7, target_size=7).double()
    find_hard_attention(model).score.energy.weight.data.mul_(8)  # weights that are far from equal
    return model


def batch():
    torch.manual_seed(4)
    pictures = Pictures(255 * torch.rand(1, 3, 8, 8).double(), torch.ones(1, STATES, dtype=torch.bool))
    target = Tokens(torch.tensor([[5, 2]]), torch.ones(1, LENGTH, dtype=torch.bool))
    return Batch({"source": pictures, "target": target})


def expected_gradient(model, fields):
    """Exact gradient of -sum over positions s of p(s) log p(y | s), mixed with soft attention, for the score."""
    target, total = fields["target"], torch.zeros(()).double()
    for drawn in [*itertools.product(range(STATES), repeat=LENGTH), [NOT_SAMPLED] * LENGTH]:
        target_log_prob, position_log_prob = score_given_positions(model, fields, drawn)
        total = (
            total
            - (SOFT_ATTENTION_RATE if NOT_SAMPLED in drawn else 1 - SOFT_ATTENTION_RATE)
            * position_log_prob.exp()
            * target_log_prob
        )
    return torch.autograd.grad(total / target.mask.sum(), list(find_hard_attention(model).score.parameters()))


def score_given_positions(model, fields, drawn):
    """log p(y | s) and log p(s) for given positions s."""
    attention, log_probs, positions = find_hard_attention(model), [], iter(drawn)

    def forward(query, source):
        mixture, weights = super(HardAttention, attention).forward(query, source)
        position = next(positions)
        log_probs.append(torch.zeros(()) if position == NOT_SAMPLED else weights[0, 0, position].log())
        context = mixture if position == NOT_SAMPLED else source.values[:, position : position + 1]
        return context, weights, torch.full((1, 1), position)

    attention.forward = forward
    target = fields["target"]
    hidden = model.writer(shift_right(target.ids, 1), target.mask, model.read(fields))
    del attention.forward
    logs = model.writer.head(hidden).log_softmax(-1)
    return logs.gather(-1, target.ids[..., None]).sum(), torch.stack(log_probs).sum()


def test_samples_give_an_unbiased_gradient_of_the_expectation():
    """REINFORCE (Williams 1992): 3,000 samples against the exact sum over all 16 sequences of positions."""
    model, fields = small(), batch()
    wanted = expected_gradient(model, fields)
    model.train()
    many = 3_000
    source = Pictures(fields["source"].values.expand(many, -1, -1, -1), fields["source"].mask.expand(many, -1))
    target = Tokens(fields["target"].ids.expand(many, -1), fields["target"].mask.expand(many, -1))
    torch.manual_seed(5)
    terms = reinforce_loss(
        model, Batch({"source": source, "target": target}), GENERATOR, reward_weight=1.0, entropy_weight=0.0
    )
    loss = sum(term.weight * term.sum / term.count for term in terms.values() if term.weight)
    found = torch.autograd.grad(loss, list(find_hard_attention(model).score.parameters()))
    assert any(part.abs().max() > 1e-2 for part in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05 * float(max(part.abs().max() for part in wanted)), rtol=0.05)


def test_the_baseline_is_updated_in_training_only():
    model, fields = small(), batch()
    first = -reinforce_loss(model.train(), fields, GENERATOR, baseline_decay=0.5)["nll"].sum / LENGTH
    usual = find_hard_attention(model).usual
    torch.testing.assert_close(usual, first.double())
    second = -reinforce_loss(model, fields, GENERATOR, baseline_decay=0.5)["nll"].sum / LENGTH
    torch.testing.assert_close(usual, (first + second).double() / 2)
    before = usual.clone()
    reinforce_loss(model.eval(), fields, GENERATOR)
    assert torch.equal(usual, before)
    assert "writer.stack.recurrence.cross.usual" in model.state_dict()


def test_the_loss_of_validation_is_the_cross_entropy_alone():
    model, fields = small(), batch()
    weights = {
        name: [term.weight for term in reinforce_loss(model.train(mode), fields, GENERATOR).values()]
        for name, mode in (("learning", True), ("validation", False))
    }
    assert weights == {"learning": [1.0, 0.1, 0.01, 0.0], "validation": [1.0, 0.0, 0.0, 0.0]}


def test_sharper_attention_has_less_entropy():
    model, fields = small().eval(), batch()
    sure = reinforce_loss(model, fields, GENERATOR)["entropy"].sum
    find_hard_attention(model).score.energy.weight.data.zero_()
    even = reinforce_loss(model, fields, GENERATOR)["entropy"].sum
    assert even.item() == pytest.approx(-LENGTH * math.log(STATES))
    assert sure > even


def test_cross_entropy_has_no_gradient_for_hard_attention():
    """Samples have no gradient: the objective provides it."""
    model = small().eval()
    next_token_loss(model, batch(), GENERATOR)["next-token"].sum.backward()
    assert all(part.grad is None for part in find_hard_attention(model).score.parameters())


def test_a_model_without_hard_attention_is_refused():
    class Plain(nn.Module):
        def forward(self, memory: Memory) -> Memory:
            return memory

    with pytest.raises(SaccadeError, match=r'"reinforce" needs hard attention; set writer.stack.hard_attention = true'):
        find_hard_attention(Plain())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ["writer.stack.hard_attention=true"],
            r'which only the objective "reinforce" trains; got hard_attention = true',
        ),
        (["objectives=[{kind='reinforce'}]"], r'got hard_attention = false and "reinforce"'),
    ],
)
def test_hard_attention_and_its_objective_need_each_other(change, message):
    with pytest.raises(SaccadeError, match=message):
        load("show-attend-tell", overrides=change)
