import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from saccade.config.metric import CAPTIONS, LABEL, TEXT, Predictions
from saccade.errors import SaccadeError
from saccade.score.metrics.bleu import bleu_statistics, compute_bleu
from saccade.score.statistics import compute_statistics, get_additive_metric, list_additive_metrics, paired_bootstrap


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


@pytest.mark.parametrize("kind", [TEXT, CAPTIONS])
def test_every_score_of_perfect_outputs_is_the_best(kind: str) -> None:
    texts = ["a b c d e", "f g h i"]
    references = [[text] for text in texts] if kind == CAPTIONS else texts
    metrics = list_additive_metrics(kind)
    assert "accuracy" in [metric.name for metric in metrics]
    for metric in metrics:
        best = 100 if metric.higher_is_better else 0
        statistics = compute_statistics(metric, Predictions(texts, references, kind=kind))
        assert metric.compute_from_sums(statistics.sum(0)) == pytest.approx(best)


def test_metrics_without_statistics_are_refused() -> None:
    with pytest.raises(SaccadeError, match="metric 'gleu' has no statistics that add up .*; expected one of bleu, "):
        get_additive_metric("gleu")
    with pytest.raises(
        SaccadeError, match="metric 'bleu' has no statistics .*; expected one of accuracy, f1, matthews"
    ):
        get_additive_metric("bleu", LABEL)
    with pytest.raises(SaccadeError, match="metric 'wer' has no statistics .*; expected one of bleu-4, accuracy"):
        get_additive_metric("wer", CAPTIONS)
