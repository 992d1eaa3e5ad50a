"""Write the lecture report: an HTML page with formulas, measurements, figures, code and errata."""

from __future__ import annotations

import inspect
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import saccade
from saccade import __version__
from saccade.errors import SaccadeError
from saccade.lectures import catalogue, tables
from saccade.lectures.claims import CheckResult, Comparison, LectureRow
from saccade.lectures.drawing import Drawing, to_csv, to_svg
from saccade.lectures.formula import to_mathml
from saccade.lectures.outcomes import Outcome, format_number


def collect_rows(lectures: Sequence[str]) -> list[LectureRow]:
    """Return the rows of these lectures, and those that their errata refer to."""
    wanted = {row.row: row for name in lectures for row in catalogue.get_rows_in_order(name)}
    wanted.update({item.row: catalogue.find_row(item.row) for item in get_errata(lectures) if item.row})
    return [wanted[number] for number in sorted(wanted)]


def write_report(outcomes: Sequence[Outcome], folder: Path, *, lectures: Sequence[str]) -> Path:
    """Write index.html, and an .svg and a .csv for each row with a figure; return the path of the page."""
    sources = SourceFiles()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {
            item.row.row: _write_drawing(item, folder) for item in outcomes if item.result and item.result.drawing
        }
        page = _build_page(outcomes, lectures, pictures, sources)
        (folder / "index.html").write_text(page, encoding="utf-8")
    except (FileExistsError, NotADirectoryError):
        raise SaccadeError(f"'{folder}' is not a folder; give another --out") from None
    return folder / "index.html"


def _write_drawing(item: Outcome, folder: Path) -> str:
    """Write the figure files of one row; return the HTML of the figure."""
    assert item.result is not None and item.result.drawing is not None
    drawing: Drawing = item.result.drawing
    svg = to_svg(drawing)
    (folder / f"row-{item.row.row}.svg").write_text(svg, encoding="utf-8")
    (folder / f"row-{item.row.row}.csv").write_text(to_csv(drawing), encoding="utf-8")
    name, data = f"row-{item.row.row}", b64encode(svg.encode()).decode()
    return (
        f'<figure><img alt="{escape(drawing.caption)}" src="data:image/svg+xml;base64,{data}">'
        f'<figcaption>{escape(drawing.caption)} <a href="{name}.svg">SVG</a> <a href="{name}.csv">CSV</a>'
        "</figcaption></figure>"
    )


def _build_page(
    outcomes: Sequence[Outcome], lectures: Sequence[str], figures: dict[int, str], sources: SourceFiles
) -> str:
    titles, by_row = catalogue.load_titles(), {item.row.row: item for item in outcomes}
    style = files(__package__).joinpath("report.css").read_text("utf-8")
    written: set[int] = set()
    sections = [_build_lecture(name, titles[name], by_row, written, figures, sources) for name in lectures]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in lectures)
    states = [by_row[number].state for number in sorted(written)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The lectures, measured</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>'
        f"<h1>The lectures, measured</h1><p>{len(states)} rows: {counts}. saccade {__version__}.</p>"
        f'<nav>{links}<a href="#errata">Errata</a><a href="#papers">Papers</a><a href="#code">Code</a></nav>'
        f"{''.join(sections)}{_build_errata(get_errata(lectures), by_row, written)}{_build_papers()}"
        f"{sources.build_section()}</body></html>\n"
    )


def _build_lecture(
    name: str,
    title: str,
    by_row: dict[int, Outcome],
    written: set[int],
    figures: dict[int, str],
    sources: SourceFiles,
) -> str:
    """Build the section of one lecture; rows that an earlier lecture already has are only linked."""
    parts = []
    for row in catalogue.get_rows_in_order(name):
        if row.row in written:
            parts.append(
                f'<article><header><h3><a href="#row-{row.row}">Row {row.row}</a></h3><span class="where">'
                f"{escape(row.where)}</span></header><p>{escape(row.sentence)}</p></article>"
            )
            continue
        written.add(row.row)
        parts.append(_build_row(by_row[row.row], figures.get(row.row, ""), sources))
    return f'<section id="{name}"><h2>{name}: {escape(title)}</h2>{"".join(parts)}</section>'


def _build_row(item: Outcome, figure: str, sources: SourceFiles) -> str:
    row = item.row
    kind = item.state if item.state in ("holds", "fails") else ""
    head = (
        f'<header><h3>Row {row.row}</h3><span class="where">{escape(row.where)}</span>'
        f'<span class="state {kind}">{item.state}</span></header><p>{escape(row.sentence)}</p>'
    )
    if row.measure is None:
        return f'<article id="row-{row.row}">{head}<p class="why">{_format_prose(row.why)}</p></article>'
    body = to_mathml(row.formula)
    if item.result is not None:
        body += _build_comparison_table(item.result.comparisons) + figure
        body += _build_notes_table(item.result.table)
        body += f"<p>{_format_prose(item.result.note)}</p>" if item.result.note else ""
    elif not item.error:
        body += f'<p class="why">Takes minutes: <code>saccade lectures run {row.row}</code></p>'
    body += f"<p>{escape(item.error)}</p>" if item.error else ""
    return f'<article id="row-{row.row}">{head}{body}{sources.build_links(row.measure, row.code)}</article>'


