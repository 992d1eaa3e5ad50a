"""Format a ladder as a table, and write it to files: JSON, CSV, a figure and a Markdown report."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from saccade.config.metric import get_metric
from saccade.files import atomic_write
from saccade.ladder.picture import draw_lengths
from saccade.ladder.results import Ladder, Row


def format_table(ladder: Ladder) -> list[list[str]]:
    """Return titles and rows as text."""
    titles = [
        "rung",
        get_metric(ladder.metric).get_title(),
        "difference [95%]",
        "to",
        "p",
        "parameters",
        "training",
        "sentences/s",
    ]
    return [titles, *(_format_row(row) for row in ladder.rows)]


def _format_row(row: Row) -> list[str]:
    change = row.difference
    return [
        row.rung,
        f"{row.score:.1f}" + ("" if row.spread is None else f" ± {row.spread:.1f}"),
        "" if change is None else f"{change.value:+.1f} [{change.low:+.1f}, {change.high:+.1f}]",
        row.against,
        "" if change is None else f"{change.p_value:.3f}",
        f"{row.parameters:,}",
        _format_time(row.seconds),
        f"{row.sentences_per_second:,.0f}",
    ]


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def format_note(ladder: Ladder) -> str:
    """Return a note on data and statistics for below the table."""
    metric = get_metric(ladder.metric)
    how = f": {metric.signature}" if metric.signature else f" signature: {ladder.signature}"
    return (
        f"{ladder.data}; {ladder.sentences:,} test pairs; {metric.get_title()}{how}; "
        "differences with 95% intervals and two-sided p-values by paired bootstrap"
        + (f"; {', '.join(ladder.diverged)} diverged (the loss became NaN or infinite)" if ladder.diverged else "")
    )


def write_report(ladder: Ladder, out: Path) -> Path:
    """Write ladder.json, ladder.csv, lengths.csv, lengths.svg, lengths.png and report.md; return the latter's path."""
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "ladder.json": json.dumps(ladder.to_dict(), indent=2) + "\n",
        "ladder.csv": _to_csv(_list_scores(ladder)),
        "lengths.csv": _to_csv(_list_lengths(ladder)),
        "report.md": format_page(ladder),
    }
    for ending in (".svg", ".png"):
        draw_lengths(ladder, out / f"lengths{ending}")
    for name, text in texts.items():
        atomic_write(out / name, text.encode())
    return out / "report.md"


def format_page(ladder: Ladder) -> str:
    """Return the Markdown report: table, figure, and a description of each rung."""
    titles, *rows = format_table(ladder)
    lines = [f"| {' | '.join(line)} |" for line in (titles, ["---", *["--:"] * (len(titles) - 1)], *rows)]
    rungs = [f"* **{row.rung}** (recipe `{row.recipe}`): {row.about}" for row in ladder.rows]
    seeds = max((row.seeds for row in ladder.rows), default=1)
    more = f" Each rung was trained with {seeds} seeds; scores are means, ± is their standard deviation." * (seeds > 1)
    return "\n".join(
        [
            "# The ladder of architectures", "",
            f"Every rung was trained on the same data, with the same tokenizer, batches and steps.{more}", "",
            *lines, "", f"{format_note(ladder)}.", "",
            "## What if T = 1000?", "",
            f"![Score of each rung against the length of the source in {ladder.unit}](lengths.svg)", "",
            "## The rungs", "", *rungs, "",
        ]
    )  # fmt: skip


def _list_scores(ladder: Ladder) -> list[list[object]]:
    names = list(ladder.rows[0].scores)
    titles = ["rung", "recipe", "seeds", ladder.metric, "spread", "against", "difference", "low", "high", "p"]
    rows: list[list[object]] = [[*titles, "parameters", "seconds", "sentences_per_second", *names]]
    for row in ladder.rows:
        change = row.difference
        interval = ["", "", "", ""] if change is None else [change.value, change.low, change.high, change.p_value]
        rows.append(
            [
                row.rung, row.recipe, row.seeds, row.score, row.spread, row.against, *interval,
                row.parameters, row.seconds, row.sentences_per_second, *row.scores.values(),
            ]
        )  # fmt: skip
    return rows


def _list_lengths(ladder: Ladder) -> list[list[object]]:
    rows: list[list[object]] = [["rung", "shortest", "longest", "mean", "sentences", ladder.metric]]
    for row in ladder.rows:
        for part, score in zip(ladder.bins, row.by_length, strict=True):
            rows.append([row.rung, part.shortest, part.longest, part.mean, part.sentences, score])
    return rows


def _to_csv(rows: Sequence[Sequence[object]]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()
