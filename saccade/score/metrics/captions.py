"""Metrics of captions with several references per picture: BLEU-1 to BLEU-4, CIDEr, exact match of any reference."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from saccade.config.metric import CAPTIONS, Metric, Predictions, Score, SumMetric, get_metrics
from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError
from saccade.score.metrics.accuracy import compute_percentage
from saccade.score.metrics.bleu import compute_bleu

# ---- CIDEr-D (Vedantam et al. 2015): TF-IDF-weighted n-gram similarity of a caption to its references.

NGRAM_ORDERS = (1, 2, 3, 4)
CIDER_SIGMA = 6.0  # standard deviation of the length penalty, in words
CIDER_SCALE = 10.0  # factor in the last equation of the paper
NgramCounts = Counter[tuple[str, ...]]


def cider(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Mean over all pictures, times 100, as papers report it; words are lower-cased and not stemmed."""
    if len(hypotheses) != len(references) or not hypotheses or not all(references):
        raise SaccadeError(
            f"expected at least one reference for each of {len(hypotheses)} captions, got those of {len(references)}"
        )
    counts = f"nrefs:{len(references[0])}" if len({*map(len, references)}) == 1 else "nrefs:var"
    signature = f"CIDEr-D|case:lc|{counts}|pictures:{len(references)}|n:4|sigma:{CIDER_SIGMA:g}"
    return Score(100 * float(cider_per_picture(hypotheses, references).mean()), signature)


def cider_per_picture(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return (N,) the score of each picture; document frequencies are those of all references."""
    ngrams = [count_caption_ngrams(text) for text in hypotheses]
    reference_ngrams = [[count_caption_ngrams(text) for text in texts] for texts in references]
    document_frequency: NgramCounts = Counter()
    for texts in reference_ngrams:
        document_frequency.update({ngram for counts in texts for ngram in counts})
    n = len(reference_ngrams)
    return np.array([
        CIDER_SCALE * sum(compute_similarity(ours, theirs, document_frequency, n) for theirs in texts) / len(texts)
        for ours, texts in zip(ngrams, reference_ngrams, strict=True)
    ])  # fmt: skip


def compute_similarity(
    ours: NgramCounts, theirs: NgramCounts, document_frequency: NgramCounts, n_pictures: int
) -> float:
    """Return the mean over n of the clipped TF-IDF cosine of n-grams, with a Gaussian length penalty."""
    total = 0.0
    lengths = [sum(count for ngram, count in counts.items() if len(ngram) == 1) for counts in (ours, theirs)]
    for n in NGRAM_ORDERS:
        first, second = (compute_tf_idf(counts, n, document_frequency, n_pictures) for counts in (ours, theirs))
        norms = math.prod(math.sqrt(sum(value * value for value in side.values())) for side in (first, second))
        if norms:
            shared = sum(min(value, second[ngram]) * second[ngram] for ngram, value in first.items() if ngram in second)
            total += shared / norms
    return total / len(NGRAM_ORDERS) * math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * CIDER_SIGMA**2))


def compute_tf_idf(
    counts: NgramCounts, n: int, document_frequency: NgramCounts, n_pictures: int
) -> dict[tuple[str, ...], float]:
    """Return counts of n-grams times the log inverse share of pictures whose references contain them."""
    return {
        ngram: count * (math.log(n_pictures) - math.log(max(1, document_frequency[ngram])))
        for ngram, count in counts.items()
        if len(ngram) == n
    }


def count_caption_ngrams(text: str) -> NgramCounts:
    words = re.findall(r"\w+", text.lower())
    return Counter(tuple(words[i : i + n]) for n in NGRAM_ORDERS for i in range(len(words) - n + 1))


# ----


def caption_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, order: int, lowercase: bool
) -> Score:
    """BLEU up to n-grams of `order` with several references."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(lowercase=lowercase, max_ngram_order=order, force=True)
    most = max(map(len, references))
    columns: list[Any] = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    value = metric.corpus_score(list(hypotheses), columns).score
    return Score(float(value), f"{metric.get_signature()}|order:{order}")


def caption_bleu_statistics(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return (N, 10) statistics of BLEU-4 that add up over pictures."""
    from sacrebleu.metrics.bleu import BLEU

    count = BLEU(effective_order=True, force=True)
    found = [count.sentence_score(ours, list(texts)) for ours, texts in zip(hypotheses, references, strict=True)]
    return np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found], np.int64)


def match_any_reference(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Score:
    """Percentage of captions that equal one of their references."""

    def normalize(text: str) -> str:
        return text.lower() if lowercase else text

    matches = [
        normalize(ours) in {normalize(text) for text in texts}
        for ours, texts in zip(hypotheses, references, strict=True)
    ]
    return Score(100 * sum(matches) / len(matches), f"exact|case:{'lc' if lowercase else 'mixed'}|any reference")


# ---- the metrics


class CaptionBleu(Metric):
    """BLEU up to n-grams of `ngram_order`, with all references of a picture."""

    outputs = (CAPTIONS,)
    is_default = True

    def __init__(self, ngram_order: int) -> None:
        self.ngram_order = ngram_order
        self.name, self.title, self.order = f"bleu-{ngram_order}", f"BLEU-{ngram_order}", 10 + ngram_order

    def score(self, predictions: Predictions) -> Score:
        return caption_bleu(
            predictions.outputs, predictions.references, order=self.ngram_order, lowercase=predictions.lowercase
        )


class CaptionBleu4(CaptionBleu, SumMetric):
    def __init__(self) -> None:
        super().__init__(4)

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        return caption_bleu_statistics(predictions.outputs, predictions.references)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_bleu(sums)


class Cider(Metric):
    name = "cider"
    title = "CIDEr"
    outputs = (CAPTIONS,)
    is_default = True
    order = 15

    def score(self, predictions: Predictions) -> Score:
        return cider(predictions.outputs, predictions.references)


class AnyReference(SumMetric):
    name = "accuracy"
    title = "accuracy %"
    outputs = (CAPTIONS,)
    is_default = True
    order = 16

    def score(self, predictions: Predictions) -> Score:
        return match_any_reference(predictions.outputs, predictions.references, lowercase=predictions.lowercase)

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        folded = predictions.fold_case()
        pairs = zip(folded.outputs, folded.references, strict=True)
        return np.array([[ours in texts, 1] for ours, texts in pairs], np.int64)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_percentage(sums)


METRICS = (CaptionBleu(1), CaptionBleu(2), CaptionBleu(3), CaptionBleu4(), Cider(), AnyReference())
CAPTION_METRICS = tuple(metric.name for metric in METRICS)


def caption_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = CAPTION_METRICS,
    *,
    lowercase: bool = False,
    sources: Sequence[str] = (),
    kinds: Kinds | None = None,
) -> dict[str, Score]:
    """Compute the given metrics, in that order; each picture has one reference or more."""
    found = get_metrics(metrics, CAPTIONS, kinds, what=" of captions")
    predictions = Predictions(hypotheses, references, sources, CAPTIONS, lowercase)
    return {metric.name: metric.score(predictions) for metric in found}
