"""BLEU, chrF and TER by sacrebleu, each with the signature that says how it was computed (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from saccade.errors import SaccadeError

METRICS = ("bleu", "chrf", "ter")


@dataclass(frozen=True)
class Score:
    value: float  # 0 to 100, as in papers; TER may be larger
    signature: str


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = METRICS,
    *,
    lowercase: bool = False,
) -> dict[str, Score]:
    """The scores of a whole corpus, one reference for each hypothesis; BLEU is cased and tokenised by 13a."""
    check_pairs(hypotheses, references)
    scores = {}
    for name in metrics:
        metric = _metric(name, lowercase=lowercase)
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = Score(float(value), str(metric.get_signature()))
    return scores


def _metric(name: str, *, lowercase: bool) -> BLEU | CHRF | TER:
    if name == "bleu":
        return BLEU(lowercase=lowercase, force=True)  # no advice on text that ends in " ."
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        return TER()  # ignores case by itself, as its signature says
    raise SaccadeError(f"unknown metric '{name}'; expected one of {', '.join(METRICS)}")


def check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """As many outputs as references, and at least one."""
    if len(hypotheses) != len(references):
        raise SaccadeError(
            f"there must be one reference for each output, got {len(hypotheses)} outputs and {len(references)} "
            f"references; are the files of the same test set?"
        )
    if not references:
        raise SaccadeError("there is nothing to score: no outputs and no references; is the file empty?")


# ---- statistics that add up: the score of any sample of sentences follows from the sum of theirs


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> np.ndarray:
    """(N, 10): for each sentence both lengths, matches of 1- to 4-grams, and how many there could be."""
    check_pairs(hypotheses, references)
    metric = BLEU(
        lowercase=lowercase, effective_order=True, force=True
    )  # order concerns the score of a sentence, not its counts
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = metric.sentence_score(hypothesis, [reference])
        rows.append([found.sys_len, found.ref_len, *found.counts, *found.totals])
    return np.array(rows, dtype=np.int64)


def bleu_of(statistics: np.ndarray) -> float:
    """BLEU of summed statistics (10,)."""
    system, reference, *counts = (int(number) for number in statistics)
    return float(BLEU.compute_bleu(counts[:4], counts[4:], system, reference, smooth_method="exp").score)
