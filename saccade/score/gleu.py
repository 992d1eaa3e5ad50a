"""GLEU, a score of single sentences that punishes words too many and words too few alike (Wu et al. 2016)."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from saccade.score.bleu import Score, check_pairs

LONGEST = 4  # tokens of an n-gram


def sentence_gleu(hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> float:
    """The smaller one of precision and recall of all sequences of 1 to 4 tokens together (section 5.2), from 0 to 1.

    One that comes again is right as often as the reference has it. Where there are no tokens at all it is 0.
    """
    ours, theirs = ngrams(hypothesis), ngrams(reference)
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 0.0


def ngrams(tokens: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
    sizes = range(1, LONGEST + 1)
    return Counter(tuple(tokens[i : i + n]) for n in sizes for i in range(len(tokens) - n + 1))


def mean_gleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """The mean over sentences, in percent; words are those of sacreBLEU's tokenizer 13a, as for BLEU."""
    case = "lc" if lowercase else "mixed"
    value = 100 * float(gleu_of_each(hypotheses, references, lowercase=lowercase).mean())
    return Score(value, f"gleu|mean of sentences|case:{case}|tok:13a|n:1-{LONGEST}|nrefs:1")


def gleu_of_each(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> np.ndarray:
    """(N,) the score of each sentence, from 0 to 1."""
    check_pairs(hypotheses, references)
    split = Tokenizer13a()
    sides = (
        [split(text.lower() if lowercase else text).split() for text in texts] for texts in (hypotheses, references)
    )
    return np.array([sentence_gleu(ours, theirs) for ours, theirs in zip(*sides, strict=True)])
