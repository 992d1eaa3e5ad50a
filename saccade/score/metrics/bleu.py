"""BLEU, chrF and TER by sacreBLEU, each with its signature (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from saccade.config.metric import Metric, Predictions, Score, SumMetric
from saccade.errors import SaccadeError

if TYPE_CHECKING:  # sacrebleu takes 0.1 s to import, and a recipe that names a metric is loaded for each prediction
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

SACREBLEU_METRICS = ("bleu", "chrf", "ter")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = SACREBLEU_METRICS,
    *,
    lowercase: bool = False,
) -> dict[str, Score]:
    """Compute the scores of a corpus with one reference per hypothesis; BLEU is cased and tokenized by 13a."""
    check_pairs(hypotheses, references)
    scores = {}
    for name in metrics:
        metric = _build_metric(name, lowercase=lowercase)
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = Score(float(value), str(metric.get_signature()))
    return scores


def _build_metric(name: str, *, lowercase: bool) -> BLEU | CHRF | TER:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return BLEU(lowercase=lowercase, force=True)  # no warning about text that ends in " ."
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        return TER()  # ignores case by itself, as its signature says
    raise SaccadeError(f"unknown metric '{name}'; expected one of {', '.join(SACREBLEU_METRICS)}")


def check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Check that there are as many outputs as references, and at least one."""
    if len(hypotheses) != len(references):
        raise SaccadeError(
            f"there must be one reference for each output, got {len(hypotheses)} outputs and {len(references)} "
            f"references; are the files of the same test set?"
        )
    if not references:
        raise SaccadeError("there is nothing to score: no outputs and no references; is the file empty?")


# ---- sufficient statistics: the score of any sample of sentences follows from the sum of theirs


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> np.ndarray:
    """Return (N, 10) per sentence: both lengths, matching 1- to 4-grams, and total 1- to 4-grams."""
    from sacrebleu.metrics.bleu import BLEU

    check_pairs(hypotheses, references)
    # order concerns the score of a sentence, not its counts
    metric = BLEU(lowercase=lowercase, effective_order=True, force=True)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.sentence_score(hypothesis, [reference])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.int64)


def compute_bleu(statistics: np.ndarray) -> float:
    """Compute BLEU from summed statistics (10,)."""
    from sacrebleu.metrics.bleu import BLEU

    system, reference, *counts = (int(number) for number in statistics)
    return float(BLEU.compute_bleu(counts[:4], counts[4:], system, reference, smooth_method="exp").score)


# ---- the metrics


class Bleu(SumMetric):
    name = "bleu"
    title = "BLEU"
    is_default = is_validated = True
    order = 0

    def score(self, predictions: Predictions) -> Score:
        return score_by_sacrebleu(self.name, predictions)

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        return bleu_statistics(predictions.outputs, predictions.references, lowercase=predictions.lowercase)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_bleu(sums)


class Chrf(Metric):
    name = "chrf"
    title = "chrF"
    is_default = True
    order = 1

    def score(self, predictions: Predictions) -> Score:
        return score_by_sacrebleu(self.name, predictions)


class Ter(Metric):
    name = "ter"
    title = "TER"
    higher_is_better = False
    is_default = True
    order = 2

    def score(self, predictions: Predictions) -> Score:
        return score_by_sacrebleu(self.name, predictions)


def score_by_sacrebleu(name: str, predictions: Predictions) -> Score:
    return corpus_scores(predictions.outputs, predictions.references, (name,), lowercase=predictions.lowercase)[name]


METRICS = (Bleu(), Chrf(), Ter())
