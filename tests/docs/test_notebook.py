"""The notebook of the docs: its cells run, and the stored outputs are of the same kinds."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import saccade

DOCS = Path(__file__).parent.parent.parent / "docs"
SHORT_TRAINING = [
    "train.steps=2",
    "train.schedule.warmup_steps=1",
    "train.valid_every=2",
    "train.save_every=2",
    "predict.max_length=7",
]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    return json.loads((DOCS / "view.ipynb").read_text("utf-8"))


def test_the_notebook_has_the_cells_of_its_script(maker, notebook):
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]] == maker.CELLS
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(maker.CELLS))


def test_outputs_are_stored_and_small(notebook):
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert all(cell["outputs"] for cell in code)
    assert "1024-03-05" in str(code[0]["outputs"])
    assert any("<iframe" in str(cell["outputs"]) for cell in code)
    assert (DOCS / "view.ipynb").stat().st_size < 500_000


def test_cells_run(maker, notebook, tmp_path, monkeypatch):
    """With an untrained model, which gives other values but the same kinds of outputs."""
    full = saccade.train

    def train(recipe, **settings):
        return full(recipe, overrides=[*SHORT_TRAINING, "data.train.0.examples=300"], **settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    monkeypatch.setattr(saccade, "train", train, raising=False)
    names: dict[str, Any] = {}
    maker.run_cell("".join(notebook["cells"][1]["source"]), names)  # which works a second time below
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            outputs = maker.run_cell("".join(cell["source"]), names)
            kinds = [(output["output_type"], sorted(output.get("data", []))) for output in outputs]
            assert kinds == [(output["output_type"], sorted(output.get("data", []))) for output in cell["outputs"]]
    assert (tmp_path / "march.html").exists() and (tmp_path / "both.html").exists()
