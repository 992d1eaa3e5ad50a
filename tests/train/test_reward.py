"""Expected-reward training: value, gradient, sampling and the layout of batches."""

import signal
from types import SimpleNamespace

import pytest
import small
import torch

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.writers.tokens import Step
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.score.metrics.gleu import sentence_gleu
from saccade.train.batches.layout import should_capture, should_pack
from saccade.train.distributed.ranks import Ranks
from saccade.train.objectives import reward as module
from saccade.train.objectives.objectives import build_objectives, next_token_loss
from saccade.train.objectives.reward import compute_gleu, compute_states, reward_loss, sample_outputs
from saccade.train.objectives.terms import generates_outputs

RECURRENT = {"kind": "recurrent", "dim": 14, "dropout": 0.0}
NONE = {"kind": "none"}
REWARD = {"kind": "reward", "samples": 3, "alpha": 0.5}


def recurrent(*, dropout=0.0, **objective):
    parts = {
        "reader": {
            "stack": {**RECURRENT, "bidirectional": True, "dropout": dropout},
            "positions": NONE,
            "dropout": 0.0,
        },
        "writer": {
            "stack": {**RECURRENT, "attention": "additive", "dropout": dropout},
            "positions": NONE,
            "dropout": 0.0,
        },
        "objectives": [{**REWARD, **objective}],
    }
    return {**parts, "writer": {**parts["writer"], "tie": "none"}}


def make(parts=None, *, size=13):
    torch.manual_seed(3)
    return build(validate(parts or recurrent()), source_size=size, target_size=size).double()


def transformer():
    stack = {"layers": 1, "dim": 14, "heads": 2, "ff": 19, "dropout": 0.0}
    return {side: {"stack": stack, "dropout": 0.0} for side in ("reader", "writer")}


def make_generator(number=1):
    return torch.Generator().manual_seed(number)


# ---- GLEU


def test_gleu_of_ids_is_that_of_words():
    """Random sequences of few distinct tokens, with many repetitions; END is anywhere, or missing."""
    generator = make_generator()
    written = torch.randint(2, 7, (40, 5, 9), generator=generator)
    reference = torch.randint(3, 7, (40, 7), generator=generator)
    lengths = torch.randint(1, 8, (40,), generator=generator)
    reference = torch.where(torch.arange(7) < lengths[:, None], reference, PAD)
    ended = (written == END).cumsum(-1) > 0
    written = torch.where(ended & ~((written == END) & ((written == END).cumsum(-1) == 1)), PAD, written)
    found = compute_gleu(written, reference)
    for texts, wanted, values in zip(written.tolist(), reference.tolist(), found.tolist(), strict=True):
        words = [token for token in wanted if token > END]
        assert values == pytest.approx([sentence_gleu([t for t in text if t > END], words) for text in texts])
    assert 0 < found.mean() < 1


def test_padding_changes_no_reward():
    written, reference = torch.tensor([[[5, 6, 5, END]]]), torch.tensor([[5, 6, 7, END]])
    expected = compute_gleu(written, reference)
    assert expected.item() == pytest.approx(3 / 6)
    wide = torch.nn.functional.pad(written, (0, 4)), torch.nn.functional.pad(reference, (0, 3))
    assert torch.equal(compute_gleu(*wide), expected)
    assert compute_gleu(torch.tensor([[[END]]]), reference).item() == 0
    assert compute_gleu(torch.tensor([[[5]]]), torch.tensor([[5, END]])).item() == 1


# ---- samples


class Writer:
    """A writer whose distribution depends on the last token alone; counts its steps."""

    def __init__(self, table):
        self.table, self.steps = table.log(), 0

    def start(self, memory, *, capacity):
        return None

    def step(self, inputs, state):
        self.steps += 1
        return Step(self.table[inputs[:, 0]], state, None)


def make_memory(rows):
    return Memory(torch.zeros(rows, 1, 1), torch.ones(rows, 1, dtype=torch.bool))


def test_samples_come_from_the_model():
    """P(END) = 0.5 at each step, and two tokens share the rest; PAD and START have probability 0."""
    row = torch.tensor([0.2, 0.2, 0.3, 0.0, 0.2, 0.1])
    drawn = sample_outputs(
        Writer(row.expand(6, 6)), make_memory(4000), torch.zeros(1, 6, dtype=torch.long), make_generator()
    )
    lengths = (drawn != PAD).sum(1)
    for n in (1, 2, 3):
        assert float((lengths == n).float().mean()) == pytest.approx(0.5**n, abs=0.03)
    words = drawn[drawn > END]
    assert set(words.tolist()) == {4, 5}
    assert float((words == 4).float().mean()) == pytest.approx(2 / 3, abs=0.03)
    assert not (drawn == START).any()
    ended = (drawn == END).cumsum(1)
    assert (drawn[ended > 0] == torch.where((drawn == END)[ended > 0], END, PAD)).all() and ended.max() == 1


