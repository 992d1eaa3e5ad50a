"""GLEU, a sentence-level score that penalizes missing and superfluous words alike (Wu et al. 2016)."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from saccade.config.metric import Metric, Predictions, Score
from saccade.score.metrics.bleu import check_pairs

MAX_NGRAM_ORDER = 4  # longest n-gram


def sentence_gleu(hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> float:
    """Return the minimum of precision and recall of all 1- to 4-grams (section 5.2), from 0 to 1.

    Repeated n-grams match as often as the reference contains them. Two empty sequences give 0.
    """
    ours, theirs = count_ngrams(hypothesis), count_ngrams(reference)
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 0.0


def count_ngrams(tokens: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
    sizes = range(1, MAX_NGRAM_ORDER + 1)
    return Counter(tuple(tokens[i : i + n]) for n in sizes for i in range(len(tokens) - n + 1))


def mean_gleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Mean over sentences, in percent; tokenized by 13a, as BLEU."""
    case = "lc" if lowercase else "mixed"
    value = 100 * float(gleu_per_sentence(hypotheses, references, lowercase=lowercase).mean())
    return Score(value, f"gleu|mean of sentences|case:{case}|tok:13a|n:1-{MAX_NGRAM_ORDER}|nrefs:1")


def gleu_per_sentence(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> np.ndarray:
    """Return (N,) the score of each sentence, from 0 to 1."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    check_pairs(hypotheses, references)
    split = Tokenizer13a()
    sides = (
        [split(text.lower() if lowercase else text).split() for text in texts] for texts in (hypotheses, references)
    )
    return np.array([sentence_gleu(ours, theirs) for ours, theirs in zip(*sides, strict=True)])


class Gleu(Metric):
    name = "gleu"
    title = "GLEU"
    is_default = is_validated = True
    order = 3

    def score(self, predictions: Predictions) -> Score:
        return mean_gleu(predictions.outputs, predictions.references, lowercase=predictions.lowercase)


METRICS = (Gleu(),)
