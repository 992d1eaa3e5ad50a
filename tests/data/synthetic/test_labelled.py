"""Embedded data with labels are deterministic, the labels follow from the texts, and held-out data differ."""

import pytest

from saccade.data.synthetic import embedded
from saccade.data.synthetic.grammar import generate_sentences
from saccade.data.synthetic.labelled import NUMBERS, PARTICIPLES
from saccade.errors import SaccadeError


def read_examples(name, count=300):
    return list(embedded.read_labelled(name, count, kind=embedded.LABELLED[name][0]))


@pytest.mark.parametrize("name", [name for name in embedded.LABELLED if not name.endswith("-heldout")])
def test_data_is_the_same_each_time_and_other_for_validation(name):
    assert read_examples(name) == read_examples(name)
    assert not {row[1] for row in read_examples(name)} & {row[1] for row in read_examples(f"{name}-heldout")}


@pytest.mark.parametrize("name", ["opinions", "judgements", "paraphrases"])
def test_classes_are_about_equally_frequent(name):
    labels = [row[-1] for row in read_examples(name, 1000)]
    assert len(set(labels)) == 2
    assert all(400 < labels.count(label) < 600 for label in set(labels))


def test_sentences_that_are_right_are_those_of_the_grammar():
    """Sentences that are held out here are held out in `sentences` too, so that pretraining has not seen them."""
    pretrained = set(generate_sentences(20_000, seed=1))
    right = [text for _, text, label in read_examples("judgements-heldout") if label == "right"]
    assert right
    assert not pretrained & set(right)


def test_amounts_add_up():
    for _, text, label in read_examples("amounts"):
        words = text.lower().strip(".").replace(",", "").split()
        assert sum(NUMBERS.index(word) for word in words if word in NUMBERS) == int(label)


def test_each_word_has_a_role():
    for _, words, tags in read_examples("roles"):
        assert len(words.split()) == len(tags.split())
        assert tags.split().count("AGENT") == 1


def test_a_paraphrase_tells_who_does_it():
    for _, first, second, label in read_examples("paraphrases"):
        doer = " ".join(first.lower().split()[:3])
        by = second.lower().strip(".").partition(" by ")[2]
        assert any(done in second for done in PARTICIPLES.values())
        assert (doer == by) == (label == "same")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("opinionz", "label", r"no embedded data with labels 'opinionz'; did you mean opinions\?"),
        ("roles", "label", 'embedded:roles is for writer.kind = "tags", got "label"'),
    ],
)
def test_wrong_names_are_reported(name, kind, message):
    with pytest.raises(SaccadeError, match=message):
        list(embedded.read_labelled(name, 3, kind=kind))


def test_labelled_data_is_no_data_of_pairs():
    with pytest.raises(
        SaccadeError, match=r'embedded:roles has no pairs of texts; it has labels \(task = "classify"\)'
    ):
        list(embedded.read_pairs("roles", 3))