def test_samples_are_truncated_and_sampling_stops_when_all_have_ended():
    forever = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]).expand(5, 5)
    assert (
        sample_outputs(Writer(forever), make_memory(2), torch.zeros(1, 10, dtype=torch.long), make_generator()).tolist()
        == [[4] * 20] * 2
    )
    ends = Writer(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand(5, 5))
    sample_outputs(ends, make_memory(2), torch.zeros(1, 50, dtype=torch.long), make_generator())
    assert ends.steps == module.CHECK_EVERY


def test_samples_follow_from_the_generator(batch):
    model = make().train()
    first, again, other = (reward_loss(model, batch, make_generator(n), samples=4)["reward"].sum for n in (1, 1, 2))
    assert first == again != other


# ---- the objective


def by_hand(model, batch, *, samples, seed):
    """Sum over pairs of the mean over samples of -(r - mean r) log P, sample by sample; and the rewards."""
    source, target = batch["source"], batch["target"]
    with torch.no_grad():
        drawn = sample_outputs(model.writer, model.read(batch).repeat_rows(samples), target.ids, make_generator(seed))
    total, rewards = torch.zeros((), dtype=torch.float64), []
    for number, texts in enumerate(drawn.view(len(target.ids), samples, -1)):
        words = [t for t in target.ids[number].tolist() if t > END]
        values = torch.tensor([sentence_gleu([t for t in text.tolist() if t > END], words) for text in texts])
        length = int(source.mask[number].sum())
        for text, value in zip(texts, values - values.mean(), strict=True):
            one = {"source": pad([source.ids[number, :length].tolist()]), "target": pad([text[text != PAD].tolist()])}
            total = total - value * compute_token_log_probs(model, Batch(one)).sum() / samples
        rewards.append(values)
    return total, torch.stack(rewards)


@pytest.mark.parametrize("system", ["recurrent", "transformer"])
def test_terms_and_gradients_are_those_of_a_loop(batch, system):
    """Wu et al. 2016, equation 8 and section 5.2: mean reward of the samples as baseline, likelihood beside it."""
    model = make(recurrent() if system == "recurrent" else transformer()).train()
    terms = reward_loss(model, batch, make_generator(7), samples=3, alpha=0.25, label_smoothing=0.1)
    surrogate, rewards = by_hand(model, batch, samples=3, seed=7)
    likelihood = next_token_loss(model, batch, make_generator())["next-token"]
    assert float(terms["reward"].sum) == pytest.approx(float(rewards.sum())) and int(terms["reward"].count) == 9
    assert float(terms["expected-reward"].sum.detach()) == pytest.approx(-float(rewards.mean(1).sum()))
    assert float(terms["likelihood"].sum.detach()) == pytest.approx(float(likelihood.sum.detach()))
    assert [term.weight for term in terms.values()] == [1.0, 0.25, 0.0, 0.0]
    assert [int(terms[name].count) for name in ("expected-reward", "likelihood", "nll")] == [9] * 3  # target tokens
    wanted = torch.autograd.grad(surrogate + 0.25 * likelihood.sum, list(model.parameters()))
    loss = sum(term.weight * term.sum for term in terms.values() if term.weight)
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert any(gradient.abs().max() > 1e-3 for gradient in wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-6)


