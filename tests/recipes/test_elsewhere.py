"""Sets, sessions and molecules: recipes whose tokens are no words."""

import time

import pytest

import saccade
from saccade.config.schema import Corpus
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.score.evaluate import evaluate_corpora

FEW = [
    "train.steps=4", "train.schedule.warmup_steps=1", "train.batch_tokens=512", "train.valid_every=4",
    "data.train.0.examples=400", "data.valid.0.examples=40",
]  # fmt: skip


def held(name, count=200):
    return [Corpus(files=(f"embedded:{name}-heldout",), examples=count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def sets(folder):
    return saccade.train("set-encoder", tiny=True, run=folder / "sets", overrides=FEW)


@pytest.fixture(scope="module")
def sessions(folder):
    return saccade.train("sasrec", tiny=True, run=folder / "sessions", overrides=FEW)


def test_a_set_is_the_same_in_any_order(sets):
    texts = ["3 17 5 12", "12 5 3 17", "17 12 5 3"]
    values = [found[0].log_prob for found in sets.candidates(texts)]
    assert values == pytest.approx([values[0]] * 3, abs=1e-5)


def test_metrics_of_sessions_are_asked_for_by_name(sessions):
    found = evaluate_corpora(sessions, held("sessions", 40), metrics=["ndcg@10", "hit@10"])
    assert list(found.scores) == ["ndcg@10", "hit@10"]
    assert 0 <= found.scores["ndcg@10"].value <= found.scores["hit@10"].value <= 100
    assert evaluate_corpora(sessions, held("sessions", 40)).loss > 0
    with pytest.raises(SaccadeError, match=r"unknown metric 'bleu' of a language model; expected one of hit@10"):
        evaluate_corpora(sessions, held("sessions", 4), metrics=["bleu"])


@pytest.mark.slow
def test_sums_are_learned_whatever_the_order(tmp_path):
    begin = time.process_time()
    run = saccade.train("set-encoder", tiny=True, run=tmp_path / "x")
    assert time.process_time() - begin < 80
    accuracy = evaluate_corpora(run, held("sums")).scores["accuracy"].value
    assert get_demonstration("set-encoder").target.is_reached(accuracy)


@pytest.mark.slow
def test_what_visitors_see_next_is_learned(tmp_path):
    """It is one of two things, so that the best order of them has a gain of (1 + 1 / log2(3)) / 2."""
    begin = time.process_time()
    run = saccade.train("sasrec", tiny=True, run=tmp_path / "x")
    assert time.process_time() - begin < 80
    scores = evaluate_corpora(run, held("sessions"), metrics=["hit@10", "ndcg@10"]).scores
    assert get_demonstration("sasrec").target.is_reached(scores["hit@10"].value)
    assert scores["ndcg@10"].value >= 72


@pytest.mark.slow
def test_what_is_drawn_are_molecules(tmp_path):
    begin = time.process_time()
    run = saccade.train("smiles", tiny=True, run=tmp_path / "x")
    assert time.process_time() - begin < 100
    valid = evaluate_corpora(run, held("molecules"), metrics=["valid"]).scores["valid"].value
    assert get_demonstration("smiles").target.is_reached(valid)
