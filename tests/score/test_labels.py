"""Scores of labels against values computed by hand."""

import numpy as np
import pytest

from saccade.config.metric import Predictions
from saccade.errors import SaccadeError
from saccade.score.labels import (
    LabelEvaluation,
    build_confusion_matrix,
    build_label_statistics,
    compute_margins,
    compute_ranks,
    f1_per_class,
    format_confusion_matrix,
    label_scores,
    macro_f1,
    matthews,
)
from saccade.score.statistics import compute_statistics, get_additive_metric, paired_bootstrap

SAID = ["a", "a", "b", "b", "b", "c"]
RIGHT = ["a", "b", "b", "b", "c", "c"]


def test_accuracy_and_f1_by_hand():
    """a: tp 1, fp 1, fn 0; b: tp 2, fp 1, fn 1; c: tp 1, fp 0, fn 1."""
    scores = label_scores("label", SAID, RIGHT)
    assert scores["accuracy"].value == pytest.approx(100 * 4 / 6)
    each = [100 * 2 / 3, 100 * 4 / 6, 100 * 2 / 3]
    assert f1_per_class(
        compute_margins(build_confusion_matrix("label", SAID, RIGHT, ["a", "b", "c"]))
    ).tolist() == pytest.approx(each)
    assert scores["f1"].value == pytest.approx(np.mean(each))


def test_matthews_of_two_classes_is_the_formula_of_four_counts():
    tp, fn, fp, tn = 5, 2, 3, 11
    counts = np.array([[tn, fp], [fn, tp]])
    below = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert matthews(compute_margins(counts)) == pytest.approx(100 * (tp * tn - fp * fn) / below)


@pytest.mark.parametrize(
    ("counts", "value"), [([[3, 0], [0, 4]], 100), ([[0, 3], [4, 0]], -100), ([[3, 0], [4, 0]], 0)]
)
def test_matthews_of_all_right_all_wrong_and_always_the_same(counts, value):
    assert matthews(compute_margins(np.array(counts))) == pytest.approx(value)


def test_matthews_of_three_classes_by_hand():
    """c = 4, s = 6; said (2, 3, 1), there (1, 3, 2): (24 - 13) / sqrt((36 - 14) (36 - 14))."""
    assert label_scores("label", SAID, RIGHT)["matthews"].value == pytest.approx(100 * 11 / 22)


def test_a_class_that_never_occurs_does_not_count():
    assert macro_f1(compute_margins(np.array([[2, 0, 0], [0, 3, 0], [0, 0, 0]]))) == 100


def test_tags_are_counted_word_by_word():
    scores = label_scores("tags", ["A O", "O"], ["A A", "O"])
    assert scores["accuracy"].value == pytest.approx(100 * 2 / 3)
    assert scores.keys() == {"accuracy", "f1"}


def test_correlations_by_hand():
    x, y = ["1", "2", "3", "5"], ["2", "1", "4", "8"]
    scores = label_scores("number", x, y)
    assert scores["pearson"].value == pytest.approx(100 * np.corrcoef([1, 2, 3, 5], [2, 1, 4, 8])[0, 1])
    assert scores["spearman"].value == pytest.approx(80)  # 1 - 6 * 2 / (4 * 15)
    assert label_scores("number", ["1", "1"], ["2", "3"])["pearson"].value == 0


def test_equal_numbers_share_their_ranks():
    assert compute_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


@pytest.mark.parametrize("kind", ["label", "tags", "number"])
def test_statistics_of_single_texts_add_up_to_the_scores(kind):
    said, right = (SAID, RIGHT) if kind != "number" else (["1", "2", "4"], ["1", "3", "2"])
    for name, score in label_scores(kind, said, right).items():
        metric = get_additive_metric(name, kind)
        sums = compute_statistics(metric, Predictions(said, right, kind=kind)).sum(0)
        assert metric.compute_from_sums(sums) == pytest.approx(score.value)


def test_statistics_are_linear_in_the_number_of_classes():
    names = [f"class {number}" for number in range(100)]
    assert build_label_statistics("label", names, names).shape == (100, 300)


def test_the_bootstrap_finds_a_better_run():
    right = ["a", "b"] * 40
    worse = build_label_statistics("label", ["a"] * 80, right)
    better = build_label_statistics("label", right[:70] + ["a"] * 10, right)
    _, difference = paired_bootstrap(
        [[worse], [better]], get_additive_metric("accuracy", "label").compute_from_sums, samples=200
    )
    assert difference.low > 0
    assert difference.p_value < 0.01


def test_a_label_is_needed_for_each_reference():
    with pytest.raises(SaccadeError, match="expected a label for each of 2 references, got 1"):
        label_scores("label", ["a"], ["a", "b"])


def test_the_table_shows_the_confusion_matrix():
    counts = build_confusion_matrix("label", SAID, RIGHT, ["a", "b", "c"])
    lines = format_confusion_matrix(["a", "b", "c"], counts).splitlines()
    assert lines[0].split() == ["is", "\\", "said", "a", "b", "c", "f1"]
    assert lines[2].split() == ["b", "1", "2", "0", "66.7"]
    many = [f"class{i}" for i in range(20)]
    assert format_confusion_matrix(many, np.eye(20, dtype=int)).splitlines()[0].split() == [
        "class",
        "texts",
        "right",
        "f1",
    ]
    found = LabelEvaluation({}, 6, SAID, ("a", "b", "c"), counts.tolist(), 2.0)
    assert found.to_dict()["f1_of_class"]["b"] == pytest.approx(100 * 4 / 6)
    assert "6 texts in 2.0 s: 3.0 texts/s" in found.summary()
