"""Captions against all that people wrote for a picture: BLEU-1 to BLEU-4, CIDEr, and how many are one of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from saccade.errors import SaccadeError
from saccade.score.bleu import Score
from saccade.score.cider import cider

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
