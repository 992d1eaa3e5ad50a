"""Captions against all that people wrote for a picture: BLEU-1 to BLEU-4, CIDEr, and how many are one of them."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from saccade.errors import SaccadeError
from saccade.score.bleu import Score

# ---- CIDEr-D (Vedantam et al. 2015): how alike a caption is to what people wrote, rare words weighing more.

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0  # words by which lengths may differ before that costs much
TIMES = 10.0  # of the paper's last equation, so that values are like those of other scores
Grams = Counter[tuple[str, ...]]


def cider(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """The mean over all pictures, times 100, as papers print it; words are compared in lower case and unstemmed."""
    if len(hypotheses) != len(references) or not hypotheses or not all(references):
        raise SaccadeError(
            f"expected at least one reference for each of {len(hypotheses)} captions, got those of {len(references)}"
        )
    counts = f"nrefs:{len(references[0])}" if len({*map(len, references)}) == 1 else "nrefs:var"
    signature = f"CIDEr-D|case:lc|{counts}|pictures:{len(references)}|n:4|sigma:{SIGMA:g}"
    return Score(100 * float(ciders(hypotheses, references).mean()), signature)


def ciders(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """(N,) the score of each picture, given all of them: what is rare follows from all references."""
    said = [grams_of(text) for text in hypotheses]
    wanted = [[grams_of(text) for text in texts] for texts in references]
    pictures_with: Grams = Counter()
    for texts in wanted:
        pictures_with.update({gram for grams in texts for gram in grams})
    return np.array([
        TIMES * sum(alike(ours, theirs, pictures_with, len(wanted)) for theirs in texts) / len(texts)
        for ours, texts in zip(said, wanted, strict=True)
    ])  # fmt: skip


def alike(ours: Grams, theirs: Grams, pictures_with: Grams, pictures: int) -> float:
    """The mean over n of the cosine of both texts' n-grams, none of which counts more often than the other has it."""
    total = 0.0
    lengths = [sum(count for gram, count in grams.items() if len(gram) == 1) for grams in (ours, theirs)]
    for n in ORDERS:
        first, second = (weighed(grams, n, pictures_with, pictures) for grams in (ours, theirs))
        norms = math.prod(math.sqrt(sum(value * value for value in side.values())) for side in (first, second))
        if norms:
            shared = sum(min(value, second[gram]) * second[gram] for gram, value in first.items() if gram in second)
            total += shared / norms
    return total / len(ORDERS) * math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * SIGMA**2))


def weighed(grams: Grams, n: int, pictures_with: Grams, pictures: int) -> dict[tuple[str, ...], float]:
    """Counts of n-grams times the logarithm of one over the share of pictures that have them."""
    return {
        gram: count * (math.log(pictures) - math.log(max(1, pictures_with[gram])))
        for gram, count in grams.items()
        if len(gram) == n
    }


def grams_of(text: str) -> Grams:
    words = re.findall(r"\w+", text.lower())
    return Counter(tuple(words[i : i + n]) for n in ORDERS for i in range(len(words) - n + 1))


# ----


BLEUS = ("bleu-1", "bleu-2", "bleu-3", "bleu-4")
CAPTIONS = (*BLEUS, "cider", "accuracy")


def caption_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = CAPTIONS,
    *,
    lowercase: bool = False,
) -> dict[str, Score]:
    """Every metric that was asked for, in that order; each picture has one reference or more."""
    for name in metrics:
        if name not in CAPTIONS:
            raise SaccadeError(f"unknown metric '{name}' of captions; expected one of {', '.join(CAPTIONS)}")
    made = {
        "cider": lambda: cider(hypotheses, references),
        "accuracy": lambda: one_of_them(hypotheses, references, lowercase=lowercase),
    }
    return {
        name: made[name]() if name in made else bleu(hypotheses, references, order=int(name[-1]), lowercase=lowercase)
        for name in metrics
    }


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, order: int, lowercase: bool) -> Score:
    metric = BLEU(lowercase=lowercase, max_ngram_order=order, force=True)
    most = max(map(len, references))
    columns: list[Any] = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    value = metric.corpus_score(list(hypotheses), columns).score
    return Score(float(value), f"{metric.get_signature()}|order:{order}")


def caption_statistics(metric: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """(N, n) numbers that add up over pictures: those of BLEU-4, or how many captions are one of theirs."""
    if metric == "accuracy":
        return np.array([[ours in texts, 1] for ours, texts in zip(hypotheses, references, strict=True)], np.int64)
    count = BLEU(effective_order=True, force=True)
    found = [count.sentence_score(ours, list(texts)) for ours, texts in zip(hypotheses, references, strict=True)]
    return np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found], np.int64)


def one_of_them(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Score:
    def plain(text: str) -> str:
        return text.lower() if lowercase else text

    right = [plain(ours) in {plain(text) for text in texts} for ours, texts in zip(hypotheses, references, strict=True)]
    return Score(100 * sum(right) / len(right), f"exact|case:{'lc' if lowercase else 'mixed'}|any reference")
