"""Hard attention with REINFORCE: gradients, baseline and entropy."""

import itertools
import math

import pytest
import torch
from torch import nn

import saccade
from saccade.config.load import load
from saccade.config.schema import Corpus, Reinforce
from saccade.data.batching.batch import Batch, Pictures, Tokens
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import NOT_SAMPLED, HardAttention
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.reinforce import (
    compute_leave_one_out_advantages,
    find_hard_attention,
    plan_copies,
    reinforce_loss,
    sum_from_each_step,
)

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


def loss_terms(model, fields, **settings):
    return reinforce_loss(model, fields, GENERATOR, settings=Reinforce(**settings))


def batch():
    torch.manual_seed(4)
    pictures = Pictures(255 * torch.rand(1, 3, 8, 8).double(), torch.ones(1, STATES, dtype=torch.bool))
    target = Tokens(torch.tensor([[5, 2]]), torch.ones(1, LENGTH, dtype=torch.bool))
    return Batch({"source": pictures, "target": target})


def expected_gradient(model, fields, soft_rate=0.5):
    """Exact gradient of -sum over positions s of p(s) log p(y | s), mixed with soft attention, for the score."""
    target, total = fields["target"], torch.zeros(()).double()
    for drawn in [*itertools.product(range(STATES), repeat=LENGTH), [NOT_SAMPLED] * LENGTH]:
        target_log_prob, position_log_prob = score_given_positions(model, fields, drawn)
        share = soft_rate if NOT_SAMPLED in drawn else 1 - soft_rate
        total = total - share * position_log_prob.exp() * target_log_prob
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


def repeat(fields, many):
    source = Pictures(fields["source"].values.expand(many, -1, -1, -1), fields["source"].mask.expand(many, -1))
    target = Tokens(fields["target"].ids.expand(many, -1), fields["target"].mask.expand(many, -1))
    return Batch({"source": source, "target": target})


def estimate_gradients(model, fields, rows, **settings):
    """Gradients of the objective for the score, of a batch of `rows` copies of the fields."""
    loss = sum(
        term.weight * term.sum / term.count
        for term in loss_terms(model, repeat(fields, rows), entropy_weight=0.0, **settings).values()
        if term.weight
    )
    return torch.autograd.grad(loss, list(find_hard_attention(model).score.parameters()))


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (3_000, {}),
        (1_000, {"samples": 3}),
        (1_000, {"samples": 3, "soft_rate": 0.0}),
        (1_500, {"samples": 2, "soft_rate": 0.3}),
    ],
)
def test_samples_give_an_unbiased_gradient_of_the_expectation(rows, settings):
    """REINFORCE (Williams 1992): 3,000 samples against the exact sum over all 16 sequences of positions."""
    model, fields = small(), batch()
    wanted = expected_gradient(model, fields, settings.get("soft_rate", 0.5))
    torch.manual_seed(5)
    found = estimate_gradients(model.train(), fields, rows, reward_weight=1.0, **settings)
    assert any(part.abs().max() > 1e-2 for part in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05 * float(max(part.abs().max() for part in wanted)), rtol=0.05)


def test_the_leave_one_out_baseline_reduces_the_variance():
    """The same number of sampled sequences of positions, in batches of 16: with one for each example, and with four."""
    model, fields = small().train(), batch()
    torch.manual_seed(6)
    spread = {}
    for rows, samples in ((16, 1), (4, 4)):
        drawn = [
            torch.cat([part.flatten() for part in estimate_gradients(model, fields, rows, samples=samples)])
            for _ in range(60)
        ]
        spread[samples] = torch.stack(drawn).var(0).sum()
    assert spread[4] < 0.6 * spread[1]


