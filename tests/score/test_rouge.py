"""ROUGE, by hand, by the package itself, and where it cannot be computed."""

import importlib.util
import io
import random
import sys
from typing import Any

import pytest
from absl import logging as absl_logging

from saccade.config.metric import Predictions, get_metric
from saccade.errors import SaccadeError
from saccade.score.evaluate import score_texts
from saccade.score.metrics.rouge import keep_stderr_open
from saccade.score.statistics import compute_statistics, get_additive_metric

NAMES = ("rouge1", "rouge2", "rougeL")
WORDS = ["The", "the", "cat", "cats", "running", "ran", "it's", "3.5", "über", "日本", "-", "\u00a0", "a\tb", ""]


def draw_texts(draw: random.Random, count: int) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=draw.choice([0, 1, 2, 7, 40]))) for _ in range(count)]


def test_rouge_by_hand() -> None:
    """`the cat sat down` for `the cat lay down now`: 3 of 4 and of 5 words, 1 of 3 and of 4 pairs, subsequence of 3."""
    scores = score_texts(["the cat sat down"], ["The cat lay down now"], metrics=NAMES)
    assert scores["rouge1"].value == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert scores["rouge2"].value == pytest.approx(100 * 2 * 1 / (3 + 4))
    assert scores["rougeL"].value == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert scores["rougeL"].signature.startswith(
        "rougeL|F1, mean of examples|case:lc|tok:a-z0-9|stem:no|nrefs:1|version"
    )


def test_rouge_of_random_texts_is_that_of_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    draw, scorer = random.Random(7), RougeScorer(NAMES, use_stemmer=False)
    for _ in range(150):
        count = draw.randint(1, 5)
        outputs, references = draw_texts(draw, count), [*draw_texts(draw, count - 1), "the end"]
        each = [scorer.score(reference, output) for output, reference in zip(outputs, references)]
        found = score_texts(outputs, references, metrics=NAMES)
        for name in NAMES:
            expected = 100 * sum(one[name].fmeasure for one in each) / count
            assert found[name].value == pytest.approx(expected, abs=1e-9), (outputs, references)


def test_runs_can_be_compared_by_rouge() -> None:
    outputs, references = ["a b c", "x"], ["a b d", "y z"]
    metric = get_additive_metric("rouge1")
    rows = compute_statistics(metric, Predictions(outputs, references))
    assert rows.tolist() == [[pytest.approx(100 * 2 / 3), 1], [0, 1]]
    assert metric.compute_from_sums(rows.sum(0)) == pytest.approx(
        score_texts(outputs, references, metrics=["rouge1"])["rouge1"].value
    )


def test_references_without_a_word_of_its_alphabet_are_refused() -> None:
    with pytest.raises(SaccadeError, match=r"metric 'rouge1' counts words of the letters a to z .* use chrf or bleu"):
        score_texts(["日本"], ["日本"], metrics=["rouge1"])


def test_a_missing_package_is_reported_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "rouge_score" else find(name, *more)
    )
    message = r"metric 'rouge2' needs the package rouge-score; .*pip install .*\[rouge\]"
    with pytest.raises(SaccadeError, match=message):
        score_texts(["a"], ["a"], metrics=["rouge2"])
    with pytest.raises(SaccadeError, match=message):
        get_metric("rouge2").check_available()


def test_training_by_rouge_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from saccade.config.load import validate
    from saccade.train.setup import check_settings

    recipe = validate({"train": {"steps": 1, "metric": "rougeL"}}, origin="test")
    check_settings(recipe)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SaccadeError, match="metric 'rougeL' needs the package rouge-score"):
        check_settings(recipe)


def test_the_log_handler_of_absl_closes_no_stream(monkeypatch: Any) -> None:
    """uvicorn configures logging anew, which closes all handlers; absl's would close a sys.stderr of before."""
    before = io.StringIO()
    monkeypatch.setattr(absl_logging.get_absl_handler().python_handler, "stream", before)
    keep_stderr_open()
    absl_logging.get_absl_handler().python_handler.close()
    assert not before.closed and not sys.__stderr__.closed
