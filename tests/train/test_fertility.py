"""The objective of fertilities: alignment, terms, gradients, and that two pairs are learned."""

import math

import numpy as np
import pytest
import small
import torch

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.aligner import Aligner, build_blank_aligner
from saccade.data.tokenization.tokenizers import END
from saccade.model.build.model import build
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives import fertility
from saccade.train.objectives.fertility import BatchAligner, fertility_loss

PARTS = {
    "reader": {"stack": small.STACK},
    "writer": {"kind": "fertility", "stack": small.STACK, "max_fertility": 3},
    "objectives": [{"kind": "fertility", "alpha": 2.0}],
}
BLANK = BatchAligner(build_blank_aligner())


@pytest.fixture
def model():
    torch.manual_seed(3)
    return build(small.small(parts=PARTS), source_size=13, target_size=13)


@pytest.fixture
def batch():
    return Batch(
        {
            "source": pad([[5, 6, 7, END], [8, 9, 10, 11, 12, END], [4, END]]),
            "target": pad([[11, 12, END], [5, 6, 7, 8, END], [9, 9, 9, 9, 9, 9, END]]),
        }
    )


def test_words_and_positions_decide_about_the_alignment(batch):
    known = Aligner(np.array([7 * 13 + 11, 9 * 13 + 8]), np.array([-0.1, -0.5], np.float32), 13)
    fertilities = BatchAligner(known).count_fertilities(batch["source"], batch["target"])
    assert fertilities[0].tolist() == [0, 0, 2, 0, 0, 0]  # 11 by the word 7, 12 by its place
    assert fertilities[1].tolist() == [1, 2, 1, 0, 0, 0] or fertilities[1, 1] >= 1
    assert fertilities[2].tolist() == [6, 0, 0, 0, 0, 0]
    assert fertilities.sum(1).tolist() == [2, 4, 6]  # END explains nothing


def test_positions_alone_are_the_diagonal():
    source, target = pad([[5, 6, 7, 8, END]]), pad([[5, 6, 7, 8, END]])
    assert BLANK.count_fertilities(source, target).tolist() == [[1, 1, 1, 1, 0]]


def test_unknown_tokens_are_not_taken_for_others():
    """Target 14 with source 6 would have the code of target 1 with source 7."""
    known = BatchAligner(Aligner(np.array([7 * 13 + 1]), np.array([0.0], np.float32), 13))
    found = known.look_up(torch.tensor([[[6, 7]]]), torch.tensor([[[14], [1]]]))
    assert found[0, 0].tolist() == [-16.0, -16.0] and found[0, 1].tolist() == [-16.0, 0.0]


def test_terms_are_those_of_the_formulas(model, batch):
    """Cross-entropy of the tokens given the aligned copies, and of fertilities up to the largest class."""
    model.eval()
    terms = fertility_loss(model, batch, torch.Generator(), aligner=BLANK, label_smoothing=0.0, fertility_weight=0.5)
    assert list(terms) == ["translation", "fertility", "nll"]
    fertilities = BLANK.count_fertilities(batch["source"], batch["target"])
    tokens = count = total = words = 0.0
    for row in range(3):
        source = [i for i in batch["source"].ids[row].tolist() if i]
        target = [i for i in batch["target"].ids[row].tolist() if i]
        counts = fertilities[row, : len(source) - 1].tolist()
        copies = [token for token, times in zip(source, counts, strict=False) for _ in range(times)] + [END]
        assert len(copies) == len(target)
        memory = model.read(Batch({"source": pad([source])}))
        log_probs = model.writer.head(model.writer(torch.tensor([copies]), None, memory))[0].log_softmax(-1)
        tokens -= sum(log_probs[t, token].item() for t, token in enumerate(target[:-1]))
        chances = model.writer.predict_fertilities(memory)[0].log_softmax(-1)
        total -= sum(chances[i, min(f, 3)].item() for i, f in enumerate(counts))
        count, words = count + len(target) - 1, words + len(counts)
    assert terms["translation"].sum.item() == pytest.approx(tokens, abs=1e-4)
    assert terms["fertility"].sum.item() == pytest.approx(total, abs=1e-4)
    assert (int(terms["translation"].count), int(terms["fertility"].count)) == (count, words)
    assert (terms["translation"].weight, terms["fertility"].weight) == (1.0, 0.5)


@pytest.mark.parametrize("alpha", [0.0, 2.0])
@pytest.mark.parametrize("form", [lambda batch: batch, pack_batch, lambda batch: pack_batch(batch, budget=512)])
def test_gradients_reach_every_weight(model, batch, alpha, form):
    terms = fertility_loss(model, form(batch), torch.Generator(), aligner=BLANK, alpha=alpha)
    sum(term.weight * term.sum for term in terms.values()).backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_packed_terms_are_the_padded_ones(model, batch, alpha):
    model.eval()
    expected = fertility_loss(model, batch, torch.Generator(), aligner=BLANK, alpha=alpha)
    for packed in (pack_batch(batch), pack_batch(batch, budget=512)):
        terms = fertility_loss(model, packed, torch.Generator(), aligner=BLANK, alpha=alpha)
        assert terms.keys() == expected.keys()
        for name, term in terms.items():
            assert term.sum.item() == pytest.approx(expected[name].sum.item(), abs=1e-4)
            assert (int(term.count), term.weight) == (int(expected[name].count), expected[name].weight)
    assert model.capabilities.packed_rows


def test_two_pairs_are_learned_by_heart(tmp_path, monkeypatch):
    pairs = [("we are eating bread", "estamos comiendo pan"), ("we eat", "comemos hoy")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    stack = {"layers": 1, "dim": 32, "heads": 2, "ff": 32, "norm": "pre", "dropout": 0.0}
    parts = {
        "reader": {"stack": stack, "dropout": 0.0},
        "writer": {"kind": "fertility", "stack": stack, "dropout": 0.0, "max_fertility": 4},
        "objectives": [{"kind": "fertility", "label_smoothing": 0.0}],
    }
    train = {
        "steps": 80,
        "accumulate": 1,
        "schedule": {"kind": "cosine", "lr": 0.01, "warmup_steps": 20},
        "valid_every": 80,
    }
    recipe = small.small(data={"train": [str(tmp_path / "pairs.tsv")]}, parts=parts, **train)
    learned = []
    learn = fertility.learn_aligner
    monkeypatch.setattr(fertility, "learn_aligner", lambda rows: learned.append(learn(rows)) or learned[-1])

    run = small.api.train(recipe, run=tmp_path / "run", overrides=["tokenizer.kind=words"])

    assert len(learned) == 1 and len(learned[0].codes) > 4  # from the training pairs, once
    assert run.predict([source for source, _ in pairs]) == [target for _, target in pairs]
    assert math.isfinite(run.score(pairs)[0]) and run.score(pairs)[0] > -0.5
