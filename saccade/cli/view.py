"""`saccade view`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from torch import Tensor

    from saccade.predict.outputs import AttentionMaps

PARTS = {"cross": ("writer.", "cross"), "writer": ("writer.", "self"), "reader": ("reader.", "self")}

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads.")]
Target = Annotated[str | None, typer.Option("--target", help="What it writes; without it, its own prediction.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw all heads to a .png or .svg file.")]
Part = Annotated[
    str | None,
    typer.Option(
        "--part",
        help="cross: output to input; writer, reader: to itself. Without it, the first that there is.",
    ),
]
Layer = Annotated[int | None, typer.Option("--layer", min=1, help="Counted from 1; without it, the last.")]
Head = Annotated[int | None, typer.Option("--head", min=1, help="Counted from 1; without it, the mean of all.")]


def view(
    run: Run,
    text: Text,
    target: Target = None,
    png: Png = None,
    part: Part = None,
    layer: Layer = None,
    head: Head = None,
) -> None:
    """Show where the model looked, in the terminal or as a picture."""
    from saccade.cli.predict import load
    from saccade.view import draw, from_to, heatmap

    seen = load([run]).attention(text, target)
    part = part or next((name for name in PARTS if addresses(seen, name)), "cross")
    address, weights = choose(seen, part=part, layer=layer)
    panels = by_head(weights, head, together=png is None)
    rows, columns = labels(seen, part)
    if png is not None:
        print(draw(panels, rows=rows, columns=columns, path=png, title=from_to(text, seen.text)))
        return
    [(name, shown)] = panels.items()
    width = shutil.get_terminal_size((100, 24)).columns
    print(f"{seen.text}\n\n{address}, {name}\n{heatmap(shown, rows=rows, columns=columns, width=width)}")


def choose(seen: AttentionMaps, *, part: str, layer: int | None) -> tuple[str, Tensor]:
    """The weights (H, T, S) of one layer."""
    if part not in PARTS:
        raise SaccadeError(f"--part must be one of {', '.join(PARTS)}, got '{part}'")
    found = addresses(seen, part)
    if not found:
        raise SaccadeError(f"this model has no attention of --part {part}; it has {', '.join(seen.maps) or 'none'}")
    if layer is not None and layer > len(found):
        raise SaccadeError(f"--layer must be at most {len(found)}, got {layer}")
    address = found[-1 if layer is None else layer - 1]
    return address, seen.maps[address]


def addresses(seen: AttentionMaps, part: str) -> list[str]:
    """Where attention of a part happens, layer by layer."""
    first, last = PARTS[part]
    return [address for address in seen.maps if address.startswith(first) and address.endswith(last)]


def by_head(weights: Tensor, head: int | None, *, together: bool) -> dict[str, Tensor]:
    """One head, or all of them: as their mean, or each for itself."""
    if head is not None and head > len(weights):
        raise SaccadeError(f"--head must be at most {len(weights)}, got {head}")
    if head is None and together:
        return {f"mean of {len(weights)} heads": weights.mean(0)}
    return {f"head {index}": weights[index - 1] for index in ([head] if head else range(1, len(weights) + 1))}


def labels(seen: AttentionMaps, part: str) -> tuple[list[str], list[str]]:
    """Rows look at columns; a writer looks at what it has written so far."""
    if part == "reader":
        return seen.source_labels, seen.source_labels
    if part == "writer":
        return seen.target_labels, seen.seen_labels
    return seen.target_labels, seen.source_labels
