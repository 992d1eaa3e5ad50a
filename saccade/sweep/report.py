"""Write a sweep as a table: for the terminal, and as Markdown, JSON and a picture in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saccade.config.metric import find_metrics
from saccade.config.plugins import Kinds
from saccade.files import atomic_write
from saccade.sweep.picture import draw_scores
from saccade.sweep.results import Sweep, SweepRow, get_titles
from saccade.sweep.trials import FINISHED

REPORT, RESULTS, PICTURE = "report.md", "results.json", "scores"


def format_value(value: Any) -> str:
    """A value of a recipe as it is typed."""
    return value if isinstance(value, str) else json.dumps(value)


def format_table(sweep: Sweep, kinds: Kinds | None = None) -> list[list[str]]:
    """Return titles and rows as text."""
    metric = next(iter(find_metrics(sweep.metric, kinds)), None)
    title = sweep.metric if metric is None else metric.get_title()

    def format_score(value: float) -> str:
        return f"{value:.4f}" if metric is None or not metric.higher_is_better else metric.format_value(value)

    def format_row(row: SweepRow) -> list[str]:
        interval = "" if row.half_width is None else f" ± {format_score(row.half_width)}"
        score = "" if row.score is None else f"{format_score(row.score)}{interval}"
        state = f"{row.state}: {row.reason}" if row.reason else row.state
        values = [format_value(value) for value in row.values.values()]
        return [*values, score, str(len(row.scores)), f"{row.steps:,}", f"{row.minutes:.1f}", state]

    titles = [*get_titles(sweep), f"{title}, mean ± 95%", "seeds", "steps", "minutes", "state"]
    return [titles, *map(format_row, sweep.rows)]


def format_note(sweep: Sweep) -> str:
    """Return a note on the choice and its certainty for below the table."""
    best = sweep.best
    if best.state != FINISHED:
        return "no configuration has finished"
    words = " ".join(f"{key}={format_value(value)}" for key, value in best.values.items())
    note = f"best by validation {sweep.metric}: {words}"
    if sweep.seeds == 1:
        return f"{note}; a single seed has no interval: --seeds 3 tells chance from difference"
    if count := len(sweep.list_as_good()):
        return f"{note}; the interval of {count} other{'s' * (count > 1)} overlaps: more --seeds would tell them apart"
    return note


def format_page(sweep: Sweep, kinds: Kinds | None = None) -> str:
    """Return the Markdown report: table, note and picture."""
    titles, *rows = [[cell.replace("|", "\\|") for cell in line] for line in format_table(sweep, kinds)]
    rule = [*["--:"] * (len(titles) - 1), "---"]
    lines = [f"| {' | '.join(line)} |" for line in (titles, rule, *rows)]
    direction = "higher" if sweep.higher_is_better else "lower"
    return "\n".join(
        [
            f"# Sweep {sweep.name}", "",
            f"Recipe `{sweep.recipe}`, {len(sweep.rows)} configurations with {sweep.seeds} "
            f"seed{'s' * (sweep.seeds > 1)} each. Scores are {sweep.metric} on validation data ({direction} is "
            "better): means over the seeds with 95% confidence intervals by Student's t distribution. Steps and "
            "minutes are means too. The best configuration was chosen by these scores, so that its own score is "
            "optimistic; evaluate it once on test data.", "",
            *lines, "", f"{format_note(sweep)}.", "",
            f"![Score against each value]({PICTURE}.svg)", "",
        ]
    )  # fmt: skip


def write_report(sweep: Sweep, kinds: Kinds | None = None) -> Path:
    """Write results.json, report.md, scores.svg and scores.png; return the path of the report."""
    folder = Path(sweep.folder)
    for ending in (".svg", ".png"):
        draw_scores(sweep, folder / f"{PICTURE}{ending}")
    atomic_write(folder / RESULTS, (json.dumps(sweep.to_dict(), indent=2) + "\n").encode())
    atomic_write(folder / REPORT, format_page(sweep, kinds).encode())
    return folder / REPORT
