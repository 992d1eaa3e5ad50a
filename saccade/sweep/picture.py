"""Plot the score of every configuration against each of its values, with 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from saccade.plotting import Axes, Figure, reproducible_plot
from saccade.sweep.results import Sweep, SweepRow, get_titles
from saccade.sweep.trials import FINISHED

FINISHED_COLOUR, OTHER_COLOUR = "#0072b2", "#999999"  # Okabe and Ito
PANEL_WIDTH, HEIGHT = 4.2, 3.6  # inches
MAX_TICKS = 12  # values that are labelled one by one


def draw_scores(sweep: Sweep, path: Path) -> None:
    """Write the figure in the format of the file extension."""
    with reproducible_plot():
        figure = Figure(figsize=(PANEL_WIDTH * len(sweep.keys), HEIGHT), layout="constrained")
        panels = figure.subplots(1, len(sweep.keys), sharey=True, squeeze=False)[0]
        for axes, key, title in zip(panels, sweep.keys, get_titles(sweep), strict=True):
            plot_key(axes, sweep, key)
            axes.set_xlabel(title)
            axes.grid(alpha=0.3, linewidth=0.5)
        panels[0].set_ylabel(f"validation {sweep.metric}")
        dated = {"Date": None} if path.suffix == ".svg" else None  # reproducible files
        figure.savefig(path, dpi=150, metadata=dated)


def plot_key(axes: Axes, sweep: Sweep, key: str) -> None:
    """Plot all configurations that have a score, and a line through the means of the finished ones for each value."""
    rows = [(row.score, row) for row in sweep.rows if row.score is not None]
    values = sort_values([row.values[key] for row in sweep.rows])
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = {str(value): value if is_number else i for i, value in enumerate(values)}
    if key in sweep.log_keys:
        axes.set_xscale("log")
    for state in (True, False):
        plot_rows(
            axes,
            [(score, row) for score, row in rows if (row.state == FINISHED) == state],
            key,
            places,
            is_finished=state,
        )
    means = {
        place: fmean(scores)
        for value, place in places.items()
        if (scores := [score for score, row in rows if row.state == FINISHED and str(row.values[key]) == value])
    }
    if is_number and len(means) > 1:
        axes.plot([*means], [*means.values()], color=FINISHED_COLOUR, linewidth=1, alpha=0.6)
    if len(places) <= MAX_TICKS:
        axes.set_xticks([*places.values()], [*places])
        axes.minorticks_off()
    if any(row.state != FINISHED for _, row in rows):
        axes.legend(fontsize=7, frameon=False)


def plot_rows(
    axes: Axes, rows: Sequence[tuple[float, SweepRow]], key: str, places: dict[str, Any], *, is_finished: bool
) -> None:
    """Plot scores with their intervals; those of trials that did not finish are hollow."""
    if rows:
        axes.errorbar(
            [places[str(row.values[key])] for _, row in rows],
            [score for score, _ in rows],
            yerr=[row.half_width or 0.0 for _, row in rows],
            fmt="o",
            markersize=5,
            capsize=3,
            linewidth=1,
            color=FINISHED_COLOUR if is_finished else OTHER_COLOUR,
            markerfacecolor=FINISHED_COLOUR if is_finished else "none",
            label="finished" if is_finished else "pruned or failed",
        )


def sort_values(values: Sequence[Any]) -> list[Any]:
    """Different values: numbers by size, others in the order of their names."""
    different = list({str(value): value for value in values}.values())
    return sorted(
        different, key=lambda value: (isinstance(value, str), value if isinstance(value, int | float) else str(value))
    )
