import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config import schema
from saccade.data.tokenization import bpe_dropout as module
from saccade.data.tokenization.bpe_dropout import BPEDropout
from saccade.data.tokenization.tokenizers import END, train_tokenizers
from saccade.errors import SaccadeError

TEXT = "the little houses on the hill are smaller than the house in the valley"


def train(kind):
    return train_tokenizers(schema.Tokenizer(kind=kind, size=330), lambda: [(TEXT, TEXT)] * 9).source


BPE = train("bpe")


def encode(text, rate, seed=1):
    dropout = BPEDropout(BPE, rate=rate)
    return dropout.encode(dropout.segment_words(text), np.random.default_rng(seed))


@given(text=st.text(max_size=80) | st.text(alphabet="thelius ", max_size=80))
@settings(max_examples=100, deadline=None)
def test_without_dropout_it_is_the_plain_encoding(text):
    assert encode(text, 0.0) == BPE.encode(text)


@given(text=st.text(max_size=40), rate=st.floats(0, 0.99))
@settings(max_examples=50, deadline=None)
def test_every_segmentation_is_of_the_same_text(text, rate):
    assert BPE.decode(encode(text, rate)) == text


def test_the_same_seed_gives_the_same_segmentation_and_another_seed_another():
    assert encode(TEXT, 0.3, seed=1) == encode(TEXT, 0.3, seed=1) != encode(TEXT, 0.3, seed=2)


def test_more_dropout_gives_more_pieces():
    lengths = [len(encode(TEXT * 5, rate)) for rate in (0.0, 0.1, 0.5, 0.99)]

    assert lengths == sorted(set(lengths))
    assert encode("the", 0.0)[-1] == END


def test_a_merge_is_left_out_as_often_as_asked():
    dropout = BPEDropout(BPE, rate=0.25)
    [word] = dropout.segment_words("th")  # one merge, t + h
    drawn = [len(dropout.encode([word] * 100, np.random.default_rng(seed))) - 1 for seed in range(40)]

    assert len(BPE.encode("th")) == 2
    assert 1.0 < np.mean(drawn) / 100 < 1.5  # 1.25 for endless samples; 16 of them make it coarse


def test_forgetting_words_changes_nothing(monkeypatch):
    before = encode(TEXT, 0.3)
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 1)

    assert encode(TEXT, 0.3) == before


def test_very_long_words_keep_their_plain_encoding(monkeypatch):
    assert encode("houses", 0.9) != BPE.encode("houses")
    monkeypatch.setattr(module, "MAX_WORD_LENGTH", 5)
    assert encode("houses", 0.9) == BPE.encode("houses")


@pytest.mark.parametrize("kind", ["unigram", "characters", "words"])
def test_dropout_is_for_bpe_only(kind):
    with pytest.raises(SaccadeError, match='tokenizer.dropout is for kind = "bpe" only'):
        BPEDropout(train(kind), rate=0.1)
