import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from saccade.errors import SaccadeError
from saccade.score.metrics.bleu import bleu_statistics, compute_bleu
from saccade.score.statistics import SCORE_FUNCTIONS, compute_statistics, get_score_function, paired_bootstrap


def corpus(share: float, *, seed: int, count: int = 60) -> tuple[list[str], list[str]]:
    """Return references, and outputs in which this share of the words is wrong."""
    draw = random.Random(7)
    references = [" ".join(draw.choices("abcdefghij", k=draw.randint(5, 17))) for _ in range(count)]
    noise = random.Random(seed)
    outputs = [" ".join("?" if noise.random() < share else word for word in text.split()) for text in references]
    return outputs, references


def test_a_system_is_not_better_than_itself() -> None:
    statistics = bleu_statistics(*corpus(0.2, seed=1))
    _, itself = paired_bootstrap([[statistics], [statistics]], compute_bleu, samples=200)
    assert (itself.value, itself.p_value) == (0.0, 1.0)
    assert itself.low <= 0 <= itself.high


def test_a_much_better_system_is_found_better() -> None:
    bad, good = (bleu_statistics(*corpus(share, seed=1)) for share in (0.4, 0.05))
    _, change = paired_bootstrap([[bad], [good]], compute_bleu, samples=500)
    assert change.value == pytest.approx(compute_bleu(good.sum(0)) - compute_bleu(bad.sum(0)))
    assert 0 < change.low < change.value < change.high
    assert change.p_value < 0.01


def test_the_p_value_is_about_that_of_sacrebleu() -> None:
    (ours, references), (theirs, _) = corpus(0.20, seed=1), corpus(0.24, seed=2)
    systems = [("ours", ours), ("theirs", theirs)]
    _, results = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, n_samples=1000)()
    expected = results["BLEU"][1].p_value
    pair = [[bleu_statistics(texts, references)] for _, texts in systems]
    got = paired_bootstrap(pair, compute_bleu, samples=1000)[1].p_value
    assert 0.02 < got < 0.98
    assert got == pytest.approx(expected, abs=0.06)


def test_the_score_of_several_runs_is_their_mean() -> None:
    def share(sums: np.ndarray) -> float:
        return float(sums[0] / sums[1])

    def run(hits: list[int]) -> np.ndarray:
        return np.array([[hit, 1] for hit in hits])

    first, second = [run([0, 0, 0, 0])], [run([1, 1, 1, 1]), run([0, 0, 0, 0])]
    _, change = paired_bootstrap([first, second], share, samples=50)
    assert (change.value, change.low, change.high) == (0.5, 0.5, 0.5)


def test_samples_repeat_with_their_seed() -> None:
    pair = [[bleu_statistics(*corpus(share, seed=1))] for share in (0.2, 0.3)]
    first, again, other = (paired_bootstrap(pair, compute_bleu, samples=50, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_every_score_of_perfect_outputs_is_the_best() -> None:
    texts = ["a b c d e", "f g h i"]
    for name, score in SCORE_FUNCTIONS.items():
        references = [[text] for text in texts] if name == "bleu-4" else texts
        best = 0 if name in ("wer", "cer") else 100
        assert score(compute_statistics(name, texts, references).sum(0)) == pytest.approx(best)


def test_metrics_without_statistics_are_refused() -> None:
    with pytest.raises(SaccadeError, match="metric 'gleu' has no statistics that add up .*; expected one of bleu, "):
        compute_statistics("gleu", ["a"], ["a"])
    with pytest.raises(SaccadeError, match="metric 'gleu' has no statistics that add up .*; expected one of bleu, "):
        get_score_function("gleu")
    with pytest.raises(
        SaccadeError, match="metric 'bleu' has no statistics .*; expected one of accuracy, f1, matthews"
    ):
        get_score_function("bleu", "label")


def test_the_number_of_references_must_fit_the_metric() -> None:
    with pytest.raises(SaccadeError, match="metric 'bleu-4' needs a list of references for each output, got one text"):
        compute_statistics("bleu-4", ["a"], ["a"])
    with pytest.raises(
        SaccadeError, match="with several references, runs are compared by bleu-4 or accuracy, got 'wer'"
    ):
        compute_statistics("wer", ["a"], [["a", "b"]])
