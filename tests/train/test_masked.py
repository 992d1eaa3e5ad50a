"""Masked language modelling: which tokens are masked and how, on padded and packed batches."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config.load import load, validate
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.batching.batches import iter_validation_batches
from saccade.data.prepare import prepare
from saccade.data.tokenization.special_tokens import MASK_TOKEN, find_special_ranges, get_mask_id
from saccade.data.tokenization.tokenizer import END, UNKNOWN, Tokenizers
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train import train
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.masked import (  # fmt: skip
    Masking,
    build_masked_objective,
    compute_start_probs,
    count_target_slots,
    gather_targets,
    hash_noise,
    mask_tokens,
    masked_token_loss,
    sample_any_token,
    sample_noise,
    select_ngrams,
)
from saccade.train.objectives.objectives import build_objectives
from saccade.train.objectives.terms import Context

SIZE, HIDDEN_AS = 40, 7
HIDING = Masking(0.15, 0.8, 0.1, mask_id=HIDDEN_AS, special=[(5, 1), (7, 2), (38, 2)], vocabulary_size=SIZE)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(*lengths: int, seed: int = 1) -> Tokens:
    ids = [torch.randint(9, 38, (length,), generator=generator(seed + i)).tolist() for i, length in enumerate(lengths)]
    return pad([[5, *row, END] for row in ids])


def model(**more: Any) -> Model:
    recipe = validate(
        {
            "task": "encode",
            "tokenizer": {"mask_token": True, "cls_token": True},
            "reader": {
                "stack": {"layers": 2, "dim": 12, "heads": 2, "ff": 24, "dropout": 0.0}, "dropout": 0.0, "segments": 2,
            },
            "writer": {"kind": "masked", "pairs": True, "dropout": 0.0},
            "objectives": [{"kind": "masked", "pairs": "next"}],
            **more,
        }
    )  # fmt: skip
    torch.manual_seed(0)
    return build(recipe, source_size=SIZE, target_size=SIZE)


def test_a_share_of_the_tokens_is_hidden_and_most_are_masked() -> None:
    given = tokens(*([200] * 100))
    hidden = mask_tokens(given, sample_noise(given, generator()), HIDING)
    text = (given.ids > 8) & given.mask
    share = hidden.is_target.sum() / text.sum()
    assert 0.14 < share < 0.16
    shown, wanted = hidden.inputs[hidden.is_target], given.ids[hidden.is_target]
    assert 0.78 < (shown == HIDDEN_AS).float().mean() < 0.82
    assert 0.09 < (shown == wanted).float().mean() < 0.12  # those that stay, and some that are replaced by themselves
    assert torch.equal(hidden.inputs[~hidden.is_target], given.ids[~hidden.is_target])


def test_ngrams_cover_the_share_and_have_the_lengths_of_albert() -> None:
    """Lan et al. 2020, section 4.1: p(n) = (1/n) / (1 + 1/2 + 1/3) for n up to 3."""
    given = tokens(*([400] * 100))
    ngrams = HIDING._replace(max_ngram=3)
    hidden = mask_tokens(given, sample_noise(given, generator()), ngrams).is_target
    text = (given.ids > 8) & given.mask
    assert 0.145 < hidden.sum() / text.sum() < 0.155
    total, starts = 1 + 1 / 2 + 1 / 3, compute_start_probs(0.15, 3)
    assert [item / starts[0] for item in starts] == pytest.approx([1, (1 / 2 + 1 / 3) / total, 1 / 3 / total])
    assert 1 - math.prod(1 - item for item in starts) == pytest.approx(0.15)
    noise = torch.full((1, 12), 0.999)
    noise[0, 2], noise[0, 5], noise[0, 8] = starts[0] * 0.99, starts[1] * 0.99, starts[2] * 0.99  # n = 1, 2, 3
    one = Tokens(torch.full((1, 12), 9), torch.ones(1, 12, dtype=torch.bool))
    assert select_ngrams(one, noise, 0.15, 3).nonzero()[:, 1].tolist() == [2, 5, 6, 8, 9, 10]


def test_ngrams_of_packed_rows_end_with_their_sequence() -> None:
    batch = Batch({"source": tokens(31, 17, 23)})
    ngrams = HIDING._replace(max_ngram=5, mask_rate=0.5)
    row = pack_batch(batch, budget=256)["source"]
    there = mask_tokens(row, hash_noise(row), ngrams)
    here = mask_tokens(batch["source"], hash_noise(batch["source"]), ngrams)
    assert torch.equal(there.inputs[row.mask.keep], here.inputs[batch["source"].mask])


def test_ngrams_find_a_slot_each() -> None:
    noise = torch.rand(300, 8, 64, generator=generator())
    one = Tokens(torch.full((8, 64), 9), torch.ones(8, 64, dtype=torch.bool))
    most = max(int(select_ngrams(one, item, 0.15, 3).sum()) for item in noise)
    assert 90 < most < count_target_slots(8 * 64, 0.15, 3)


def test_special_tokens_and_padding_are_never_masked_nor_replacements() -> None:
    given = Tokens(torch.randint(0, SIZE, (50, 300), generator=generator()), torch.ones(50, 300, dtype=torch.bool))
    given.mask[:, 250:] = False
    hidden = mask_tokens(given, sample_noise(given, generator()), HIDING)
    special = {0, 1, 2, 3, 5, 7, 8, 38, 39}
    assert not special & set(given.ids[hidden.is_target].tolist())
    assert not hidden.is_target[:, 250:].any()
    drawn = set(sample_any_token(torch.rand(20000, generator=generator()), HIDING).tolist())
    assert drawn == set(range(SIZE)) - special


def test_hash_noise_depends_on_the_sequence_alone() -> None:
    a, b = tokens(31, 17, 23), tokens(31, 17, 23)
    beside = tokens(31)
    assert torch.equal(hash_noise(a), hash_noise(b))
    torch.testing.assert_close(hash_noise(beside)[0, 0], hash_noise(a)[0, 0], rtol=0, atol=0)
    other = Tokens(a.ids.clone(), a.mask)
    other.ids[0, 5] = 9 if a.ids[0, 5] != 9 else 10
    assert (hash_noise(other)[:, 0] != hash_noise(a)[:, 0]).float().mean() > 0.9
    many = hash_noise(tokens(*range(50, 250)))
    flat = many[:, tokens(*range(50, 250)).mask]
    assert flat.min() >= 0 and flat.max() < 1 and abs(flat.mean() - 0.5) < 0.01
    assert (flat[0] < 0.15).float().mean().sub(0.15).abs() < 0.01
    assert torch.corrcoef(flat)[0, 1].abs() < 0.02


def test_packed_sequences_mask_the_same_tokens() -> None:
    batch = Batch({"source": tokens(31, 17, 23)})
    packed = pack_batch(batch, budget=256)
    row = packed["source"]
    real = row.mask.keep
    there = mask_tokens(row, hash_noise(row), HIDING)
    here = mask_tokens(batch["source"], hash_noise(batch["source"]), HIDING)
    assert torch.equal(there.inputs[real], here.inputs[batch["source"].mask])
    assert not there.is_target[~real].any()


def test_the_number_of_target_slots_depends_on_the_shape_alone() -> None:
    for seed in range(20):
        chosen = torch.rand(16, 64, generator=generator(seed)) < 0.15
        places, keep = gather_targets(chosen, rate=0.15)
        assert len(places) == count_target_slots(16 * 64, 0.15) < 16 * 64
        assert torch.equal(places[keep], chosen.flatten().nonzero()[:, 0])
    none, keep = gather_targets(torch.zeros(2, 3, dtype=torch.bool), rate=0.15)
    assert not keep.any() and none.eq(0).all()
    every = torch.ones(4, 100, dtype=torch.bool)
    places, keep = gather_targets(every, rate=0.15)  # more than there is room for: the first ones
    assert keep.all() and torch.equal(places, torch.arange(len(places)))


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_batch_gives_terms_of_the_hidden_tokens_and_of_the_pairs(dynamic: bool) -> None:
    batch = Batch({"source": tokens(31, 17, 23, 29), "pair": pad([[0], [1], [2], [1]])})
    terms = masked_token_loss(model(), batch, generator(), masking=HIDING._replace(dynamic=dynamic), pairs="next")
    assert terms.keys() == {"masked", "nll", "pairs", "pairs_right"}
    assert terms["pairs"].count == 3 and 0 <= terms["pairs_right"].sum <= 3
    torch.testing.assert_close(terms["masked"].sum, terms["nll"].sum)


def test_loss_and_gradients_equal_those_of_explicit_logits() -> None:
    ours = model().double()
    batch = Batch({"source": tokens(31, 17, 23)})
    term = masked_token_loss(ours, batch, generator(), masking=HIDING._replace(dynamic=False))["masked"]
    hidden = mask_tokens(batch["source"], hash_noise(batch["source"]), HIDING)
    states = ours.reader(hidden.inputs, batch["source"].mask).states
    logits = ours.writer.head(ours.writer(states[hidden.is_target]))
    expected = torch.nn.functional.cross_entropy(logits, batch["source"].ids[hidden.is_target], reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert term.count == hidden.is_target.sum() > 3
    names, learned = zip(
        *((n, p) for n, p in ours.named_parameters() if "follows" not in n and "hidden" not in n), strict=True
    )
    for name, a, b in zip(names, *(torch.autograd.grad(x, learned) for x in (term.sum, expected)), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_packed_rows_have_the_loss_of_padded_ones() -> None:
    ours = model().double()
    batch = Batch({"source": tokens(31, 17, 23, 40), "pair": pad([[0], [1], [2], [1]])})
    found = []
    for given in (batch, pack_batch(batch), pack_batch(batch, budget=512)):
        terms = masked_token_loss(ours, given, generator(), masking=HIDING._replace(dynamic=False), pairs="next")
        loss = terms["masked"].sum / terms["masked"].count + terms["pairs"].sum / terms["pairs"].count
        found.append((loss, torch.autograd.grad(loss, list(ours.parameters()))))
    for loss, gradients in found[1:]:
        torch.testing.assert_close(loss, found[0][0])
        for a, b in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(a, b)


def test_a_batch_without_hidden_tokens_adds_nothing() -> None:
    batch = Batch({"source": pad([[5, END]])})
    term = masked_token_loss(model(), batch, generator(), masking=HIDING)["masked"]
    assert term.sum == 0 and term.count == 1


def learned_tokenizer(**more: Any) -> Tokenizers:
    settings = validate({"tokenizer": {"kind": "words", "size": 50, **more}}).tokenizer
    return train_tokenizers(settings, lambda: [("a dog sees a cat",)])


def test_the_objective_gets_special_tokens_from_the_tokenizer() -> None:
    tokenizer = learned_tokenizer(cls_token=True, mask_token=True).source
    recipe = validate(
        {
            "task": "encode",
            "tokenizer": {"mask_token": True},
            "writer": {"kind": "masked"},
            "objectives": [{"kind": "masked"}],
        }
    )
    [made] = build_objectives(recipe, tokenizer=tokenizer)
    assert isinstance(made, functools.partial) and made.func is masked_token_loss
    masking = made.keywords["masking"]
    assert (
        tokenizer.convert_ids_to_tokens([masking.mask_id]) == [MASK_TOKEN] and masking.vocabulary_size == tokenizer.size
    )
    [(first, count)] = find_special_ranges(tokenizer)
    assert (
        tokenizer.convert_ids_to_tokens(range(first, first + count)) == [MASK_TOKEN, "[CLS]"]
        and first + count == tokenizer.size
    )


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    tokenizer = learned_tokenizer().source
    with pytest.raises(SaccadeError, match=r"the tokenizer has no mask token \(\[MASK\] or <mask>\)"):
        get_mask_id(tokenizer)
    with pytest.raises(SaccadeError, match="no mask token"):
        build_masked_objective(
            validate(
                {
                    "objectives": [{"kind": "masked"}],
                    "task": "encode",
                    "tokenizer": {"mask_token": True},
                    "writer": {"kind": "masked"},
                }
            ).objectives[0],
            Context(tokenizer),
        )


def test_a_writer_of_states_has_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match='writer.kind = "states" has no outputs to train'):
        train("roberta", tiny=True, run=tmp_path / "run", overrides=['writer={kind="states"}'])


def unigram(recipe: Any) -> float:
    """Nats per token of held-out text under the unigram distribution of the training text."""
    found = prepare(recipe, report=lambda text: None)
    tokenizer = found.tokenizers.source

    def counts(rows: Any) -> torch.Tensor:
        total = torch.zeros(tokenizer.size)
        for batch in iter_validation_batches(rows, batch_tokens=8192):
            total += torch.bincount(batch["source"].ids[batch["source"].mask], minlength=tokenizer.size)
        total[: UNKNOWN + 1] = 0
        for first, count in find_special_ranges(tokenizer):
            total[first : first + count] = 0
        return total

    trained, held = counts(found.train) + 1, counts(found.valid)
    return float(-(held * (trained / trained.sum()).log()).sum() / held.sum())


def last_validation(run: Path) -> dict[str, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "valid"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
def test_masked_tokens_are_predicted_better_than_by_frequency(name: str, tmp_path: Path) -> None:
    train(name, tiny=True, run=tmp_path / "run")
    found = last_validation(tmp_path / "run")
    target = get_demonstration(name).target
    assert target.number < math.exp(unigram(load(name, tiny=True)) - 0.5)
    assert target.is_reached(math.exp(found["nll"]))
    if name != "roberta":
        assert found["pairs"] < math.log(2) and found["pairs_right"] > 0.65


SMALL = [
    "train.steps=20", "train.valid_every=10", "train.save_every=10", "train.batch_tokens=512", "train.report_every=10",
    "reader.stack.dim=16", "reader.stack.ff=16", "reader.stack.layers=1",
    "data.train.0.examples=200", "data.valid.0.examples=40",
]  # fmt: skip


@pytest.fixture
def train_tiny(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, *more: str, run: str = "run") -> Path:
        train(name, tiny=True, run=tmp_path / run, overrides=[*SMALL, *more])
        return tmp_path / run

    return make


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_a_resumed_run_is_bit_identical(name: str, train_tiny: Callable[..., Path]) -> None:
    constant = ["train.schedule.kind=constant", "train.schedule.warmup_steps=0"]
    whole, parted = train_tiny(name, *constant), train_tiny(name, *constant, "train.steps=10", run="parted")
    train(resume=parted, overrides=["train.steps=20"])
    assert (whole / "model.safetensors").read_bytes() == (parted / "model.safetensors").read_bytes()
