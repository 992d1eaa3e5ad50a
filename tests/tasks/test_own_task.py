"""A task from outside the package: one class, given by kinds=, is trained, validated, used and evaluated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.config.load import load, validate
from saccade.config.schema import Corpus, Recipe
from saccade.config.task import Task
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.score.compare import compare
from saccade.score.evaluate import evaluate_corpora
from saccade.tasks import BaseTask


class Loud(Predictor):
    """Gives its outputs in capital letters."""

    def candidates(self, *given: Any, **more: Any) -> list[list[Hypothesis]]:
        return [[replace(one, text=one.text.upper()) for one in found] for found in super().candidates(*given, **more)]


class Shout(BaseTask):
    """Learn from texts alone to write them in capital letters: the target is made of the source."""

    name = "shout"

    def build_split(self, recipe: Recipe, corpus: Corpus, **settings: Any) -> Any:
        from saccade.data.sources.corpus import CorpusSplit

        class Copied(CorpusSplit):
            def read_examples(self) -> Any:
                return ((number, source, source) for number, source, _ in super().read_examples())

        part = super().build_split(recipe, corpus, **settings)
        return Copied(part.corpus, part.share, part.heldout, augment=part.augment)

    def get_predictor(self, recipe: Recipe) -> type[Predictor]:
        return Loud

    def read_pairs(self, recipe: Recipe, corpora: Any, *, synthetic_count: int | None = None) -> list[tuple[str, str]]:
        return [
            (source, source.upper())
            for source, _ in super().read_pairs(recipe, corpora, synthetic_count=synthetic_count)
        ]

    def find_setting_conflict(self, recipe: Recipe) -> str:
        if not recipe.tokenizer.shared:
            return 'task = "shout" has one vocabulary; set tokenizer.shared = true'
        return super().find_setting_conflict(recipe)


KINDS = {"shout": Shout()}
STACK = {"layers": 1, "dim": 32, "heads": 2, "ff": 64, "dropout": 0.0}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}{b} {b}{a}\tx\n" for a in "abcd" for b in "efgh"))
    corpus = [str(tmp_path / "pairs.tsv")]
    return {
        "name": "own", "task": "shout", "data": {"train": corpus, "valid": corpus, "max_length": 12},
        "tokenizer": {"kind": "characters"}, "reader": {"stack": STACK}, "writer": {"stack": STACK},
        "train": {"steps": 4, "valid_every": 2, "save_every": 2, "valid_predictions": 4, "device": "cpu"},
        "predict": {"beam": 1},
    }  # fmt: skip


def test_a_task_follows_the_protocol() -> None:
    assert isinstance(Shout(), Task)
    assert not isinstance(object(), Task)


def test_a_task_from_outside_is_trained_validated_used_and_evaluated(tables: dict[str, Any], tmp_path: Path) -> None:
    recipe = validate(tables, kinds=KINDS)
    run = tmp_path / "run"
    split = recipe.task.build_split(recipe, recipe.data.train[0])
    assert next(iter(split.iter_rows()))[1:] == ("ae ea", "ae ea")  # the target is the source, not the file's "x"
    model = saccade.train(recipe, run=run, kinds=KINDS)
    assert type(model) is Loud
    assert '"bleu"' in (run / "metrics.jsonl").read_text() and 'task = "shout"' in (run / "recipe.toml").read_text()
    again = Predictor.load(run, kinds=KINDS, device="cpu")
    [output] = again.predict(["ae ea"])
    assert output == output.upper()
    found = evaluate_corpora(again, recipe.data.valid)
    assert "accuracy" in dict(found.scores) and found.sentences == 16  # type: ignore[attr-defined]
    pairs = recipe.task.read_pairs(recipe, list(recipe.data.valid))
    assert pairs[0] == ("ae ea", "AE EA")
    assert compare([run, run], pairs, kinds=KINDS, device="cpu", samples=10).rows[1].difference.value == 0.0
    resumed = saccade.train(resume=run, overrides=["train.steps=6"], kinds=KINDS)
    assert resumed.recipe.task == KINDS["shout"]


def test_its_constraints_are_reported(tables: dict[str, Any]) -> None:
    with pytest.raises(SaccadeError, match='task = "shout" has one vocabulary'):
        validate({**tables, "tokenizer": {"shared": False}, "writer": {"tie": "output"}}, kinds=KINDS)


def test_a_run_of_it_needs_the_task(tables: dict[str, Any], tmp_path: Path) -> None:
    from saccade.config.load import save

    save(validate(tables, kinds=KINDS), tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml", kinds=KINDS).task == KINDS["shout"]
    with pytest.raises(SaccadeError, match="task: expected .*'translate'.*, got 'shout'"):
        load(tmp_path / "recipe.toml")
