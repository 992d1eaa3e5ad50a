"""Ranks of the next item, and the share of valid molecules, by simple models."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import saccade
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import UNKNOWN
from saccade.errors import SaccadeError
from saccade.score.language_metrics import (
    compute_language_scores,
    measure_valid_molecules,
    rank_last_items,
    ranking_scores,
)

FEW = ["train.steps=2", "train.schedule.warmup_steps=1", "train.batch_tokens=512", "train.valid_every=2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    run = tmp_path_factory.mktemp("written") / "sessions"
    return saccade.train("sasrec", tiny=True, run=run, overrides=[*FEW, "data.train.0.examples=2000"])


def test_ranking_scores_by_hand():
    scores = ranking_scores([1, 3, 10, 11])
    assert scores["hit@10"].value == 75
    assert scores["ndcg@10"].value == pytest.approx(100 * (1 + 1 / 2 + 1 / math.log2(11)) / 4)


def test_ranking_scores_are_those_of_scikit_learn():
    """A score for each of 30 items, one of which is the right one."""
    from sklearn.metrics import ndcg_score, top_k_accuracy_score

    draw = np.random.default_rng(7)
    for count in (2, 3, 40, 500):
        scores, right = draw.permuted(np.tile(np.arange(30.0), (count, 1)), axis=1), draw.integers(30, size=count)
        ranks = [int((row > row[item]).sum()) + 1 for row, item in zip(scores, right)]
        found = ranking_scores(ranks)
        is_right = np.arange(30) == right[:, None]
        assert found["ndcg@10"].value == pytest.approx(100 * ndcg_score(is_right, scores, k=10))
        hits = top_k_accuracy_score(right, scores, k=10, labels=np.arange(30))
        assert found["hit@10"].value == pytest.approx(100 * hits)


def test_ranks_follow_from_the_probabilities_of_the_model(model):
    texts = ["book1 cup2 book3", "hat1 hat2 hat3 hat4", "pen0 toy9"]
    names = [f"{shelf}{number}" for shelf in ("book", "cup", "hat", "lamp", "pen", "toy") for number in range(10)]
    for text, place in zip(texts, rank_last_items(model, texts), strict=True):
        *before, last = text.split(" ")
        start = " ".join(before)
        values = dict(zip(names, model.score([(start, name) for name in names]), strict=True))
        better, as_good = (sum(value > values[last] + by for value in values.values()) for by in (1e-4, -1e-4))
        assert better < place <= as_good


def test_a_single_item_cannot_be_ranked(model):
    with pytest.raises(SaccadeError, match=r"a text needs at least two items, got 'book1'"):
        rank_last_items(model, ["book1 cup2", "book1"])
    with pytest.raises(SaccadeError, match=r"nothing to evaluate: no text was given"):
        compute_language_scores(model, [" "], ["hit@10"])


def test_valid_molecules_are_counted_among_samples():
    recipe = saccade.config.load.load("smiles", tiny=True)
    fake = SimpleNamespace(
        recipe=recipe, predict=lambda texts, decoding: (["CC", "C(", "c1ccccc1", "CO"] * len(texts))[: len(texts)]
    )
    found = measure_valid_molecules(fake, 8)
    assert found.value == 75
    assert "drawn:8|temperature:1|seed:1" in found.signature


def test_molecules_are_sampled_with_the_given_settings():
    asked = []
    recipe = saccade.config.load.load("smiles", tiny=True)
    fake = SimpleNamespace(recipe=recipe, predict=lambda texts, decoding: (asked.append(decoding), ["CC"])[1])
    chosen = Decoding(beam=4, n_best=2, temperature=0.5, seed=7)
    [score] = compute_language_scores(fake, [], ["valid"], decoding=chosen).values()
    assert "temperature:0.5|seed:7" in score.signature
    assert (asked[0].sample, asked[0].n_best, asked[0].temperature, asked[0].seed) == (True, 1, 0.5, 7)


def test_an_unknown_item_ranks_last(model, monkeypatch):
    sure = torch.zeros(64).index_fill(0, torch.tensor([UNKNOWN]), 9.0).to(model.device)
    monkeypatch.setattr(model.model.writer, "head", lambda states: sure.expand(len(states), -1).clone())
    assert rank_last_items(model, ["book1 spoon7"]) == [64]


def test_nan_weights_rank_last(model, monkeypatch):
    monkeypatch.setattr(model.model.writer, "head", lambda states: states.new_full((len(states), 64), math.nan))
    assert rank_last_items(model, ["book1 cup2"]) == [64]


def test_ties_rank_worst(model, monkeypatch):
    monkeypatch.setattr(model.model.writer, "head", lambda states: states.new_zeros(len(states), 64))
    assert rank_last_items(model, ["book1 cup2"]) == [60]
