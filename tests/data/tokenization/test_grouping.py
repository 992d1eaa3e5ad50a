"""Tokens grouped by words, for every kind of tokenizer."""

import pytest

from saccade.config import schema
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN, train_tokenizers

PAIRS = [("two small dogs are running, aren't they?", "zwei kleine Hunde rennen, oder?")] * 5
KINDS = ["bpe", "unigram", "wordpiece", "characters", "bytes", "words"]
ALL = {
    kind: train_tokenizers(schema.Tokenizer(kind=kind, size=300), lambda: PAIRS).source
    for kind in KINDS
}  # fmt: skip
TEXT = "two small dogs running"


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_what_stands_between_spaces(kind):
    tokenizer = ALL[kind]
    ids = tokenizer.encode(TEXT)
    *groups, last = tokenizer.group_words(ids)
    assert last == [len(ids) - 1]
    assert [tokenizer.decode([ids[i] for i in group]).strip() for group in groups] == TEXT.split()
    assert [i for group in [*groups, last] for i in group] == list(range(len(ids)))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes"])
def test_punctuation_around_a_word_stands_for_itself(kind):
    tokenizer = ALL[kind]
    ids = tokenizer.encode("two dogs, aren't they?")
    found = [tokenizer.decode([ids[i] for i in group]).strip() for group in tokenizer.group_words(ids)]
    assert found == ["two", "dogs", ",", "aren't", "they", "?", ""]


def test_a_space_goes_with_what_stands_behind_it():
    tokenizer = ALL["characters"]
    assert tokenizer.group_words(tokenizer.encode("two , are")) == [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]


def test_letters_of_several_bytes_stay_together():
    tokenizer = ALL["bytes"]
    ids = tokenizer.encode("日本 é")
    assert [len(group) for group in tokenizer.group_words(ids)] == [6, 3, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_special_pieces_stand_alone(kind):
    tokenizer = ALL[kind]
    [first, *_] = tokenizer.encode("two")
    assert tokenizer.group_words([START, first, UNKNOWN, UNKNOWN, END]) == [[0], [1], [2], [3], [4]]
    assert tokenizer.group_words([]) == []
