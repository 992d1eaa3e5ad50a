import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.chrf import CHRF

from saccade.errors import SaccadeError
from saccade.score.metrics.bleu import bleu_statistics, compute_bleu, corpus_scores

REFERENCES = [
    "The cat sat on the mat, didn't it?",
    "Ein Hund läuft über die Wiese.",
    "Two dogs play in the snow .",
    "a",
]
HYPOTHESES = ["The cat sat on a mat, did it?", "Ein Hund rennt über die grüne Wiese.", "two dogs play in snow .", ""]


def by_command_line(tmp_path: Path, *options: str) -> dict:
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(tmp_path / "ref"),
        "-i",
        str(tmp_path / "hyp"),
        "-w",
        "6",
        *options,
    ]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_scores_and_signatures_are_those_of_sacrebleus_command(metric: str, tmp_path: Path) -> None:
    expected = by_command_line(tmp_path, "-m", metric)
    score = corpus_scores(HYPOTHESES, REFERENCES)[metric]
    assert score.value == pytest.approx(expected["score"], abs=1e-5)
    assert score.signature == expected["signature"].removeprefix(expected["name"]).lstrip("|")


def test_bleu_is_cased_by_13a_unless_asked() -> None:
    cased = corpus_scores(HYPOTHESES, REFERENCES, ["bleu"])["bleu"]
    lower = corpus_scores(HYPOTHESES, REFERENCES, ["bleu"], lowercase=True)["bleu"]
    assert "case:mixed" in cased.signature
    assert "tok:13a" in cased.signature
    assert "case:lc" in lower.signature
    assert lower.value > cased.value


def test_a_perfect_output_scores_100() -> None:
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert (scores["bleu"].value, scores["chrf"].value, scores["ter"].value) == pytest.approx((100, 100, 0))


def test_statistics_of_any_sample_give_its_bleu() -> None:
    statistics = bleu_statistics(HYPOTHESES, REFERENCES)
    for sample in ([0, 1, 2, 3], [0, 0, 2], [1, 3], [2], [3]):
        expected = corpus_scores([HYPOTHESES[i] for i in sample], [REFERENCES[i] for i in sample], ["bleu"])["bleu"]
        assert compute_bleu(statistics[sample].sum(0)) == pytest.approx(expected.value)
    assert statistics.dtype == np.int64


def draw_texts(draw: random.Random, count: int) -> list[str]:
    """Return texts with punctuation, markup, several scripts, spaces of other kinds, and empty ones."""
    pieces = [
        "dog",
        "Dogs,",
        "3.5%",
        "it's",
        "(a-b)",
        "&quot;",
        "日本",
        "…",
        "\u00a0",
        "x!?",
        "straße.",
        "\t",
        "e\u0301",
    ]
    return [" ".join(draw.choices(pieces, k=draw.choice([0, 1, 2, 5, 12, 30]))) for _ in range(count)]


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_of_random_texts_are_those_of_sacrebleu(lowercase: bool) -> None:
    draw = random.Random(7)
    for _ in range(40):
        count = draw.randint(1, 6)
        outputs, references = draw_texts(draw, count), draw_texts(draw, count)
        found = corpus_scores(outputs, references, lowercase=lowercase)
        expected = {
            "bleu": sacrebleu.corpus_bleu(outputs, [references], lowercase=lowercase, force=True).score,
            "chrf": CHRF(lowercase=lowercase).corpus_score(outputs, [references]).score,
            "ter": sacrebleu.corpus_ter(outputs, [references]).score,
        }
        assert {name: score.value for name, score in found.items()} == pytest.approx(expected, abs=1e-9)
        sums = bleu_statistics(outputs, references, lowercase=lowercase).sum(0)
        assert compute_bleu(sums) == pytest.approx(expected["bleu"], abs=1e-9)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(SaccadeError, match="got 1 outputs and 2 references"):
        corpus_scores(["a"], ["a", "b"])


def test_empty_input_is_refused() -> None:
    with pytest.raises(SaccadeError, match="nothing to score"):
        corpus_scores([], [])


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(SaccadeError, match="unknown metric 'meteor'; expected one of bleu, chrf, ter"):
        corpus_scores(["a"], ["a"], ["meteor"])
