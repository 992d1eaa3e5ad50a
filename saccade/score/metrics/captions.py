"""Metrics of captions with several references per picture: BLEU-1 to BLEU-4, CIDEr, exact match of any reference."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from saccade.errors import SaccadeError
from saccade.score.metrics.bleu import Score

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


BLEU_METRICS = ("bleu-1", "bleu-2", "bleu-3", "bleu-4")
CAPTION_METRICS = (*BLEU_METRICS, "cider", "accuracy")


def caption_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = CAPTION_METRICS,
    *,
    lowercase: bool = False,
) -> dict[str, Score]:
    """Compute the given metrics, in that order; each picture has one reference or more."""
    for name in metrics:
        if name not in CAPTION_METRICS:
            raise SaccadeError(f"unknown metric '{name}' of captions; expected one of {', '.join(CAPTION_METRICS)}")
    others = {
        "cider": lambda: cider(hypotheses, references),
        "accuracy": lambda: match_any_reference(hypotheses, references, lowercase=lowercase),
    }
    return {
        name: others[name]()
        if name in others
        else caption_bleu(hypotheses, references, order=int(name[-1]), lowercase=lowercase)
        for name in metrics
    }


def caption_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, order: int, lowercase: bool
) -> Score:
    """BLEU up to n-grams of `order` with several references."""
    metric = BLEU(lowercase=lowercase, max_ngram_order=order, force=True)
    most = max(map(len, references))
    columns: list[Any] = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    value = metric.corpus_score(list(hypotheses), columns).score
    return Score(float(value), f"{metric.get_signature()}|order:{order}")


def caption_statistics(metric: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return (N, n) statistics that add up over pictures: those of BLEU-4, or of exact match with any reference."""
    if metric == "accuracy":
        return np.array([[ours in texts, 1] for ours, texts in zip(hypotheses, references, strict=True)], np.int64)
    if metric != "bleu-4":
        raise SaccadeError(f"with several references, runs are compared by bleu-4 or accuracy, got '{metric}'")
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