def _build_comparison_table(compared: Sequence[Comparison]) -> str:
    lines = [
        f'<tr class="{"holds" if item.holds else "fails"}"><td>{escape(item.what)}</td>{_build_cell(item.expected)}'
        f"{_build_cell(item.measured)}<td>{escape(item.tolerance)}</td></tr>"
        for item in compared
    ]
    head = "<tr><th></th><th>expected</th><th>measured</th><th>agreement</th></tr>"
    return f'<table class="compared">{head}{"".join(lines)}</table>'


def _build_notes_table(table: Sequence[Sequence[str]]) -> str:
    """Build the table of the lecture notes, if the row has one."""
    if not table:
        return ""
    titles, *lines = [[escape(cell) for cell in line] for line in table]
    head = "".join(f"<th>{cell}</th>" for cell in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _build_cell(value: float | int | str) -> str:
    return f'<td class="number">{escape(format_number(value))}</td>'


def _format_prose(text: str) -> str:
    """Convert text with commands in backquotes to HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _build_errata(mistakes: Sequence[Erratum], by_row: dict[int, Outcome], written: set[int]) -> str:
    lines = []
    for item in mistakes:
        lines.append(
            f"<tr><td>{escape(item.where)}</td><td>{_format_prose(item.says)}</td><td>{_format_prose(item.right)}</td>"
            f"<td>{_format_decision(item, by_row, written)}</td></tr>"
        )
    head = "<tr><th>where</th><th>the notes say</th><th>right is</th><th>what decides</th></tr>"
    return f'<section id="errata"><h2>Errata</h2><table>{head}{"".join(lines)}</table></section>'


def _format_decision(item: Erratum, by_row: dict[int, Outcome], written: set[int]) -> str:
    if not item.row:
        return escape(item.source)
    link = f'<a href="#row-{item.row}">row {item.row}</a>' if item.row in written else f"row {item.row}"
    compared = find_decision(item, by_row)
    if compared is None:
        return link
    return f"{link}: {escape(compared.what)}: {escape(format_number(compared.measured))}"


def _build_papers() -> str:
    items = "".join(f"<li>{escape(paper)}</li>" for paper in tables.read_table("papers.toml")["papers"])
    return f'<section id="papers"><h2>Papers</h2><ul>{items}</ul></section>'


# ---- errata


@dataclass(frozen=True)
class Erratum:
    """A mistake in the lecture notes, shown by a comparison of a row or by a source."""

    where: str
    says: str
    right: str
    row: int = 0
    measure: str = ""  # the beginning of the comparison's `what`
    source: str = ""


def load_errata() -> list[Erratum]:
    return [Erratum(**item) for item in tables.read_table("errata.toml")["errata"]]


def get_errata(lectures: Sequence[str]) -> list[Erratum]:
    """Return the errata of these lectures."""
    return [item for item in load_errata() if any(name in item.where for name in lectures)]


def find_decision(erratum: Erratum, found: Mapping[int, Outcome]) -> Comparison | None:
    """Return the comparison that an erratum refers to; None if its row was not measured."""
    outcome = found.get(erratum.row)
    compared: Sequence[Comparison] = () if outcome is None or outcome.result is None else outcome.result.comparisons
    return next((item for item in compared if item.what.startswith(erratum.measure)), None)


# ---- code


PACKAGE_FOLDER = Path(saccade.__file__).parent


class SourceFiles:
    """Collects the source files that the page links to."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def build_links(self, measure: Callable[[], CheckResult], code: Sequence[Any]) -> str:
        """Return links to the code under test, and the source of the check itself."""
        text, _ = inspect.getsourcelines(measure)
        own = self._build_link(measure)
        blocks = [self._build_link(item) for item in code if _is_ours(item)]
        listing = escape("".join(text))
        return (
            f'<p class="code">Blocks: {", ".join(dict.fromkeys(blocks)) or "of PyTorch"}</p>'
            f"<details><summary>How it is measured: {own}</summary><pre>{listing}</pre></details>"
        )

    def _build_link(self, item: Any) -> str:
        item = inspect.unwrap(item)
        path = Path(inspect.getsourcefile(item) or "")
        line = inspect.getsourcelines(item)[1]
        name = str(path.relative_to(PACKAGE_FOLDER.parent))
        self.files[name] = path
        return f'<a href="#{name}-{line}">{name}:{line}</a> {escape(item.__qualname__)}'

    def build_section(self) -> str:
        """Return all linked files with numbered lines."""
        parts = []
        for name, path in sorted(self.files.items()):
            lines = path.read_text("utf-8").splitlines()
            numbered = "\n".join(
                f'<span id="{name}-{i}"><a href="#{name}-{i}">{i}</a>{escape(line)}</span>'
                for i, line in enumerate(lines, 1)
            )
            parts.append(f"<details><summary>{name}</summary><pre>{numbered}</pre></details>")
        return f'<section id="code" class="sources"><h2>Code</h2>{"".join(parts)}</section>'


def _is_ours(item: Any) -> bool:
    """Whether an object is defined in saccade, whose source files the page can show."""
    return str(inspect.unwrap(item).__module__).startswith("saccade.")
