import json
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config.load import validate
from saccade.errors import SaccadeError
from saccade.model.run import named_weights, write_tensors
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.score.compare import Comparison, compare, read_training_minutes, recipe_key
from saccade.score.table import to_cells, to_latex, to_markdown

PAIRS = [(f"{i}", f"a b c d {i} e f") for i in range(11)]


class Fake:
    """A predictor with errors in the first `errors` lines."""

    def __init__(self, *, errors: int, **train: Any) -> None:
        self.errors, self.recipe, self.model = errors, validate({"train": train}, origin="test"), torch.nn.Linear(3, 5)

    def candidates(self, texts: list[str], *, decoding: Any = None) -> list[list[Hypothesis]]:
        outputs = [f"a b c d {text} {'x' if i < self.errors else 'e'} f" for i, text in enumerate(texts)]
        return [[Hypothesis([4, 5], output, -1.0, -1.0)] for output in outputs]


def put(fakes: dict[str, Fake], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Create run folders with these names that load as these predictors."""
    for name, fake in fakes.items():
        (folder / name).mkdir()
        write_tensors(named_weights(fake.model), folder / name / "model.safetensors")
    monkeypatch.setattr(Predictor, "load", lambda path, **_: fakes[Path(path).name])
    return [folder / name for name in fakes]


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Comparison:
    """A base run, two seeds of a better one, and a copy of the base run."""
    fakes = {
        "base": Fake(errors=7, steps=5),
        "new_1": Fake(errors=1, steps=9),
        "same": Fake(errors=7, steps=7),
        "new_2": Fake(errors=3, steps=9, seed=2),
    }
    folders = put(fakes, tmp_path, monkeypatch)
    (tmp_path / "base" / "metrics.jsonl").write_text('{"step": 1, "seconds": 30.0}\n{"step": 2, "seconds": 90.0}\n{"st')
    return compare(folders, PAIRS, samples=300)


def test_runs_that_differ_in_their_seed_only_are_one_row(comparison: Comparison) -> None:
    assert [row.runs for row in comparison.rows] == [["base"], ["new_1", "new_2"], ["same"]]
    new = comparison.rows[1]
    assert (new.name, new.seeds) == ("new_1 (2 seeds)", [1, 2])
    assert new.scores["accuracy"] == pytest.approx(100 * 9 / 11)
    assert new.spread is not None
    assert new.spread > 0
    assert comparison.rows[0].spread is None


def test_differences_are_to_the_first_row(comparison: Comparison) -> None:
    base, new, same = comparison.rows
    assert base.difference is None
    assert new.difference is not None
    assert same.difference is not None
    assert new.difference.value == pytest.approx(new.scores["bleu"] - base.scores["bleu"])
    assert new.difference.low > 0
    assert (same.difference.value, same.difference.p_value) == (0.0, 1.0)


def test_size_time_and_signature_are_reported(comparison: Comparison) -> None:
    assert [row.parameters for row in comparison.rows] == [20, 20, 20]
    assert [row.minutes for row in comparison.rows] == [1.5, None, None]
    assert "tok:13a" in comparison.signature
    assert json.loads(json.dumps(comparison.to_dict()))["rows"][1]["difference"]["p_value"] < 0.05


def test_accuracy_can_be_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = put({"a": Fake(errors=9, steps=1), "b": Fake(errors=0, steps=2)}, tmp_path, monkeypatch)
    change = compare(folders, PAIRS, metric="accuracy", samples=200).rows[1].difference
    assert change is not None
    assert change.value == pytest.approx(100 * 9 / 11)


def test_a_run_against_itself_is_two_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [folder] = put({"a": Fake(errors=3)}, tmp_path, monkeypatch)
    rows = compare([folder, folder], PAIRS, samples=50).rows
    assert [row.name for row in rows] == ["a", "a"]
    assert rows[1].difference is not None
    assert rows[1].difference.p_value == 1.0


def test_incomparable_runs_are_refused() -> None:
    for name in ("gleu", "chrf", "blue"):
        with pytest.raises(SaccadeError, match=f"runs cannot be compared by '{name}', only by bleu or accuracy"):
            compare(["a"], PAIRS, metric=name)
    with pytest.raises(SaccadeError, match="no run was given"):
        compare([], PAIRS)


def test_recipe_key_ignores_name_and_seed() -> None:
    base = validate({"name": "a", "train": {"seed": 1}}, origin="test")
    assert recipe_key(base) == recipe_key(validate({"name": "b", "about": "x", "train": {"seed": 2}}, origin="test"))
    assert recipe_key(base) != recipe_key(validate({"train": {"steps": 7}}, origin="test"))


def test_training_minutes_are_unknown_without_metrics(tmp_path: Path) -> None:
    assert read_training_minutes(tmp_path) is None


def test_markdown_has_one_line_for_each_row(comparison: Comparison) -> None:
    lines = to_markdown(comparison).splitlines()
    assert lines[0].startswith("| run | BLEU | chrF | accuracy % | difference [95%] | p |")
    assert lines[1].startswith("| --- | --: |")
    assert lines[3].startswith("| new_1 (2 seeds) | ")
    assert " ± " in lines[3]
    assert lines[-1].startswith("11 sentences;")
    assert {line.count("|") for line in lines[:5]} == {len(to_cells(comparison)[0]) + 1}


def test_latex_escapes_and_is_a_tabular(comparison: Comparison) -> None:
    text = to_latex(comparison)
    assert r"new\_1 (2 seeds)" in text
    assert r"accuracy \%" in text
    assert r"$\pm$" in text
    assert text.count(r"\\") == 4
