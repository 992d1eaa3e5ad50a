"""Draws docs/images/scale.png, an optimizer step in each layout: `python docs/scale_picture.py`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FORWARD, BACKWARD, UPDATE, WIRE = "#9ecae1", "#4292c6", "#fdae6b", "#d9d9d9"


class Panel(NamedTuple):
    title: str
    ranks: tuple[tuple[int, ...], ...]  # the micro-batches of each process
    gather: bool = False  # parameters of a block are gathered before it is used
    split: bool = False  # neighbours exchange activations in every block
    reduce: str = ""  # what happens to the gradients
    holds: str = ""  # what each process holds


PANELS = (
    Panel("one process", ((0, 1, 2, 3),), holds="all parameters, gradients, optimizer state"),
    Panel("data=2 (DDP)", ((0, 2), (1, 3)), reduce="all-reduce", holds="all parameters, gradients, optimizer state"),
    Panel("shard=2 (FSDP2)", ((0, 2), (1, 3)), gather=True, reduce="reduce-scatter", holds="1/2 of each of them"),
    Panel(
        "tensor=2 x shard=2 (ranks 0 and 1 compute half of each product)",
        ((0, 2), (0, 2), (1, 3), (1, 3)),
        gather=True,
        split=True,
        reduce="reduce-scatter",
        holds="1/4 of each of them",
    ),
)


def draw_box(axes: Axes, x: float, y: float, width: float, color: str, text: str) -> float:
    axes.barh(y, width, left=x, height=0.62, color=color, edgecolor="white")
    axes.text(x + width / 2, y, text, ha="center", va="center", fontsize=7)
    return x + width


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw what each process does over time, from left to right."""
    for rank, micro_batches in enumerate(panel.ranks):
        x, y, scale = 0.0, -float(rank), 0.5 if panel.split else 1.0
        for number, batch in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            if panel.gather:
                x = draw_box(axes, x, y, 0.25, WIRE, "")
            x = draw_box(axes, x, y, scale, FORWARD, f"m{batch}")
            if panel.gather:
                x = draw_box(axes, x, y, 0.25, WIRE, "")
            x = draw_box(axes, x, y, 1.6 * scale, BACKWARD, f"m{batch}")
            if panel.reduce and (panel.gather or last):
                x = draw_box(axes, x, y, 1.0, WIRE, panel.reduce)
        draw_box(axes, x, y, 0.6, UPDATE, "Adam")
    axes.set_yticks([-rank for rank in range(len(panel.ranks))], [f"rank {rank}" for rank in range(len(panel.ranks))])
    axes.set_title(f"{panel.title}: each process holds {panel.holds}", fontsize=9, loc="left")
    axes.set(xlim=(0, 11.2), xticks=[])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def main() -> None:
    heights = [len(panel.ranks) + 0.6 for panel in PANELS]
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(PANELS), height_ratios=heights), PANELS, strict=True):
        draw_panel(axes, panel)
    figure.supxlabel(
        "light blue: forward pass of micro-batch m; blue: backward pass; grey: communication; orange: update",
        fontsize=8,
    )
    figure.savefig(Path(__file__).parent / "images" / "scale.png", dpi=130)


if __name__ == "__main__":
    main()
