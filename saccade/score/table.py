"""Format a comparison as a table: cells, Markdown, LaTeX."""

from collections.abc import Sequence

from saccade.score.compare import Comparison, ComparisonRow
from saccade.score.skipped_files import format_skipped_files


def to_cells(comparison: Comparison) -> list[list[str]]:
    """Return titles and rows as text, for any kind of table."""
    names = list(dict.fromkeys([comparison.metric, *(name for row in comparison.rows for name in row.scores)]))
    titles = ["run", *(get_title(name, comparison) for name in names)]
    titles += ["difference [95%]", "p", "parameters", "minutes", f"{comparison.counted}/s"]
    return [titles, *(_format_row(row, names, comparison) for row in comparison.rows)]


def get_title(name: str, comparison: Comparison) -> str:
    """Return the column title of a metric."""
    metric = comparison.get_metric(name)
    return name if metric is None else metric.get_title()


def format_value(name: str, value: float, comparison: Comparison, *, sign: str = "") -> str:
    """Format a value with as many digits as its metric has."""
    metric = comparison.get_metric(name)
    return f"{value:{sign}.2f}" if metric is None else metric.format_value(value, sign=sign)


def _format_row(row: ComparisonRow, names: Sequence[str], comparison: Comparison) -> list[str]:
    def compared(value: float, sign: str = "") -> str:
        return format_value(comparison.metric, value, comparison, sign=sign)

    spread = "" if row.spread is None else f" ± {compared(row.spread)}"
    scores = [format_value(name, row.scores[name], comparison) if name in row.scores else "" for name in names]
    change = row.difference
    interval = "" if change is None else f"{compared(change.value, '+')} [{compared(change.low, '+')}, "
    return [
        row.name,
        scores[0] + spread,
        *scores[1:],
        "" if change is None else f"{interval}{compared(change.high, '+')}]",
        "" if change is None else f"{change.p_value:.3f}",
        f"{row.parameters:,}",
        "" if row.minutes is None else f"{row.minutes:.1f}",
        f"{row.sentences_per_second:.1f}",
    ]


def format_note(comparison: Comparison) -> str:
    """Describe in one sentence how the numbers were computed, and which files were skipped."""
    return (
        f"{comparison.sentences} {comparison.counted}; differences to the first row with 95% intervals and two-sided "
        f"p-values by paired bootstrap; {get_title(comparison.metric, comparison)} signature: {comparison.signature}"
        f"{format_skipped_files(comparison.left_out)}"
    )


def to_markdown(comparison: Comparison) -> str:
    """Return a Markdown table."""
    titles, *rows = [[cell.replace("|", "\\|") for cell in line] for line in to_cells(comparison)]
    rule = ["---", *["--:"] * (len(titles) - 1)]
    lines = [f"| {' | '.join(line)} |" for line in (titles, rule, *rows)]
    return "\n".join([*lines, "", format_note(comparison)])


def to_latex(comparison: Comparison) -> str:
    """Return a LaTeX tabular with booktabs rules."""
    titles, *rows = [[escape_latex(cell) for cell in line] for line in to_cells(comparison)]
    lines = [" & ".join(line) + r" \\" for line in (titles, *rows)]
    columns = "l" + "r" * (len(titles) - 1)
    return "\n".join(
        [
            *(f"% {line}" for line in format_note(comparison).splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def escape_latex(text: str) -> str:
    """Escape special characters of LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special.update({character: f"\\{character}" for character in "&%$#_{}"})
    return "".join(special.get(character, character) for character in text)
