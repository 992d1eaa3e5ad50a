"""CIDEr-D and BLEU of captions with several references, by hand and by pycocoevalcap."""

import math
import random

import pytest

from saccade.config.metric import CAPTIONS, Predictions
from saccade.errors import SaccadeError
from saccade.score.metrics.captions import CAPTION_METRICS, caption_scores, cider, cider_per_picture
from saccade.score.statistics import compute_statistics, get_additive_metric


def test_a_caption_that_is_its_only_reference_has_the_highest_score():
    """Every cosine is 1 if all n-grams belong to one picture: 10, reported as 1000."""
    said = ["a red circle on top", "two blue squares stand below"]
    assert cider_per_picture(said, [[text] for text in said]) == pytest.approx([10.0, 10.0])
    found = cider(said, [[text] for text in said])
    assert found.value == pytest.approx(1000.0)
    assert "nrefs:1" in found.signature


def test_ngrams_of_all_pictures_have_no_weight():
    assert cider_per_picture(["cat", "cat"], [["cat"], ["cat"]]).tolist() == [0.0, 0.0]


def test_a_score_by_hand():
    """Two pictures. `a` is in both and weighs 0; `cat`, `dog` and all longer n-grams weigh log 2.

    Said of the first: `a dog` for `a cat`. Nothing but `a` is shared: 0. Of the second: `a dog` for `a dog runs`.
    1-grams: ours (dog), theirs (dog, runs): 1 / sqrt(2). 2-grams: ours (a dog), theirs (a dog, dog runs): 1 / sqrt(2).
    Ours has no longer ones. Lengths differ by 1: exp(-1 / 72).
    """
    found = cider_per_picture(["a dog", "a dog"], [["a cat"], ["a dog runs"]])
    assert found[0] == 0
    assert found[1] == pytest.approx(10 * (2 / math.sqrt(2)) / 4 * math.exp(-1 / 72))


def test_repeated_words_are_clipped():
    """`dog dog` for `dog`: the smaller count, cosine 1/2 in 1-grams (norms 2 log 2 and log 2); no common 2-gram."""
    found = cider_per_picture(["dog dog", "x"], [["dog"], ["cat"]])
    assert found[0] == pytest.approx(10 * 0.5 / 4 * math.exp(-1 / 72))


def test_several_references_are_averaged_and_case_is_ignored():
    one = cider_per_picture(["A dog runs.", "x"], [["a dog runs", "the cat sat"], ["cats"]])
    assert one[0] == pytest.approx(10 * 0.75 / 2)  # 1-, 2- and 3-grams of the first reference, none of the second


def test_captions_are_measured_against_all_references():
    references = [["a red ball on grass", "red ball"], ["two dogs run in snow"]]
    found = caption_scores(["red ball", "two dogs run in snow"], references)
    assert tuple(found) == CAPTION_METRICS
    assert found["accuracy"].value == 100
    assert found["bleu-1"].value == found["bleu-4"].value == pytest.approx(100.0)
    assert caption_scores(["Red ball", "x"], references, ("accuracy",))["accuracy"].value == 0
    assert caption_scores(["Red ball", "x"], references, ("accuracy",), lowercase=True)["accuracy"].value == 50


def test_orders_of_bleu_by_hand():
    """`a b c x` for `a b c d`: 3/4 of the words, 2/3 of pairs: BLEU-1 is 75, BLEU-2 is 100 sqrt(1/2)."""
    found = caption_scores(["a b c x"], [["a b c d"]], ("bleu-1", "bleu-2"))
    assert found["bleu-1"].value == pytest.approx(75.0)
    assert found["bleu-2"].value == pytest.approx(100 * math.sqrt(0.5))
    assert "order:2" in found["bleu-2"].signature


def test_missing_references_are_refused():
    with pytest.raises(SaccadeError, match=r"unknown metric 'meteor' of captions; expected one of bleu-1"):
        caption_scores(["a"], [["a"]], ("meteor",))
    with pytest.raises(SaccadeError, match=r"at least one reference for each of 1 captions, got those of 2"):
        cider(["a"], [["a"], ["b"]])


