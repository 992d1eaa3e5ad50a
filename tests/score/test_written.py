"""Places of the next item, and the share of molecules, by models that are easy to see through."""

import math
from types import SimpleNamespace

import pytest
import torch

import saccade
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import UNKNOWN
from saccade.errors import SaccadeError
from saccade.score.written import last_places, ranking_scores, share_of_molecules, written_scores

FEW = ["train.steps=2", "train.schedule.warmup=1", "train.batch_tokens=512", "train.valid_every=2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    run = tmp_path_factory.mktemp("written") / "sessions"
    return saccade.train("sasrec", tiny=True, run=run, overrides=[*FEW, "data.train.0.examples=2000"])


def test_gains_of_places():
    scores = ranking_scores([1, 3, 10, 11])
    assert scores["hit@10"].value == 75
    assert scores["ndcg@10"].value == pytest.approx(100 * (1 + 1 / 2 + 1 / math.log2(11)) / 4)


def test_places_are_those_of_the_models_probabilities(model):
    texts = ["book1 cup2 book3", "hat1 hat2 hat3 hat4", "pen0 toy9"]
    names = [f"{shelf}{number}" for shelf in ("book", "cup", "hat", "lamp", "pen", "toy") for number in range(10)]
    for text, place in zip(texts, last_places(model, texts), strict=True):
        *before, last = text.split(" ")
        start = " ".join(before)
        values = dict(zip(names, model.score([(start, name) for name in names]), strict=True))
        better, as_good = (sum(value > values[last] + by for value in values.values()) for by in (1e-4, -1e-4))
        assert better < place <= as_good


def test_an_item_alone_has_none_before_it(model):
    with pytest.raises(SaccadeError, match=r"a text needs two at least, got 'book1'"):
        last_places(model, ["book1 cup2", "book1"])
    with pytest.raises(SaccadeError, match=r"nothing to evaluate: no text was given"):
        written_scores(model, [" "], ["hit@10"])


def test_the_share_of_molecules_is_that_of_what_is_drawn():
    recipe = saccade.config.load.load("smiles", tiny=True)
    fake = SimpleNamespace(
        recipe=recipe, predict=lambda texts, decoding: (["CC", "C(", "c1ccccc1", "CO"] * len(texts))[: len(texts)]
    )
    found = share_of_molecules(fake, 8)
    assert found.value == 75
    assert "drawn:8|temperature:1|seed:1" in found.signature


def test_molecules_are_drawn_as_settings_say():
    asked = []
    recipe = saccade.config.load.load("smiles", tiny=True)
    fake = SimpleNamespace(recipe=recipe, predict=lambda texts, decoding: (asked.append(decoding), ["CC"])[1])
    chosen = Decoding(beam=4, n_best=2, temperature=0.5, seed=7)
    [score] = written_scores(fake, [], ["valid"], decoding=chosen).values()
    assert "temperature:0.5|seed:7" in score.signature
    assert (asked[0].sample, asked[0].n_best, asked[0].temperature, asked[0].seed) == (True, 1, 0.5, 7)


def test_an_item_that_is_not_known_is_never_found(model, monkeypatch):
    sure = torch.zeros(64).index_fill(0, torch.tensor([UNKNOWN]), 9.0)
    monkeypatch.setattr(model.model.writer, "head", lambda states: sure.expand(len(states), -1).clone())
    assert last_places(model, ["book1 spoon7"]) == [64]


def test_weights_that_are_no_numbers_find_nothing(model, monkeypatch):
    monkeypatch.setattr(model.model.writer, "head", lambda states: torch.full((len(states), 64), math.nan))
    assert last_places(model, ["book1 cup2"]) == [64]


def test_places_count_equals_before(model, monkeypatch):
    monkeypatch.setattr(model.model.writer, "head", lambda states: torch.zeros(len(states), 64))
    assert last_places(model, ["book1 cup2"]) == [60]
