"""Writes docs/view.ipynb: runs its cells and stores their outputs. `python docs/notebook.py`, about two minutes."""

from __future__ import annotations

import ast
import json
import os
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent / "view.ipynb"
CELLS = [
    (
        "markdown",
        """\
# Looking at attention weights

Attention weights in a notebook: as an interactive page, and as arrays to compute with. The model translates
dates in many languages to ISO dates; it is trained here, on embedded data, in about a minute.""",
    ),
    (
        "code",
        """\
import numpy as np

import saccade

run = saccade.train("dates", tiny=True, run="dates", overwrite=True)
run.predict(["Tuesday, 5 March 1024", "14 juillet 1789", "3 сентября 1812 г."])""",
    ),
    (
        "markdown",
        """\
## The page

`run.view` shows all layers and heads, the steps of the search, and statistics of the heads. Point at a
letter, pin it with a click, or play the steps.""",
    ),
    (
        "code",
        """\
view = run.view("Tuesday, 5 March 1024")
view""",
    ),
    (
        "markdown",
        """\
In a terminal the weights are a heat map of characters. `view.save` writes a page (.html), data (.json) or a
picture (.png, .svg).""",
    ),
    (
        "code",
        """\
print(view)
view.save("march.html"), view.save("march.png", layer=1, theme="dark")""",
    ),
    (
        "markdown",
        """\
## The arrays

`run.attention` returns an array for each attention layer, under its address in the model, with named axes and
their labels.""",
    ),
    (
        "code",
        """\
seen = run.attention("Tuesday, 5 March 1024")
list(seen.values())""",
    ),
    (
        "code",
        """\
cross = seen["writer.stack.blocks.0.cross"]
weights = np.asarray(cross).mean(axis=0)
for token, row in zip(cross.labels["target"], weights, strict=True):
    best = row.argmax()
    print(f"{token:>6} attends to {cross.labels['source'][best]} ({row[best]:.2f})")""",
    ),
    (
        "markdown",
        """\
## Head statistics

Entropy (in bits; 0: all weight on one position), distance (in tokens, from the diagonal) and diagonality (1:
monotonic from left to right, -1: reversed) of each head.""",
    ),
    (
        "code",
        """\
for address, numbers in view.document()["statistics"].items():
    for head, values in enumerate(zip(*numbers.values(), strict=True), start=1):
        named = zip(numbers, values, strict=True)
        print(f"{address:<28} head {head}", *(f"{name} {value:6.2f}" for name, value in named))""",
    ),
    (
        "markdown",
        """\
## A given output

With teacher forcing, the view shows the attention and the probability of each letter for a given output: here
day and month are swapped. `beside` puts two views on one page for comparison.""",
    ),
    (
        "code",
        """\
wrong = run.view("Tuesday, 5 March 1024", "1024-05-03")
for step in wrong.steps:
    print(f"{step['token']:>6} {np.exp(step['log_prob']):.3f}", "expected", step["next"][0]["token"])
both = view.beside(wrong)
both.save("both.html")""",
    ),
]


def main() -> None:
    names: dict[str, Any] = {}
    cells = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.environ.pop("SACCADE_RUNS", None)
        for number, (kind, cell) in enumerate(CELLS):
            outputs = run_cell(cell, names) if kind == "code" else None
            count = sum(kind == "code" for kind, _ in CELLS[: number + 1])
            cells.append(build_cell(cell, outputs, number, count=count))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    NOTEBOOK.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", "utf-8")


def build_cell(cell: str, outputs: list[dict[str, Any]] | None, number: int, *, count: int) -> dict[str, Any]:
    both = {"id": f"cell-{number}", "metadata": {}, "source": cell.splitlines(keepends=True)}
    if outputs is None:
        return {"cell_type": "markdown", **both}
    numbered = [{**out, "execution_count": count} if out["output_type"] == "execute_result" else out for out in outputs]
    return {"cell_type": "code", **both, "execution_count": count, "outputs": numbered}


def run_cell(cell: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Outputs of a cell: what it prints, and its last expression; progress on stderr is dropped."""
    *body, last = ast.parse(cell).body
    printed, result = StringIO(), None
    with redirect_stdout(printed), redirect_stderr(StringIO()):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            result = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        else:
            exec(compile(cell, "cell", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if result is not None:
        data = {"text/plain": repr(result).splitlines(keepends=True)}
        if hasattr(result, "_repr_html_"):
            data["text/html"] = [result._repr_html_()]
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}})
    return outputs


if __name__ == "__main__":
    main()