# ---- the same by the package of the COCO challenge, on random captions

# Words that its tokenizer, a program in Java, would not change.
CAPTION_WORDS = ["a", "the", "cat", "dog", "runs", "red", "über", "日本", "ß", "7"]
NO_MATCH = 0.04  # pycocoevalcap has up to 1e-6 ** (1 / 4) for a corpus without a match of some order; sacreBLEU smooths


def draw_captions(draw: random.Random, *, shortest: int) -> tuple[list[str], list[list[str]]]:
    """Return one output and one to five references for each of one to six pictures."""

    def draw_caption(least: int) -> str:
        return " ".join(draw.choices(CAPTION_WORDS, k=draw.choice([least, 1, 2, 5, 12, 40])))

    pictures = range(draw.randint(1, 6))
    references = [[draw_caption(1) for _ in range(draw.randint(1, 5))] for _ in pictures]
    outputs = [draw.choice([draw_caption(shortest), draw.choice(references[i])]) for i in pictures]
    return outputs, references


def by_picture(outputs, references):
    """Return references and outputs as pycocoevalcap takes them."""
    return dict(enumerate(references)), {number: [text] for number, text in enumerate(outputs)}


def test_cider_is_that_of_pycocoevalcap():
    from pycocoevalcap.cider.cider import Cider

    draw, scored = random.Random(7), 0
    for _ in range(300):
        outputs, references = draw_captions(draw, shortest=0)
        mean, each = Cider().compute_score(*by_picture(outputs, references))
        assert cider_per_picture(outputs, references) == pytest.approx(each, abs=1e-9), (outputs, references)
        assert cider(outputs, references).value == pytest.approx(100 * mean)
        scored += mean > 0
    assert scored > 200  # a single picture has 0: its words are in all pictures


def test_bleu_of_captions_is_that_of_pycocoevalcap():
    from pycocoevalcap.bleu.bleu import Bleu

    draw, compared = random.Random(3), 0
    for _ in range(300):
        outputs, references = draw_captions(draw, shortest=1)
        expected, _ = Bleu(4).compute_score(*by_picture(outputs, references), verbose=0)
        found = caption_scores(outputs, references, ("bleu-1", "bleu-2", "bleu-3", "bleu-4"))
        for value, score in zip(expected, found.values(), strict=True):
            if value > NO_MATCH:
                assert score.value == pytest.approx(100 * value, rel=1e-6), (outputs, references)
                compared += 1
    assert compared > 800


def test_exact_match_of_any_reference_is_the_accuracy_of_scikit_learn():
    """A caption that equals any of its references is right: the nearest reference is the one to predict."""
    from sklearn.metrics import accuracy_score

    draw, values = random.Random(5), set()
    for _ in range(100):
        outputs, references = draw_captions(draw, shortest=0)
        nearest = [ours if texts.count(ours) else texts[0] for ours, texts in zip(outputs, references)]
        found = caption_scores(outputs, references, ("accuracy",))["accuracy"].value
        assert found == pytest.approx(100 * accuracy_score(nearest, outputs))
        values.add(found)
    assert len(values) > 5


def test_statistics_of_captions_give_the_bleu_of_pycocoevalcap():
    from pycocoevalcap.bleu.bleu import Bleu

    for seed in range(50):
        outputs, references = draw_captions(random.Random(seed), shortest=1)
        expected = Bleu(4).compute_score(*by_picture(outputs, references), verbose=0)[0][3]
        if expected > NO_MATCH:
            metric = get_additive_metric("bleu-4", CAPTIONS)
            sums = compute_statistics(metric, Predictions(outputs, references, kind=CAPTIONS)).sum(0)
            assert metric.compute_from_sums(sums) == pytest.approx(100 * expected, rel=1e-6)
