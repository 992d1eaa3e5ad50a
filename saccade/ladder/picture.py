"""Plot the score of every rung against the source length: the curve of a rung with a bottleneck falls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from saccade.ladder.results import Ladder, Row
from saccade.plotting import Axes, Figure, reproducible_plot

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#999999")  # Okabe and Ito
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
TRANSFORMER = "transformer"  # also shown in the panel of its ablations
TITLES = {"system": "the systems", "almost": "almost a Transformer"}
SCORES = {"letters": "letters in the right position, %", "bleu": "BLEU"}


def draw_lengths(ladder: Ladder, path: Path) -> None:
    """Write the figure in the format of the file extension."""
    panels = {group: [row for row in ladder.rows if row.group == group] for group in TITLES}
    panels = {group: rows for group, rows in panels.items() if rows}
    if "almost" in panels:
        panels["almost"] += [row for row in ladder.rows if row.rung == TRANSFORMER]
    with reproducible_plot():
        figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
        areas = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (group, rows) in zip(areas, panels.items(), strict=True):
            _plot_curves(axes, ladder, rows)
            axes.set_title(TITLES[group])
        areas[0].set_ylabel(SCORES[ladder.metric])
        dated = {"Date": None} if path.suffix == ".svg" else None  # reproducible files
        figure.savefig(path, dpi=150, metadata=dated)


def _plot_curves(axes: Axes, ladder: Ladder, rows: Sequence[Row]) -> None:
    lengths = [part.mean for part in ladder.bins]
    for i, row in enumerate(rows):
        colour, mark = ("black", ".") if row.rung == TRANSFORMER else (COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)])
        axes.plot(lengths, row.by_length, label=row.rung, color=colour, marker=mark, markersize=4, linewidth=1.3)
    axes.set_xlabel(f"length of the source, {ladder.unit}")
    axes.set_ylim(-2, 102 if ladder.metric == "letters" else None)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
