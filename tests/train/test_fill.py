"""The objective of non-autoregressive models: terms, gradients, resuming, end to end."""

import json
import signal

import pytest
import small
import torch

from saccade.data.batching.batch import Batch, pad
from saccade.model.build.model import build
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives import masking
from saccade.train.objectives.fill import fill_loss

PARTS = {
    "reader": {"stack": small.STACK},
    "writer": {"kind": "fill", "stack": small.STACK, "max_length_difference": 5},
    "objectives": [{"kind": "fill", "alpha": 2.0}],
}


@pytest.fixture
def filler():
    torch.manual_seed(3)
    return build(small.small(parts=PARTS), source_size=13, target_size=13)


@pytest.fixture
def half_hidden(monkeypatch):
    """Mask every second token instead of random ones."""

    def hide(writer, target, memory, generator, *, glancing, reveal_ratio):
        return masking.get_maskable(target) & (target.ids % 2 == 0)

    monkeypatch.setattr(masking, "choose_masked_tokens", hide)


@pytest.mark.parametrize("alpha", [0.0, 2.0])
@pytest.mark.parametrize("form", [lambda batch: batch, pack_batch, lambda batch: pack_batch(batch, budget=512)])
def test_gradients_reach_every_weight(filler, batch, alpha, form):
    terms = fill_loss(filler, form(batch), torch.Generator().manual_seed(1), alpha=alpha)
    sum(term.weight * term.sum for term in terms.values()).backward()
    assert not [name for name, weight in filler.named_parameters() if weight.grad is None or not weight.grad.any()]


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_packed_terms_are_the_padded_ones(filler, batch, alpha, half_hidden):
    filler.eval()
    generator = torch.Generator()
    expected = fill_loss(filler, batch, generator, alpha=alpha)
    for packed in (pack_batch(batch), pack_batch(batch, budget=512)):
        terms = fill_loss(filler, packed, generator, alpha=alpha)
        assert terms.keys() == expected.keys()
        for name, term in terms.items():
            assert term.sum.item() == pytest.approx(expected[name].sum.item(), abs=1e-4)
            assert (int(term.count), term.weight) == (int(expected[name].count), expected[name].weight)
    assert filler.capabilities.packed_rows


def test_terms_are_masked_tokens_and_length(filler, batch, half_hidden):
    filler.eval()
    terms = fill_loss(filler, batch, torch.Generator(), label_smoothing=0.0, weight=3.0)
    assert list(terms) == ["fill", "length", "nll"]
    target, memory = batch["target"], filler.read(batch)
    hidden = torch.tensor([[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)
    logits = filler.writer.head(filler.writer(target.ids.masked_fill(hidden, 1), target.mask, memory))
    logs = logits.log_softmax(-1).gather(2, target.ids[..., None])[..., 0]
    assert terms["fill"].sum.item() == terms["nll"].sum.item() == pytest.approx(-logs[hidden].sum().item(), abs=1e-5)
    assert [int(term.count) for term in terms.values()] == [3, 3, 3]
    assert [term.weight for term in terms.values()] == [3.0, pytest.approx(0.3), 0.0]
    # sources of 4, 2, 3, targets of 5, 2, 2 tokens
    lengths = filler.writer.predict_lengths(memory).logits.log_softmax(-1)
    assert terms["length"].sum.item() == pytest.approx(
        -(lengths[0, 6] + lengths[1, 5] + lengths[2, 4]).item(), abs=1e-5
    )


def test_a_length_out_of_reach_counts_as_the_nearest(filler):
    batch = Batch({"source": pad([[5, 2]]), "target": pad([[6] * 20 + [2]])})
    terms = fill_loss(filler.eval(), batch, torch.Generator())
    expected = -filler.writer.predict_lengths(filler.read(batch)).logits.log_softmax(-1)[0, -1]
    assert terms["length"].sum.item() == pytest.approx(expected.item(), abs=1e-5)


def test_passes_of_a_doubled_batch_agree_without_dropout(filler, batch, half_hidden):
    filler.eval()
    once, twice = (fill_loss(filler, batch, torch.Generator(), alpha=alpha) for alpha in (0.0, 2.0))
    assert twice["consistency"].sum.item() == pytest.approx(0, abs=1e-6)
    for name, term in once.items():
        assert twice[name].sum.item() == pytest.approx(term.sum.item(), abs=1e-4)
    assert any(
        fill_loss(filler.train(), batch, torch.Generator(), alpha=2.0)["consistency"].sum > 1e-3 for _ in range(2)
    )


def test_killed_and_resumed_is_bit_identical(run_in_process, tmp_path):
    whole, run, train = tmp_path / "whole", tmp_path / "run", {"ema": 0.9, "keep_checkpoints": 2, "parts": PARTS}
    assert run_in_process(small.train_or_resume, str(whole), train) == 0

    assert run_in_process(small.train_and_die, str(run), train, "batch", 39) == -signal.SIGKILL
    assert run_in_process(small.train_or_resume, str(run), train) == 0

    assert small.weights(run) == small.weights(whole)
    assert small.weights(run, 24) == small.weights(whole, 24)


@pytest.mark.slow
def test_steps_compile_without_breaks(run_in_process, tmp_path):
    train = {"steps": 8, "valid_every": 4, "batch_tokens": 200, "report_every": 1, "parts": PARTS}
    assert run_in_process(small.train_compiled, str(tmp_path / "run"), train, "eager", []) == 0

    counts = json.loads((tmp_path / "run/counts.json").read_text())
    assert counts["graphs"] > 0 and counts["breaks"] == 0


def test_two_pairs_are_learned_by_heart(tmp_path):
    pairs = [("we are eating bread", "estamos comiendo pan"), ("we eat", "comemos")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    stack = {"layers": 1, "dim": 32, "heads": 2, "ff": 32, "norm": "pre", "dropout": 0.0}
    parts = {
        "reader": {"stack": stack, "dropout": 0.0},
        "writer": {"kind": "fill", "stack": stack, "dropout": 0.0, "max_length_difference": 4},
        "objectives": [{"kind": "fill", "label_smoothing": 0.0}],
    }
    train = {
        "steps": 80,
        "accumulate": 1,
        "schedule": {"kind": "cosine", "lr": 0.01, "warmup_steps": 20},
        "valid_every": 80,
    }
    recipe = small.small(data={"train": [str(tmp_path / "pairs.tsv")]}, parts=parts, **train)

    run = small.api.train(recipe, run=tmp_path / "run", overrides=["tokenizer.kind=words"])

    for iterations in (1, 3):
        decoding = run.recipe.predict.model_copy(update={"iterations": iterations})
        assert run.predict([source for source, _ in pairs], decoding=decoding) == [target for _, target in pairs]