def test_the_advantage_of_a_sample_is_its_reward_minus_the_mean_of_the_others():
    rewards = torch.tensor([[1.0, 5.0], [2.0, 0.0], [6.0, 1.0], [99.0, 99.0]])  # three samples, and soft attention
    found = compute_leave_one_out_advantages(rewards, 3, 4)
    assert found.tolist() == [[1 - 4.0, 5 - 0.5], [2 - 3.5, 0 - 3.0], [6 - 1.5, 1 - 2.5], [0, 0]]


def test_rewards_leave_out_the_steps_before():
    assert sum_from_each_step(torch.tensor([[1.0, 2.0, 4.0]])).tolist() == [[7.0, 6.0, 4.0]]


def test_the_copies_of_an_example_weigh_one():
    like = torch.zeros(1)
    copies = plan_copies(5, samples=3, soft_rate=0.4, like=like)
    assert copies.per_example == 4 and copies.is_soft.view(5, 4).tolist() == [[False, False, False, True]] * 5
    torch.testing.assert_close(copies.weights.view(5, 4), torch.tensor([[0.2, 0.2, 0.2, 0.4]] * 5))
    assert plan_copies(5, samples=3, soft_rate=0.0, like=like).per_example == 3
    torch.manual_seed(0)
    coin = plan_copies(4_000, samples=1, soft_rate=0.3, like=like)
    assert coin.per_example == 1 and coin.is_soft.double().mean().item() == pytest.approx(0.3, abs=0.03)


def test_validation_takes_each_example_once_without_samples():
    model, fields = small().eval(), batch()
    one, many = (loss_terms(model, fields, samples=samples) for samples in (1, 5))
    assert torch.equal(one["next-token"].sum, many["next-token"].sum) and many["next-token"].count == LENGTH


def test_the_baseline_is_updated_in_training_only():
    model, fields = small(), batch()
    first = -loss_terms(model.train(), fields, baseline_decay=0.5)["nll"].sum / LENGTH
    usual = find_hard_attention(model).usual
    torch.testing.assert_close(usual, first.double())
    second = -loss_terms(model, fields, baseline_decay=0.5)["nll"].sum / LENGTH
    torch.testing.assert_close(usual, (first + second).double() / 2)
    before = usual.clone()
    loss_terms(model.eval(), fields)
    assert torch.equal(usual, before)
    assert "writer.stack.recurrence.cross.usual" in model.state_dict()


def test_the_loss_of_validation_is_the_cross_entropy_alone():
    model, fields = small(), batch()
    weights = {
        name: [term.weight for term in loss_terms(model.train(mode), fields).values()]
        for name, mode in (("learning", True), ("validation", False))
    }
    assert weights == {"learning": [1.0, 0.1, 0.01, 0.0], "validation": [1.0, 0.0, 0.0, 0.0]}


def test_sharper_attention_has_less_entropy():
    model, fields = small().eval(), batch()
    sure = loss_terms(model, fields)["entropy"].sum
    find_hard_attention(model).score.energy.weight.data.zero_()
    even = loss_terms(model, fields)["entropy"].sum
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


@pytest.mark.slow
def test_hard_attention_learns_from_the_weights_of_soft_attention(tmp_path):
    """`benchmarks/embedded.py captions` measures three seeds, with more steps."""
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    saccade.train("show-attend-tell", tiny=True, run=soft, overrides=["train.steps=2000", "train.valid_every=1000"])
    changes = [
        f"reader.init={soft}", f"writer.init={soft}", "writer.stack.hard_attention=true", "train.schedule.lr=0.001",
        "objectives=[{kind='reinforce', samples=4, reward_weight=1.0}]", "train.steps=300", "train.valid_every=100",
    ]  # fmt: skip
    model = saccade.train("show-attend-tell", tiny=True, run=hard, overrides=changes)
    pairs = model.recipe.task.read_pairs(model.recipe, [Corpus(files=("embedded:scenes-heldout",), examples=400)])[200:]
    right = [output == text for output, (_, text) in zip(model.predict([one for one, _ in pairs]), pairs, strict=True)]
    assert sum(right) >= 0.8 * len(right)
