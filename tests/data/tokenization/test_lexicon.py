"""The lexicon of words outside of the vocabulary."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from saccade.config import schema
from saccade.data.tokenization import lexicon
from saccade.data.tokenization.lexicon import (
    LEXICON_FILE,
    LexiconEntry,
    dump_lexicon,
    estimate_probabilities,
    learn_lexicon,
    load_lexicon,
)
from saccade.data.tokenization.tokenizers import Tokenizer, train_tokenizers
from saccade.errors import SaccadeError

PAIRS = [
    ("A dog sleeps .", "Ein Hund schläft ."),
    ("A dog plays the harmonica .", "Ein Hund spielt Mundharmonika ."),
    ("A man sleeps .", "Ein Mann schläft ."),
    ("The man plays .", "Ein Mann spielt ."),
    ("A dog plays .", "Ein Hund spielt ."),
    ("The harmonica sleeps .", "Mundharmonika schläft ."),
    ("A zebra sleeps .", "Ein Zebra schläft ."),
]
COMMON = 4 + 6  # special pieces; . Ein schläft Mann Hund spielt


def words(*, size: int = COMMON, kind: str = "words", lowercase: bool = False) -> Tokenizer:
    settings = schema.Tokenizer(kind=kind, size=size, shared=False, lowercase=lowercase)
    return train_tokenizers(settings, lambda: PAIRS).target


def test_rare_words_belong_to_rare_words() -> None:
    found = learn_lexicon(PAIRS, words())
    assert (found["harmonica"].word, found["zebra"].word) == ("Mundharmonika", "Zebra")
    assert found["harmonica"].probability > 0.5 > found["the"].probability
    assert {entry.word for entry in found.values()} == {"Mundharmonika", "Zebra"}
    assert "man" not in found  # which never stands beside one


def test_a_vocabulary_of_all_words_leaves_nothing_out() -> None:
    assert learn_lexicon(PAIRS, words(size=100)) == {}
    assert learn_lexicon([], words()) == {}


@pytest.mark.parametrize(("kind", "size"), [("characters", 8), ("bpe", 300), ("wordpiece", 40)])
def test_a_vocabulary_without_whole_words_has_no_lexicon(kind: str, size: int) -> None:
    assert learn_lexicon(PAIRS, words(kind=kind, size=size)) == {}


def test_a_lowercase_vocabulary_has_a_lowercase_lexicon() -> None:
    assert learn_lexicon(PAIRS, words(lowercase=True))["zebra"].word == "zebra"


def test_a_large_corpus_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_WORD_PAIRS", 20)
    assert set(learn_lexicon(PAIRS, words())) == {"a", "dog", "harmonica", "plays", "the", "."}


def test_probabilities_are_those_of_a_loop() -> None:
    """IBM Model 1 (Brown et al. 1993) by hand: expected counts, then normalization, repeatedly."""
    pairs = [([1, 2], [5, 6]), ([1, 3], [5, 7, 5]), ([2], [6])]
    rows, place = [], 0
    for source, target in pairs:
        for f in target:
            rows += [(e, f, place) for e in source]
            place += 1
    seen = {(e, f) for e, f, _ in rows}
    p = dict.fromkeys(seen, 1.0)
    for _ in range(lexicon.EM_ITERATIONS):
        counts: Counter[tuple[int, int]] = Counter()
        for source, target in pairs:
            for f in target:
                total = sum(p[e, f] for e in source)
                counts.update({(e, f): p[e, f] / total for e in source})
        given = Counter({e: sum(n for (other, _), n in counts.items() if other == e) for e in (1, 2, 3)})
        p = {(e, f): counts[e, f] / given[e] for e, f in seen}
    e, f, likely = estimate_probabilities(*(np.array(column) for column in zip(*rows, strict=True)))
    found = dict(zip(zip(e.tolist(), f.tolist(), strict=True), likely.tolist(), strict=True))
    assert found == pytest.approx(p)
    assert max(found, key=found.__getitem__) == (2, 6)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    lexicon = {"harmonica": LexiconEntry("Mundharmonika", 0.75), "zebra": LexiconEntry("Zebra", 0.001)}
    (tmp_path / LEXICON_FILE).write_bytes(dump_lexicon(lexicon))
    assert load_lexicon(tmp_path) == lexicon
    (tmp_path / LEXICON_FILE).write_text("Zebra\tein Zebra\n", encoding="utf-8")
    assert load_lexicon(tmp_path) == {"zebra": LexiconEntry("ein Zebra")}
    (tmp_path / LEXICON_FILE).unlink()
    assert load_lexicon(tmp_path) == {}


@pytest.mark.parametrize("line", ["zebra", "", "zebra\tZebra\tsure", "zebra\tZebra\t0.5\t1"])
def test_a_line_that_is_no_entry_is_reported(tmp_path: Path, line: str) -> None:
    (tmp_path / LEXICON_FILE).write_text(f"a\tb\n{line}\n", encoding="utf-8")
    with pytest.raises(SaccadeError, match=r"lexicon.tsv:2: expected a source word, a tab, a target word"):
        load_lexicon(tmp_path)
