"""Metrics of one's own in Python, for all kinds of outputs; and what all metrics that come with saccade agree on."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from saccade.config.load import validate
from saccade.config.metric import list_built_in, list_metrics
from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError
from saccade.score.evaluate import score_texts
from saccade.score.labels import check_label_metrics, label_scores
from saccade.score.language_metrics import LanguageSample, check_language_metrics, compute_language_scores
from saccade.score.metrics import MeanMetric, Metric, Predictions, SumMetric
from saccade.score.metrics.captions import caption_scores
from saccade.score.statistics import compute_statistics


class Hits(MeanMetric):
    """Share of outputs that are the reference, or one of several."""

    name = "hits"
    outputs = ("text", "captions", "label")

    def score_example(self, output: str, reference: Any) -> float:
        return float(output == reference or output in list(reference))


class Sources(Metric):
    name = "copied"
    is_default = True

    def compute(self, predictions: Predictions) -> float:
        return sum(a == b for a, b in zip(predictions.outputs, predictions.sources, strict=True))


class Letters(Metric):
    name = "count"
    outputs = ("language-model",)

    def compute(self, predictions: Predictions) -> float:
        assert isinstance(predictions, LanguageSample)
        return len(predictions.references) + predictions.model.recipe.bonus  # type: ignore[attr-defined]


KINDS = Kinds({"hits": Hits, "copied": Sources(), "count": Letters(), "other": print})


def test_one_object_scores_several_kinds_of_outputs() -> None:
    assert score_texts(["a", "b"], ["a", "c"], metrics=["hits"], kinds=KINDS)["hits"].value == 0.5
    assert caption_scores(["a", "b"], [["x", "a"], ["c"]], ["hits"], kinds=KINDS)["hits"].value == 0.5
    assert label_scores("label", ["a", "b"], ["a", "b"], ["hits"], kinds=KINDS)["hits"].value == 1


def test_a_metric_may_look_at_the_sources_and_be_a_default() -> None:
    scores = score_texts(["a", "b"], ["a", "c"], sources=["x", "b"], kinds=KINDS)
    assert [*scores][-1] == "copied" and scores["copied"].value == 1


def test_a_metric_of_a_language_model_gets_the_model() -> None:
    class Model:
        class recipe:
            bonus = 5

    model: Any = Model()
    assert compute_language_scores(model, ["x", "y"], ["count"], kinds=KINDS)["count"].value == 7
    with pytest.raises(
        SaccadeError, match="unknown metric 'hits' of a language model; expected one of hit@10, .*count"
    ):
        check_language_metrics(["hits"], KINDS)


def test_labels_have_own_metrics_too() -> None:
    check_label_metrics("label", ["f1", "hits"], KINDS, lowercase=False)
    with pytest.raises(
        SaccadeError, match="labels have fixed metrics .*; expected one of accuracy, f1, matthews, hits"
    ):
        check_label_metrics("label", ["copied"], KINDS, lowercase=False)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"bleu": type("Bleu", (Hits,), {"name": "bleu"})}, "'bleu' is a metric of saccade already; give yours anoth"),
        ({"loss": type("Loss", (Hits,), {"name": "loss"})}, "'loss' is a metric of saccade already; give yours anoth"),
        ({"mine": Hits}, r"kinds=\{'mine': ...\} is a metric with the name 'hits'; use that name"),
        (
            {"mine": type("Mine", (MeanMetric,), {})},
            "'mine': its class Mine has no name; add name = .mine. to it",
        ),
        ({"hist": print, "hits": Hits}, "unknown metric 'hist'; expected one of loss, .*, hits.*; did you mean 'hits'"),
        ({"mine": print}, "train.metric: unknown metric 'mine'; expected one of loss, bleu, .*; your own: --plugin"),
        ({"count": Letters}, 'train.metric = "count" is not measured for task = "translate"; it is one of loss, '),
    ],
)
def test_a_metric_that_cannot_be_used_is_one_line(kinds: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        validate({"train": {"metric": next(iter(kinds))}}, kinds=kinds)
    assert "\n" not in str(error.value)


def test_the_recipe_notes_that_it_needs_the_metric() -> None:
    recipe = validate({"train": {"metric": "hits"}}, kinds=KINDS)
    assert (recipe.metric.name, [*recipe.kinds.used]) == ("hits", ["hits"])
    assert not validate({}, kinds=KINDS).kinds.used


def test_statistics_need_a_row_for_each_example() -> None:
    class Short(SumMetric):
        name = "short"

        def compute_statistics(self, predictions: Predictions) -> np.ndarray:
            return np.zeros((1, 2))

    with pytest.raises(
        SaccadeError, match=r"'short' must give a row of numbers for each of 2 examples, got .*\(1, 2\)"
    ):
        compute_statistics(Short(), Predictions(["a", "b"], ["a", "b"]))


@pytest.mark.parametrize(
    ("base", "method", "value", "got"),
    [
        (MeanMetric, "score_example", "yes", r"'yes' \(str\)"),
        (MeanMetric, "score_example", "1.0", r"'1.0' \(str\)"),
        (MeanMetric, "score_example", None, r"None \(NoneType\)"),
        (Metric, "compute", [1, 2], r"\[1, 2\] \(list\)"),
    ],
)
def test_a_metric_must_return_numbers(base: type, method: str, value: Any, got: str) -> None:
    own = type("Own", (base,), {"name": "own", method: lambda *_: value})
    with pytest.raises(SaccadeError, match=f"^metric 'own': {method} must return a number, got {got}; return a float$"):
        own().score(Predictions(["a"], ["a"]))


def test_metrics_of_one_name_agree_on_their_direction_and_differ_in_outputs() -> None:
    directions, outputs = defaultdict(set), defaultdict(list)
    for metric in list_built_in():
        directions[metric.name].add(metric.higher_is_better)
        outputs[metric.name].extend(metric.outputs)
    assert all(len(found) == 1 for found in directions.values())
    assert all(len({*found}) == len(found) for found in outputs.values())
    assert {name for name, found in directions.items() if found == {False}} == {"ter", "wer", "cer"}


def test_every_metric_is_listed_for_its_outputs() -> None:
    kinds = {kind for metric in list_built_in() for kind in metric.outputs}
    assert {*list_built_in()} == {metric for kind in kinds for metric in list_metrics(kind)}
