"""Synthetic attention documents, and a fixture that opens their page from disk in a browser without network."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from saccade.view.html import build_page

SOURCE = ["the", "black", "cat", "sl", "eeps"]
TARGET = ["le", "chat", "noir", "dort", "bien", ".", "<end>"]
PARTS = {"reader": ("source", "source"), "writer": ("target", "seen"), "cross": ("target", "source")}


@pytest.fixture(scope="session")
def make_document() -> Callable[..., dict[str, Any]]:
    return document


def document(
    *, parts: tuple[str, ...] = tuple(PARTS), layers: int = 2, heads: int = 3, seed: int = 0, labels: dict | None = None
) -> dict[str, Any]:
    """Build a document with random weights and a beam search of two hypotheses."""
    labels = labels or {"source": SOURCE, "target": TARGET, "seen": ["<start>", *TARGET[:-1]]}
    numbers = np.random.default_rng(seed)
    maps = [entry(numbers, part, layer, heads, labels) for layer in range(1, layers + 1) for part in parts]
    measures = {name: numbers.uniform(0, 2, heads).round(4).tolist() for name in ("entropy", "distance", "diagonal")}
    return {
        "schema": 1, "title": "a <b>run</b>", "input": " ".join(SOURCE), "output": " ".join(TARGET[:-1]),
        "labels": labels, "words": {"source": [[0], [1], [2], [3, 4]]} if labels["source"] is SOURCE else {},
        "maps": maps, "steps": steps(labels["target"]), "background": None,
        "statistics": {one["address"]: measures for one in maps},
    }  # fmt: skip


def entry(numbers: np.random.Generator, part: str, layer: int, heads: int, labels: dict) -> dict[str, Any]:
    rows, columns = PARTS[part]
    shape = (heads, len(labels[rows]), len(labels[columns]))
    weights = numbers.dirichlet(np.full(shape[2], 0.3), shape[:2]).astype(np.float32)
    return {
        "address": f"{part}.{layer}", "name": f"{part}, layer {layer}", "part": part, "layer": layer,
        "rows": rows, "columns": columns, "heads": heads, "shape": list(shape), "weights": weights,
    }  # fmt: skip


def steps(target: list[str]) -> list[dict[str, Any]]:
    """Build decoding steps in which the output scores best and the second hypothesis of each step is pruned."""
    return [
        {
            "token": token, "log_prob": -0.25, "next": [{"token": token, "prob": 0.75}, {"token": "un", "prob": 0.125}],
            "beam": [
                {"id": 2 * at + 1, "parent": max(0, 2 * at - 1), "token": token, "score": -0.25 * at, "kept": True},
                {"id": 2 * at + 2, "parent": max(0, 2 * at - 1), "token": "un", "score": -0.25 * at - 2, "kept": False},
            ],
        }
        for at, token in enumerate(target)
    ]  # fmt: skip


@pytest.fixture
def open_page(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Open the page of a document; asserts afterwards that there were no network requests and no console errors."""
    asked, errors, contexts = [], [], []

    def open_document(document: dict[str, Any], *, width: int = 1100, height: int = 900, scheme: str = "light") -> Any:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(build_page(document), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(5000)
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: message.type == "error" and errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(file.as_uri())
        tab.get_by_role("tablist").wait_for()
        return tab

    yield open_document
    for context in contexts:
        context.close()
    assert not errors
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
