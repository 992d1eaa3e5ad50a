"""Accuracy of answers by a fake model with known probabilities."""

from collections.abc import Sequence
from typing import Any

import pytest

from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.prompts import PromptTask, parse_template
from saccade.score.answers import evaluate_answers

TEMPLATE = parse_template(r"Q: {q}\nA: {a}")


class Tokens:
    def encode(self, text: str) -> list[int]:
        return [*range(len(text)), 2]


class Model:
    """Answers with the question in capitals; shorter options are more probable."""

    class recipe:
        kinds = Kinds()

        class data:
            max_length = 40

    class tokenizers:
        target = Tokens()

    asked: Sequence[str] = ()

    def candidates(self, texts: Sequence[str], **_: Any) -> list[list[Hypothesis]]:
        self.asked = texts
        outputs = [f" {text.rpartition('Q: ')[2].partition(chr(10))[0].upper()} " for text in texts]
        return [[Hypothesis([1, 2], output, -1.0, -2.0)] for output in outputs]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked = [f"{before}|{text}" for before, text in pairs]
        return [-3.0 - len(text) / 2 for _, text in pairs]


def tasks(*rows: dict[str, Any]) -> list[PromptTask]:
    return [PromptTask(f"t:{number}", row) for number, row in enumerate(rows, 1)]


def test_generated_answers_are_compared_with_the_correct_ones() -> None:
    model: Any = Model()
    given = tasks({"q": "ab", "a": "AB"}, {"q": "cd", "a": "cd"})
    found = evaluate_answers(model, given, TEMPLATE, examples="Q: x\nA: X\n")
    assert model.asked[1] == "Q: x\nA: X\nQ: cd\nA:"
    assert found.hypotheses == ["AB", "CD"] and found.scores["accuracy"].value == 50.0
    assert list(found.scores) == ["accuracy"]
    both = evaluate_answers(model, given, TEMPLATE, metrics=["accuracy", "chrf"], lowercase=True)
    assert both.scores["accuracy"].value == 100.0 and "chrf" in both.scores


def test_the_most_likely_option_is_chosen() -> None:
    """By log-probability the shortest one; per byte the longest: (3 + n / 2) / n falls with n."""
    model: Any = Model()
    given = tasks({"q": "x", "a": "no"}, {"q": "y", "a": "perhaps"}, {"q": "z", "a": "no"})
    found = evaluate_answers(model, given, TEMPLATE, options=("no", "perhaps"))
    assert model.asked[:2] == ["Q: x\nA:| no", "Q: x\nA:| perhaps"]
    assert found.hypotheses == ["no"] * 3
    assert found.scores["accuracy"].value == pytest.approx(200 / 3)
    assert found.scores["accuracy per byte"].value == pytest.approx(100 / 3)
    own = evaluate_answers(model, tasks({"q": "x", "a": "c", "options": ["bb", "c"]}), TEMPLATE)
    assert own.hypotheses == ["c"] and own.scores["accuracy"].value == 100.0


@pytest.mark.parametrize(
    ("row", "options", "more", "message"),
    [
        ({"q": "x"}, (), {}, r"t:1: the template asks for {a} \(fields: q\)"),
        ({"q": "x", "a": "no", "options": "no"}, (), {}, "t:1: options must be a list of texts, got 'no'"),
        ({"q": "x", "a": "no", "options": ["no"]}, (), {}, "t:1: expected at least two options to choose from, got 1"),
        ({"q": "x", "a": "so"}, ("no", "yes"), {}, "t:1: the answer 'so' is none of the options no, yes"),
        (
            {"q": "x", "a": "no"},
            ("no", "yes"),
            {"lowercase": True},
            "options are scored by accuracy only; leave out --metrics",
        ),
        ({"q": "x" * 40, "a": "no"}, ("no", "yes"), {}, "prompt and option 1 have 49 tokens, but .* made for 40"),
        ({"q": "x", "a": "no"}, (), {"metrics": ["blue"]}, "unknown metric 'blue'"),
    ],
)
def test_invalid_tasks_are_explained_in_one_line(
    row: dict[str, Any], options: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    model: Any = Model()
    with pytest.raises(SaccadeError, match=message):
        evaluate_answers(model, tasks(row), TEMPLATE, options=options, **more)
    with pytest.raises(SaccadeError, match="no tasks were given"):
        evaluate_answers(model, [], TEMPLATE)
