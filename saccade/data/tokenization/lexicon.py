"""A lexicon of rare words, learned from the training pairs, to replace unknown words of outputs (Luong et al. 2015).

It has for each source word the likeliest target word outside of the vocabulary. IBM Model 1 (Brown et al. 1993)
estimates p(f | e): each target word f is explained by the source words e of its pair, or by the null word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.data.sources.lines import iter_lines, open_file
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

LEXICON_FILE = "lexicon.tsv"  # in the folder of a run; columns: source word in lower case, target word, probability
NULL_WORD = ""  # source word of target words that no other explains
EM_ITERATIONS = 5
MAX_WORD_PAIRS = 10_000_000  # about 50,000 sentences, 1 GB of memory
DEFAULT_PROBABILITY = 0.2  # that a word without an entry is copied, and of an entry without a probability


class LexiconEntry(NamedTuple):
    word: str
    probability: float = DEFAULT_PROBABILITY


def learn_lexicon(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> dict[str, LexiconEntry]:
    """Return the likeliest target word outside of the vocabulary for each source word that occurs with one.

    The lexicon is empty unless the tokens of the vocabulary are whole words.
    """
    if tokenizer.settings["model"]["type"] != "WordLevel":
        return {}
    word_ids: dict[str, int] = {NULL_WORD: 0}  # of both sides together
    e, f, probability = estimate_probabilities(*collect_word_pairs(pairs, tokenizer, word_ids))
    known = {strip_spaces(token) for token in tokenizer.backend.get_vocab()}
    words = list(word_ids)
    keep = np.array([word not in known for word in words])[f] & (e != word_ids[NULL_WORD])
    e, f, probability = e[keep], f[keep], probability[keep]
    # the likeliest entry of a source word comes last and replaces others
    order = np.argsort(probability, kind="stable")
    rows = zip(*(column[order].tolist() for column in (e, f, probability)), strict=True)
    return {words[source]: LexiconEntry(words[target], p) for source, target, p in rows}


def collect_word_pairs(
    pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, word_ids: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pair each target word with each word of its source; return source ids, target ids and positions.

    The position is the index of the target word among all target words.
    """
    columns: list[tuple[np.ndarray, ...]] = [tuple(np.zeros(0, np.int64) for _ in range(3))]
    position = count = 0
    for source, target in pairs:
        words = sorted({word.lower() for word in split_words(tokenizer, source)} | {NULL_WORD})
        e, f = (
            np.array([word_ids.setdefault(word, len(word_ids)) for word in side], dtype=np.int64)
            for side in (words, split_words(tokenizer, target))
        )
        columns.append(
            (np.tile(e, len(f)), np.repeat(f, len(e)), np.repeat(np.arange(position, position + len(f)), len(e)))
        )
        position, count = position + len(f), count + len(e) * len(f)
        if count > MAX_WORD_PAIRS:
            break
    e, f, positions = (np.concatenate(column) for column in zip(*columns, strict=True))
    return e, f, positions


def estimate_probabilities(
    e: np.ndarray, f: np.ndarray, position: np.ndarray, prior: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimate p(f | e) by expectation-maximization; return each distinct pair (e, f) and its probability.

    `prior` is the probability of each candidate before words are compared; the same for all in IBM Model 1.
    """
    size = int(max(e.max(initial=0), f.max(initial=0))) + 1
    codes, pair = np.unique(e * size + f, return_inverse=True)
    given, p = codes // size, np.ones(len(codes))
    for _ in range(EM_ITERATIONS):
        weight = p[pair] if prior is None else p[pair] * prior
        posterior = weight / np.bincount(position, weight)[position]  # that e generated the word at this position
        counts = np.bincount(pair, posterior, minlength=len(codes))
        p = counts / np.bincount(given, counts)[given]
    return given, codes % size, p


def split_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Split a text into words by the rules of a word-level tokenizer."""
    backend = tokenizer.backend
    plain = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        tokens = plain.split()
    else:
        tokens = [token for token, _ in backend.pre_tokenizer.pre_tokenize_str(plain)]
    return [word for token in tokens if (word := strip_spaces(token))]


def strip_spaces(token: str) -> str:
    """Remove the spaces around a token, which ▁ stands for."""
    return token.replace("▁", " ").strip()


def dump_lexicon(lexicon: Mapping[str, LexiconEntry]) -> bytes:
    return "".join(
        f"{source}\t{entry.word}\t{entry.probability:.3g}\n" for source, entry in sorted(lexicon.items())
    ).encode()


def load_lexicon(run: Path) -> dict[str, LexiconEntry]:
    """Load the lexicon of a run, empty if it has none; the column of probabilities is optional."""
    path, lexicon = run / LEXICON_FILE, {}
    if not path.exists():
        return {}
    with open_file(path) as file:
        for number, line in iter_lines(file, str(path)):
            try:
                source, target, *rest = line.split("\t")
                lexicon[source.lower()] = LexiconEntry(target, *map(float, rest))
            except (ValueError, TypeError):
                raise SaccadeError(
                    f"{path}:{number}: expected a source word, a tab, a target word, and optionally a tab and its "
                    f"probability, got {line!r}"
                ) from None
    return lexicon
