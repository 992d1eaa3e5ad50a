"""Scores of labels against values computed by hand, by scikit-learn and by SciPy."""

import random
import warnings

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


# ---- the same by scikit-learn and SciPy, on random labels

LABELS = ["a", "B", "über", "日本", "a b", "", "0", "😀"]


def draw_labels(draw: random.Random, names: list[str], count: int) -> tuple[list[str], list[str]]:
    """Return predicted and correct labels; only one class, classes of one side and single texts are all frequent."""
    sides = [draw.choices(names[draw.randrange(2) :] or names, k=count) for _ in range(2)]
    return sides[0], sides[1]


def test_label_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

    draw = random.Random(7)
    for count in [1, 2, 3, 7, 50] * 40 + [5000]:
        names = draw.sample(LABELS, draw.randint(1, len(LABELS)))
        said, right = draw_labels(draw, names, count)
        present = sorted({*said, *right})
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # only one class
            expected = {
                "accuracy": accuracy_score(right, said),
                "f1": f1_score(right, said, average="macro", zero_division=0),
                "matthews": matthews_corrcoef(right, said),
            }
            counts = confusion_matrix(right, said, labels=present)
            each = f1_score(right, said, labels=present, average=None, zero_division=0)
        scores = label_scores("label", said, right)
        assert {name: score.value for name, score in scores.items()} == pytest.approx(
            {name: 100 * value for name, value in expected.items()}, abs=1e-9
        ), (said, right)
        assert np.array_equal(build_confusion_matrix("label", said, right, present), counts)
        assert f1_per_class(compute_margins(counts)) == pytest.approx(100 * each)


def test_scores_of_tags_are_those_of_scikit_learn_over_all_words():
    from sklearn.metrics import accuracy_score, f1_score

    draw = random.Random(3)
    for _ in range(100):
        rows = [
            draw_labels(draw, ["O", "B-PER", "I-PER", "日本"], draw.randint(1, 9)) for _ in range(draw.randint(1, 6))
        ]
        said, right = ([tag for row in rows for tag in row[side]] for side in range(2))
        scores = label_scores("tags", *([" ".join(row[side]) for row in rows] for side in range(2)))
        assert scores["accuracy"].value == pytest.approx(100 * accuracy_score(right, said))
        assert scores["f1"].value == pytest.approx(100 * f1_score(right, said, average="macro", zero_division=0))


def draw_numbers(draw: random.Random) -> tuple[list[float], list[float]]:
    """Return two sides that are related or not, with or without ties, some of them equal, far from 0 or tiny."""
    count = draw.choice([2, 3, 7, 50, 1000])
    many = draw.choice([lambda: draw.gauss(0, 1), lambda: float(draw.randint(0, 3)), lambda: 2.5])
    x = [many() for _ in range(count)]
    y = [draw.choice([-1, 0, 1]) * value + draw.choice([0.0, draw.gauss(0, 1)]) for value in x]
    shift, scale = draw.choice([0.0, 1e3, -1e6, 1e8]), draw.choice([1.0, 1e-30, 1e30])
    return ([scale * (value + shift) for value in x], [value - shift for value in y])


def test_correlations_are_those_of_scipy():
    from scipy.stats import pearsonr, spearmanr

    draw, constant = random.Random(7), 0
    for _ in range(400):
        x, y = draw_numbers(draw)
        scores = label_scores("number", [repr(value) for value in x], [repr(value) for value in y])
        for name, function in (("pearson", pearsonr), ("spearman", spearmanr)):
            with warnings.catch_warnings(action="ignore"):  # constant, or nearly so
                expected = 100 * function(x, y).statistic
            constant += bool(np.isnan(expected))
            assert scores[name].value == pytest.approx(np.nan_to_num(expected), abs=1e-5), (name, x, y)
    assert 50 < constant < 500  # equal numbers have no correlation: ours is 0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_equal_numbers_have_an_undefined_correlation_and_a_reason(name: str) -> None:
    for said, right, reason in (
        (["2", "2.0"], ["1", "3"], "no correlation: all 2 outputs are 2"),
        (["1", "3", "4"], ["7", "7", "7"], "no correlation: all 3 references are 7"),
        (["1"], ["3"], "no correlation: all 1 outputs are 1"),
    ):
        score = label_scores("number", said, right)[name]
        assert (score.undefined, score.value) == (reason, 0.0)
        assert score.to_dict() == {"value": None, "signature": score.signature, "undefined": reason}
        result = LabelEvaluation({name: score}, len(said), said)
        assert result.rows() == [(name, "undefined", reason)]
        assert result.to_dict()["scores"][name]["value"] is None
    defined = label_scores("number", ["1", "2"], ["3", "4"])[name]
    assert not defined.undefined and defined.to_dict().keys() == {"value", "signature"}


@pytest.mark.parametrize("shift", [1e3, 1e6, 1e9, 1e12])
def test_numbers_far_from_zero_are_correlated_too(shift):
    x, y = [1.0, 2.0, 3.0, 5.0], [2.0, 1.0, 4.0, 8.0]
    moved = [repr(value + shift) for value in x], [repr(shift - value) for value in y]
    assert label_scores("number", *moved)["pearson"].value == pytest.approx(-100 * np.corrcoef(x, y)[0, 1])


def test_a_sample_of_texts_has_the_correlation_of_its_numbers():
    from scipy.stats import pearsonr

    draw = np.random.default_rng(3)
    x = draw.normal(size=40)
    y = x + draw.normal(size=40)
    rows = build_label_statistics("number", list(map(repr, (x + 1e9).tolist())), list(map(repr, y.tolist())))
    for _ in range(20):
        sample = draw.integers(40, size=40)
        expected = 100 * pearsonr(x[sample], y[sample]).statistic
        assert get_additive_metric("pearson", "number").compute_from_sums(rows[sample].sum(0)) == pytest.approx(
            expected, abs=1e-3
        )


def test_a_sample_of_equal_numbers_has_no_correlation():
    rows = build_label_statistics("number", ["0.1", "0.1", "0.1", "7"], ["1", "2", "3", "4"])
    assert get_additive_metric("pearson", "number").compute_from_sums(rows[:3].sum(0)) == 0


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