def test_logits_are_computed_in_chunks(batch, monkeypatch):
    model = make().train()
    whole = reward_loss(model, batch, make_generator(), samples=3)["expected-reward"].sum
    expected = torch.autograd.grad(whole, list(model.writer.parameters()))
    monkeypatch.setattr(module, "LOGIT_CHUNK", 5)
    found = torch.autograd.grad(
        reward_loss(model, batch, make_generator(), samples=3)["expected-reward"].sum, [*model.writer.parameters()]
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


def test_references_and_samples_go_through_the_writer_together(batch):
    """States equal those of separate passes, whatever the lengths."""
    model = make().eval()
    for width in (2, 9):
        written = torch.randint(4, 13, (3, 2, width), generator=make_generator())
        of_reference, of_written = compute_states(model, batch, written)
        target = batch["target"]
        memory = model.read(batch)
        shifted = torch.nn.functional.pad(target.ids[:, :-1], (1, 0), value=START)
        torch.testing.assert_close(of_reference[target.mask], model.writer(shifted, target.mask, memory)[target.mask])
        ids = written[1]
        alone = model.writer(
            torch.nn.functional.pad(ids[:, :-1], (1, 0), value=START),
            None,
            Memory(
                *(x[1:2].repeat(2, *[1] * (x.dim() - 1)) for x in (memory.states, memory.mask)),
                final=tuple(tuple(x[1:2].repeat(2, 1) for x in layer) for layer in memory.final),
            ),
        )
        torch.testing.assert_close(of_written[1], alone)


def test_rows_of_padding_count_nothing(batch):
    model = make().train()
    empty = {
        name: Tokens(torch.nn.functional.pad(x.ids, (0, 0, 0, 1)), torch.nn.functional.pad(x.mask, (0, 0, 0, 1)))
        for name, x in batch.fields.items()
    }
    terms = reward_loss(model, Batch(empty), make_generator(), samples=2)
    assert int(terms["reward"].count) == 6 and int(terms["nll"].count) == 9
    assert all(term.sum.isfinite() for term in terms.values())


def test_better_outputs_become_more_likely(batch):
    """With the reward alone, without cross-entropy."""
    model = make(recurrent(), size=8).float().train()
    source, target = pad([[5, 6, END], [7, END]]), pad([[6, 5, END], [7, 7, 4, END]])
    batch = Batch({"source": source, "target": target})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    means = []
    for step in range(60):
        terms = reward_loss(model, batch, make_generator(step), samples=16, alpha=0.0)
        optimizer.zero_grad()
        terms["expected-reward"].sum.backward()
        optimizer.step()
        means.append(float(terms["reward"].sum / terms["reward"].count))
    assert sum(means[:5]) / 5 < 0.2
    assert sum(means[-5:]) / 5 > 0.6


# ---- in training


def test_killed_and_resumed_is_bit_identical(run_in_process, tmp_path):
    whole, run, train = tmp_path / "whole", tmp_path / "run", {"ema": 0.9, "parts": recurrent(dropout=0.1, samples=2)}
    assert run_in_process(small.train_or_resume, str(whole), train) == 0
    assert run_in_process(small.train_and_die, str(run), train, "batch", 39) == -signal.SIGKILL
    assert run_in_process(small.train_or_resume, str(run), train) == 0
    assert small.weights(run) == small.weights(whole)
    assert small.weights(run, 24) == small.weights(whole, 24)


def test_a_reward_run_starts_from_a_likelihood_run(fit):
    parts = {"reader": {"stack": small.STACK}, "writer": {"stack": small.STACK}}
    first = fit("first", steps=4, valid_every=4, parts=parts)
    settings = ["objectives=[{ kind = 'reward', samples = 2 }]", f"init={first}", "train.metric=gleu"]
    run = fit("second", steps=4, valid_every=2, valid_predictions=10, overrides=settings, parts=parts)
    lines = small.read_metrics(run)
    train = [line for line in lines if line["event"] == "train"][-1]
    valid = [line for line in lines if line["event"] == "valid"]
    assert train["loss"] == pytest.approx(train["expected-reward"] + 0.017 * train["likelihood"])
    assert 0 <= train["reward"] <= 1 and {"gleu", "bleu", "accuracy", "reward"} <= valid[-1].keys()
    best = max(valid, key=lambda line: (line["gleu"], -line["loss"]))
    assert best["best"] and "| gleu |" in (run / "card.md").read_text()


def test_an_objective_declares_that_it_generates_outputs():
    """With this declaration rows are not packed and steps are not CUDA graphs, also for custom objectives."""
    recipe, model = small.small(), make(transformer())
    [shipped] = build_objectives(validate({"objectives": [REWARD]}))
    [plain] = build_objectives(recipe)
    own = SimpleNamespace(writes=True)
    assert [generates_outputs(objective) for objective in (shipped, plain, own)] == [True, False, True]
    device, cuda = torch.device("cpu"), torch.device("cuda")
    assert should_pack(recipe.train, model, device, generates=False) and not should_pack(
        recipe.train, model, device, generates=True
    )
    one = validate({"train": {"steps": 1}})
    assert should_capture(one, capturable=True, ranks=Ranks(), device=cuda, generates=False)
    assert not should_capture(one, capturable=False, ranks=Ranks(), device=cuda, generates=True)


def test_impossible_settings_are_reported(batch):
    train = validate({"train": {"pack": True, "cuda_graphs": True}})
    with pytest.raises(SaccadeError, match="train.pack=true: an objective generates outputs.* leave train.pack out"):
        should_pack(train.train, make(transformer()), torch.device("cpu"), generates=True)
    with pytest.raises(SaccadeError, match="train.cuda_graphs=true needs objectives that do not generate outputs;"):
        should_capture(train, capturable=False, ranks=Ranks(), device=torch.device("cuda"), generates=True)
    with pytest.raises(SaccadeError, match="samples: expected at least 2, got 1"):
        validate({"objectives": [{"kind": "reward", "samples": 1}]})
    model = SimpleNamespace(writer=object())
    with pytest.raises(SaccadeError, match='the objective "reward" samples outputs token by token'):
        build_objectives(validate({"objectives": [REWARD]}))[0](model, batch, make_generator())
