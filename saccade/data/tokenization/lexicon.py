"""A lexicon of rare words, learned from the training pairs: for each source word, one that the vocabulary lacks.

It is for unknown words of an output (Luong et al. 2015), which are never words of the vocabulary. Which words belong
together is found by IBM Model 1 (Brown et al. 1993): p(f | e) such that each target word is explained by the source
words beside it, or by none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.data.sources.lines import numbered_lines, open_file
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

LEXICON = "lexicon.tsv"  # in the run: source word in small letters, what stands for it, and how likely that is
NOBODY = ""  # the source word of target words that no other explains
ROUNDS = 5  # of expectation and maximisation
MOST = 10_000_000  # pairs of words that are looked at: enough for some fifty thousand sentences, within a gigabyte
UNLISTED = 0.2  # how likely a word without an entry is to stand for itself, and an entry without a number to be right


class Entry(NamedTuple):
    word: str
    likely: float = UNLISTED


def learn_lexicon(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> dict[str, Entry]:
    """The likeliest word beyond the target's vocabulary for each source word that stands beside one.

    Nothing where the vocabulary has no whole words.
    """
    if tokenizer.settings["model"]["type"] != "WordLevel":
        return {}
    numbers: dict[str, int] = {NOBODY: 0}  # of the words of both sides, which need not be told apart
    e, f, likely = probabilities(*side_by_side(pairs, tokenizer, numbers))
    known = {bare(piece) for piece in tokenizer.core.get_vocab()}
    names = list(numbers)
    wanted = np.array([name not in known for name in names])[f] & (e != numbers[NOBODY])
    e, f, likely = e[wanted], f[wanted], likely[wanted]
    order = np.argsort(likely, kind="stable")  # of each source word the likeliest comes last, and stays
    rows = zip(*(part[order].tolist() for part in (e, f, likely)), strict=True)
    return {names[source]: Entry(names[target], p) for source, target, p in rows}


def side_by_side(
    pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, numbers: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each target word beside each word of its source, as numbers, and where among all target words it stands."""
    columns: list[tuple[np.ndarray, ...]] = [tuple(np.zeros(0, np.int64) for _ in range(3))]
    place = cells = 0
    for source, target in pairs:
        words = sorted({word.lower() for word in split(tokenizer, source)} | {NOBODY})
        e, f = (
            np.array([numbers.setdefault(word, len(numbers)) for word in side], dtype=np.int64)
            for side in (words, split(tokenizer, target))
        )
        columns.append((np.tile(e, len(f)), np.repeat(f, len(e)), np.repeat(np.arange(place, place + len(f)), len(e))))
        place, cells = place + len(f), cells + len(e) * len(f)
        if cells > MOST:
            break
    e, f, places = (np.concatenate(column) for column in zip(*columns, strict=True))
    return e, f, places


def probabilities(e: np.ndarray, f: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every pair (e, f) that was seen, and p(f | e); a row is a source word e beside the target word f at a place."""
    size = int(max(e.max(initial=0), f.max(initial=0))) + 1
    codes, pair = np.unique(e * size + f, return_inverse=True)
    given, p = codes // size, np.ones(len(codes))
    for _ in range(ROUNDS):
        each = p[pair]
        share = each / np.bincount(place, each)[place]  # how much of the word at this place e explains
        counts = np.bincount(pair, share, minlength=len(codes))
        p = counts / np.bincount(given, counts)[given]
    return given, codes % size, p


def split(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text by the rules of a tokenizer of whole words."""
    core = tokenizer.core
    plain = text if core.normalizer is None else core.normalizer.normalize_str(text)
    pieces = plain.split() if core.pre_tokenizer is None else [p for p, _ in core.pre_tokenizer.pre_tokenize_str(plain)]
    return [word for piece in pieces if (word := bare(piece))]


def bare(piece: str) -> str:
    """A piece without the spaces before and behind it."""
    return piece.replace("▁", " ").strip()


def dump_lexicon(lexicon: Mapping[str, Entry]) -> bytes:
    return "".join(
        f"{source}\t{entry.word}\t{entry.likely:.3g}\n" for source, entry in sorted(lexicon.items())
    ).encode()


def load_lexicon(run: Path) -> dict[str, Entry]:
    """The lexicon of a run, empty where it has none; whoever writes one by hand may leave the third column out."""
    path, lexicon = run / LEXICON, {}
    if not path.exists():
        return {}
    with open_file(path) as file:
        for number, line in numbered_lines(file, str(path)):
            try:
                source, target, *rest = line.split("\t")
                lexicon[source.lower()] = Entry(target, *map(float, rest))
            except (ValueError, TypeError):
                raise SaccadeError(
                    f"{path}:{number}: expected a source word, a tab and what stands for it, and perhaps a tab and its "
                    f"probability, got {line!r}"
                ) from None
    return lexicon
