"""Words and their first tokens; pairs of texts as one sequence."""

import pytest

from saccade.config.schema import Tokenizer as Settings
from saccade.data.tokenization.encode import EncodingCounts, LabelledEncoder
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.text_pairs import encode_texts, join_texts, split_texts, truncate_longest
from saccade.data.tokenization.tokenizers import END, train_tokenizers
from saccade.data.tokenization.words import encode_words, find_first_tokens
from saccade.errors import SaccadeError

TEXTS = ["the old dog sleeps", "a small cat, a bird", "an owl is nice."]


def tokenizer(kind):
    return train_tokenizers(Settings(kind=kind, size=300), lambda: [(text,) for text in TEXTS]).source


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram", "wordpiece", "characters", "bytes"])
def test_the_first_token_of_each_word_starts_as_the_word_does(kind):
    made = tokenizer(kind)
    for text, (ids, places) in zip(TEXTS, encode_words(made, TEXTS), strict=True):
        assert ids == made.encode(text)
        assert len(places) == len(text.split())
        labels = [made.convert_ids_to_tokens([ids[place]])[0].lstrip("␣") for place in places]
        assert all(label and word.startswith(label) for label, word in zip(labels, text.split(), strict=True))


def test_half_a_character_is_reported():
    with pytest.raises(SaccadeError, match="lone surrogate"):
        encode_words(tokenizer("characters"), ["a \udcff b"])


def test_a_piece_may_begin_with_the_space_before_its_word():
    assert find_first_tokens("ab cd", [1, 2, 5]) == [0, 2]  # a, b, " cd"
    assert find_first_tokens("ab cd", [2, 3, 5]) == [0, 2]  # ab, " ", cd
    assert find_first_tokens("ab cd", [2]) == [0, 1]  # nothing was made of the second word


def test_two_texts_are_one_row_with_an_end_each():
    made = tokenizer("characters")
    a, b = (made.encode(text)[:-1] for text in ("the", "old"))
    assert encode_texts(made, [("the", "old"), ("the",)]) == [[*a, END, *b, END], [*a, END]]


def test_the_longer_text_of_a_pair_is_cut():
    made = tokenizer("characters")
    [row] = encode_texts(made, [("the old dog", "a cat")], max_length=9)
    assert len(row) == 9
    assert made.decode(row) == "the"  # and "a ca": both are equally long before the last one goes
    assert truncate_longest([[1, 2, 3, 4, 5], [6, 7]], 4) == [[1, 2], [6, 7]]
    assert truncate_longest([[1, 2], [3]], 9) == [[1, 2], [3]]


def test_a_pair_in_one_line_has_a_tab_between():
    assert split_texts(join_texts(("a", "b"))) == ("a", "b")
    assert join_texts(("a\tb",)) == "a b"


def plain(labels, rows, **settings):
    tally = EncodingCounts()
    return LabelledEncoder(tokenizer("characters"), labels, **settings).encode_block(rows, 0, tally), tally


def test_tags_are_at_first_tokens_only():
    (read, tags), _ = plain(Labels("tags", ("A", "B")), [(1, "ab c", "B A")], max_length=9, truncate=False)
    assert tags == [[2, 0, 0, 1, 0]]
    assert len(read[0]) == 5


def test_long_rows_are_dropped_and_counted_or_truncated():
    rows, labels = [(1, "the", "x"), (2, "the old dog", "y"), (3, "", "x")], Labels("label", ("x", "y"))
    (read, found), tally = plain(labels, rows, max_length=5, truncate=False)
    assert found == [[1]]
    assert (tally.total, tally.long, tally.empty) == (3, [1, 0, 2], [1, 0, 3])
    (read, found), tally = plain(labels, rows, max_length=5, truncate=True)
    assert (list(map(len, read)), found, tally.long) == ([4, 5], [[1], [2]], [])
    (read, tags), _ = plain(Labels("tags", ("A", "B")), [(1, "ab c", "B A")], max_length=3, truncate=True)
    assert (tags, read[0][-1]) == ([[2, 0, 0]], END)
