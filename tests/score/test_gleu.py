import random

import pytest

from saccade.errors import SaccadeError
from saccade.score.evaluate import score_texts
from saccade.score.metrics.gleu import gleu_per_sentence, mean_gleu, sentence_gleu


@pytest.mark.parametrize(
    ("hypothesis", "reference", "value"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat", "the cat sat", 3 / 6),  # all of 3 n-grams are right, which are half of the reference's 6
        ("the cat sat", "the cat", 3 / 6),
        ("the the the", "the cat sat", 1 / 6),  # the second "the" is one too many
        ("sat cat the", "the cat sat", 3 / 6),
        ("a b c d e", "a b c d f", (4 + 3 + 2 + 1) / (5 + 4 + 3 + 2)),
        ("a b a b", "a b x a b", (4 + 2) / (5 + 4 + 3 + 2)),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("", "", 0.0),
    ],
)
def test_gleu_by_hand(hypothesis, reference, value):
    """Wu et al. 2016, section 5.2: the minimum of precision and recall over 1- to 4-grams."""
    assert sentence_gleu(hypothesis.split(), reference.split()) == pytest.approx(value)
    assert sentence_gleu(reference.split(), hypothesis.split()) == pytest.approx(value)


def test_the_score_of_a_corpus_is_the_mean_of_sentences():
    outputs, references = ["The cat .", "a", "dog"], ["The cat.", "a b", "cat"]
    assert gleu_per_sentence(outputs, references).tolist() == pytest.approx([1.0, 1 / 3, 0.0])  # 13a splits "cat."
    found = mean_gleu(outputs, references)
    assert found.value == pytest.approx(100 * (1 + 1 / 3) / 3)
    assert found.signature == "gleu|mean of sentences|case:mixed|tok:13a|n:1-4|nrefs:1"
    assert mean_gleu(["THE CAT"], ["the cat"]).value == 0
    assert mean_gleu(["THE CAT"], ["the cat"], lowercase=True).value == 100
    assert "case:lc" in mean_gleu(["a"], ["a"], lowercase=True).signature


def test_gleu_is_one_of_the_metrics():
    scores = score_texts(["a b c d"], ["a b c d"], metrics=("gleu", "bleu"))
    assert list(scores) == ["gleu", "bleu"]
    assert scores["gleu"].value == 100
    with pytest.raises(SaccadeError, match="1 outputs and 2 references"):
        mean_gleu(["a"], ["a", "b"])


def test_gleu_is_that_of_nltk():
    from nltk.translate.gleu_score import sentence_gleu as by_nltk

    draw = random.Random(7)
    for _ in range(500):
        ours, theirs = (
            draw.choices(["a", "b", "c", "日本", "ß", "."], k=draw.choice([0, 1, 2, 3, 7, 60])) for _ in "xy"
        )
        if not ours and not theirs:
            continue  # nltk divides by zero
        assert sentence_gleu(ours, theirs) == pytest.approx(by_nltk([theirs], ours)), (ours, theirs)


def test_gleu_tokenizes_as_sacrebleu():
    from nltk.translate.gleu_score import sentence_gleu as by_nltk
    from sacrebleu.metrics.bleu import BLEU

    draw, split = random.Random(3), BLEU().tokenizer
    pieces = ["dog", "dogs,", "3.5", "it's", "(a-b)", "&quot;", "日本", "…", "\u00a0", "x!?"]
    texts = [" ".join(draw.choices(pieces, k=draw.randint(1, 9))) for _ in range(200)]
    outputs, references = texts[::2], texts[1::2]
    expected = [by_nltk([split(b).split()], split(a).split()) for a, b in zip(outputs, references)]
    assert gleu_per_sentence(outputs, references) == pytest.approx(expected)
