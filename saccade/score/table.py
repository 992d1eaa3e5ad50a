"""A comparison as a table: cells, Markdown, LaTeX."""

from collections.abc import Sequence

from saccade.score.compare import Comparison, Row
from saccade.score.left_out import told_of

TITLES = {
    "bleu": "BLEU", "accuracy": "exact match %", "chrf": "chrF", "f1": "F1", "matthews": "Matthews",
    "pearson": "Pearson", "spearman": "Spearman", "top-5": "top-5 %", "bleu-4": "BLEU-4", "cider": "CIDEr",
    "wer": "WER %", "cer": "CER %", "success": "success %", "place": "place %",
}  # fmt: skip


def cells(comparison: Comparison) -> list[list[str]]:
    """Titles and rows as text, for any kind of table."""
    names = list(dict.fromkeys([comparison.metric, *(name for row in comparison.rows for name in row.scores)]))
    titles = ["run", *(title_of(name, comparison) for name in names)]
    titles += ["difference [95%]", "p", "parameters", "minutes", f"{comparison.counted}/s"]
    return [titles, *(_cells(row, names) for row in comparison.rows)]


def title_of(name: str, comparison: Comparison) -> str:
    """What a score is called; of labels nothing is matched letter by letter."""
    if name == "accuracy" and "f1" in comparison.rows[0].scores:
        return "accuracy %"
    return TITLES.get(name, name)


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    scores = [f"{row.scores[name]:.2f}" if name in row.scores else "" for name in names]
    change = row.difference
    return [
        row.name,
        scores[0] + spread,
        *scores[1:],
        "" if change is None else f"{change.value:+.2f} [{change.low:+.2f}, {change.high:+.2f}]",
        "" if change is None else f"{change.p_value:.3f}",
        f"{row.parameters:,}",
        "" if row.minutes is None else f"{row.minutes:.1f}",
        f"{row.sentences_per_second:.1f}",
    ]


def note(comparison: Comparison) -> str:
    """How the numbers were made, in one sentence, and what was left out."""
    return (
        f"{comparison.sentences} {comparison.counted}; differences to the first row with 95% intervals and two-sided "
        f"p-values by paired bootstrap; {title_of(comparison.metric, comparison)} signature: {comparison.signature}"
        f"{told_of(comparison.left_out)}"
    )


def markdown(comparison: Comparison) -> str:
    titles, *rows = [[cell.replace("|", "\\|") for cell in line] for line in cells(comparison)]
    rule = ["---", *["--:"] * (len(titles) - 1)]
    lines = [f"| {' | '.join(line)} |" for line in (titles, rule, *rows)]
    return "\n".join([*lines, "", note(comparison)])


def latex(comparison: Comparison) -> str:
    """A tabular of booktabs."""
    titles, *rows = [[escape(cell) for cell in line] for line in cells(comparison)]
    lines = [" & ".join(line) + r" \\" for line in (titles, *rows)]
    columns = "l" + "r" * (len(titles) - 1)
    return "\n".join(
        [
            *(f"% {line}" for line in note(comparison).splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def escape(text: str) -> str:
    """Text as LaTeX shows it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special.update({letter: f"\\{letter}" for letter in "&%$#_{}"})
    return "".join(special.get(letter, letter) for letter in text)
