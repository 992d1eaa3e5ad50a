"""Draws docs/images/training-step.svg: the functions of saccade between the training loop and the attention kernel.

    python docs/training_step.py [--check]

It trains one step of the recipe `transformer` at [tiny] and records the Python call stack at the first call of
`scaled_dot_product_attention` from cross-attention. With --check it only compares the functions with the picture.
"""

import ast
import re
import sys
import tempfile
from html import escape
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch.nn.functional as F

import saccade
from saccade.config.load import load
from saccade.train import api

ROOT = Path(saccade.__file__).resolve().parent.parent
PICTURE = Path(__file__).resolve().parent / "images" / "training-step.svg"
OVERRIDES = ["train.steps=1", "train.device=cpu", "train.valid_predictions=0"]
WIDTH, ROW, INDENT = 980, 46, 18


class Step(NamedTuple):
    """One function on the way to the kernel."""

    name: str
    file: str
    summary: str  # first line of its docstring, or that of its class


def record_frames() -> list[Step]:
    """The functions from `run_loop` to the kernel, outermost first."""
    kernel, found = F.scaled_dot_product_attention, list[CodeType]()

    def recorder(*arguments: Any, **settings: Any) -> Any:
        codes = own_frames(sys._getframe(1))
        names = [code.co_qualname for code in codes]
        if not found and "optimizer_step" in names and "CrossAttention.forward" in names:
            found.extend(codes)
        return kernel(*arguments, **settings)

    F.scaled_dot_product_attention = recorder
    try:
        with tempfile.TemporaryDirectory() as folder:
            api.train(load("transformer", tiny=True, overrides=OVERRIDES), run=Path(folder) / "run")
    finally:
        F.scaled_dot_product_attention = kernel
    return [describe(code) for code in found]


def own_frames(frame: FrameType | None) -> list[CodeType]:
    codes: list[CodeType] = []
    while frame is not None and (not codes or codes[-1].co_qualname != "run_loop"):
        if frame.f_code.co_filename.startswith(str(ROOT / "saccade")):
            codes.append(frame.f_code)
        frame = frame.f_back
    return codes[::-1]


def describe(code: CodeType) -> Step:
    """Name and file of a function, and what its docstring or that of its class says first."""
    path = Path(code.co_filename)
    node: Any = ast.parse(path.read_text("utf-8"))
    summary = ""
    for part in code.co_qualname.split("."):
        node = next(child for child in node.body if getattr(child, "name", "") == part)
        summary = ast.get_docstring(node) or summary
    return Step(code.co_qualname, str(path.relative_to(ROOT)), summary.partition("\n")[0].rstrip("."))


def draw(steps: list[Step]) -> str:
    """An SVG picture: one row for each function, each further to the right than its caller."""
    end = Step("scaled_dot_product_attention", "torch", "softmax(Q K^T / sqrt(d_k)) V")
    rows = [*steps, end]
    height = ROW * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f"<title>The {len(steps)} functions from the training loop to the attention kernel</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, step in enumerate(rows):
        x, y = 10 + INDENT * number, 10 + ROW * number
        fill = "#e8eef7" if step is not end else "#f7ecd9"
        parts += [
            f'<rect x="{x}" y="{y}" width="{WIDTH - x - 10}" height="{ROW - 8}" rx="5" fill="{fill}"/>',
            f'<text x="{x + 10}" y="{y + 16}" font-size="14" font-weight="bold" fill="#1b2a41">{escape(step.name)}'
            f'<tspan dx="12" font-size="12" font-weight="normal" fill="#52616f">{escape(step.file)}</tspan></text>',
            f'<text x="{x + 10}" y="{y + 32}" font-size="12" fill="#33404d">{escape(step.summary)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def list_names(picture: str) -> list[str]:
    """The functions that a picture shows."""
    return re.findall(r'font-weight="bold" fill="#1b2a41">([^<]+)<', picture)[:-1]


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(draw(record_frames()), "utf-8")
        return 0
    shown, now = list_names(PICTURE.read_text("utf-8")), [step.name for step in record_frames()]
    if shown != now:
        print(f"{PICTURE.name} shows {shown}, the call stack is {now}; run `python docs/training_step.py`")
    return int(shown != now)


if __name__ == "__main__":
    sys.exit(main())
