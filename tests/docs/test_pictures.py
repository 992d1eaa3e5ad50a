"""The script that draws pictures for the docs."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import saccade
from saccade.view import AttentionMap, View

SCRIPT = Path(__file__).parent.parent.parent / "docs" / "pictures.py"
LABELS = {"source": [*"abcd", "<end>"], "target": [*"wxyz", "<end>"]}


@pytest.fixture
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_cross_map(layer: int, *heads: np.ndarray) -> AttentionMap:
    return AttentionMap("w", "cross", layer, np.stack(heads).astype(np.float32), "target", "source", LABELS)


@pytest.fixture
def view() -> View:
    """A word alignment in layer 2, head 2; the other heads attend to one word, uniformly, or one row too late."""
    one, uniform, pairs = np.eye(5)[[4] * 5], np.full((5, 5), 0.2), np.eye(5)[[1, 0, 2, 3, 4]]
    return View(
        "one", "abcd", "wxyz", LABELS, [build_cross_map(1, pairs, pairs), build_cross_map(2, one, pairs, uniform)]
    )


def test_the_clearest_head_is_found(pictures, view):
    assert pictures.find_clearest_head(view) == (2, 2)


@pytest.mark.parametrize("name", ["inversion", "heads"])
def test_a_picture_is_drawn(pictures, view, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(saccade, "load", lambda run: SimpleNamespace(view=lambda text: view), raising=False)
    pictures.main(name, "run")
    assert (tmp_path / f"view-{name}.png").stat().st_size > 1000
    assert "layer 2, head 2: wxyz" in capsys.readouterr().out
