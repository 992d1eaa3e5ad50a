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
from saccade.lectures.sources import Notes, Source, load_notes, parse_sources

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PLACE = re.compile(r"S\d:\d+(?:[,-]\d+)*")  # in the notes
THEMES = ("system", "light", "dark")
THEME_SWITCH = (  # the stylesheet reads which one is checked: the page has no script
    '<fieldset class="theme"><legend>Theme</legend>'
    + "".join(
        f'<label><input type="radio" name="theme" value="{name}"{" checked" if name == "system" else ""}>{name}</label>'
        for name in THEMES
    )
    + "</fieldset>"
)


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
    by_row = {item.row.row: item for item in outcomes}
    style = files(__package__).joinpath("report.css").read_text("utf-8")
    written: set[int] = set()
    sections = [_build_lecture(load_notes()[code], by_row, written, figures, sources) for code in lectures]
    links = "".join(f'<a href="#{code}">{escape(load_notes()[code].title)}</a>' for code in lectures)
    states = [by_row[number].state for number in sorted(written)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The lectures, measured · saccade</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="color-scheme" content="light dark">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>'
        f'<header class="top"><div class="brand">saccade</div>{THEME_SWITCH}</header><main>'
        f'<h1>The lectures, measured</h1><p class="why">{len(states)} claims: {counts}. saccade {__version__}.</p>'
        f'<nav>{links}<a href="#errata">Errata</a><a href="#papers">Papers</a><a href="#notes">Lecture notes</a>'
        f'<a href="#code">Code</a></nav>'
        f"{''.join(sections)}{_build_errata(lectures, by_row, written)}{_build_papers()}{_build_legend()}"
        f"{sources.build_section()}</main></body></html>\n"
    )


def _build_lecture(
    notes: Notes,
    by_row: dict[int, Outcome],
    written: set[int],
    figures: dict[int, str],
    sources: SourceFiles,
) -> str:
    """Build the section of one set of notes; rows that an earlier section already has are only linked."""
    parts = []
    for row in catalogue.get_rows_in_order(notes.code):
        if row.row in written:
            parts.append(
                f'<article><header><h3><a href="#row-{row.row}">Row {row.row}</a></h3>{_build_sources(row.where)}'
                f"</header><p>{escape(row.sentence)}</p></article>"
            )
            continue
        written.add(row.row)
        parts.append(_build_row(by_row[row.row], figures.get(row.row, ""), sources))
    by = f'<p class="why">{escape(notes.by)}</p>' if notes.by else ""
    return f'<section id="{notes.code}"><h2>{escape(notes.title)}</h2>{by}{"".join(parts)}</section>'


def _build_sources(where: str) -> str:
    """Build links from the short names of places in the notes to the titles of the notes."""
    return f'<span class="where">{", ".join(map(_build_source, parse_sources(where)))}</span>'


def _build_source(source: Source) -> str:
    return f'<a href="#notes-{source.notes.code}" title="{escape(str(source))}">{escape(source.code)}</a>'


def _build_legend() -> str:
    items = "".join(
        f'<dt id="notes-{code}">{code}</dt><dd>{escape(notes.full_title)}; {notes.kind}</dd>'
        for code, notes in load_notes().items()
    )
    explanation = "<p>S3:121 is line 121 of a plain-text transcription of the notes S3.</p>"
    return f'<section id="notes"><h2>Lecture notes</h2>{explanation}<dl>{items}</dl></section>'


def _build_row(item: Outcome, figure: str, sources: SourceFiles) -> str:
    row = item.row
    kind = item.state if item.state in ("holds", "fails") else ""
    head = (
        f"<header><h3>Row {row.row}</h3>{_build_sources(row.where)}"
        f'<span class="state {kind}">{item.state}</span></header><p>{escape(row.sentence)}</p>'
    )
    if row.measure is None:
        return f'<article id="row-{row.row}">{head}<p class="why">{_format_prose(row.why)}</p></article>'
    body = _build_scroll_box(to_mathml(row.formula), "Formula")
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
        f'<tr class="{"holds" if item.holds else "fails"}"><th scope="row">{escape(item.what)}</th>'
        f"{_build_cell('expected', format_number(item.expected))}"
        f"{_build_cell('measured', format_number(item.measured))}{_build_cell('agreement', item.tolerance)}</tr>"
        for item in compared
    ]
    names = ("compared", "expected", "measured", "agreement")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<table class="compared"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _build_notes_table(table: Sequence[Sequence[str]]) -> str:
    """Build the table of the lecture notes, if the row has one."""
    if not table:
        return ""
    titles, *lines = [[escape(cell) for cell in line] for line in table]
    head = "".join(f'<th scope="col">{cell}</th>' for cell in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    table_text = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return _build_scroll_box(table_text, "Table of the notes")


def _build_scroll_box(content: str, name: str) -> str:
    """Build a box that scrolls sideways, by the keyboard too, where the screen is narrower than its content."""
    return f'<div class="wide" tabindex="0" role="group" aria-label="{name}">{content}</div>'


def _build_cell(name: str, text: str) -> str:
    return f'<td class="number" data-name="{name}">{escape(text)}</td>'


def _format_prose(text: str) -> str:
    """Convert text with commands in backquotes, and with places in the notes, to HTML."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return PLACE.sub(lambda found: _build_source(parse_sources(found[0])[0]), marked)


def _build_errata(lectures: Sequence[str], by_row: dict[int, Outcome], written: set[int]) -> str:
    """Build the mistakes of each set of notes: what the notes say, what is right, and what decides."""
    parts = []
    listed: set[str] = set()
    for code in lectures:
        mistakes = [item for item in get_errata([code]) if item.where + item.says not in listed]
        listed |= {item.where + item.says for item in mistakes}
        cards = "".join(_build_erratum(item, by_row, written) for item in mistakes)
        parts.append(f"<h3>{escape(load_notes()[code].title)}</h3>{cards}" if cards else "")
    return f'<section id="errata"><h2>Errata</h2>{"".join(parts)}</section>'


def _build_erratum(item: Erratum, by_row: dict[int, Outcome], written: set[int]) -> str:
    entries = (
        ("The notes say", _format_prose(item.says)),
        ("Right is", _format_prose(item.right)),
        ("Decided by", _format_decision(item, by_row, written)),
    )
    lines = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in entries)
    return f'<article class="erratum">{_build_sources(item.where)}<dl>{lines}</dl></article>'


def _format_decision(item: Erratum, by_row: dict[int, Outcome], written: set[int]) -> str:
    if not item.row:
        return _format_prose(item.source)
    link = f'<a href="#row-{item.row}">row {item.row}</a>' if item.row in written else f"row {item.row}"
    compared = find_decision(item, by_row)
    if compared is None:
        return link
    return f"{link}, {_format_prose(compared.what)}: {escape(format_number(compared.measured))}"


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
            f'<details><summary>How it is measured</summary><p class="code">{own}</p>'
            f'<pre tabindex="0">{listing}</pre></details>'
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
            parts.append(f'<details><summary>{name}</summary><pre tabindex="0">{numbered}</pre></details>')
        return f'<section id="code" class="sources"><h2>Code</h2>{"".join(parts)}</section>'


def _is_ours(item: Any) -> bool:
    """Whether an object is defined in saccade, whose source files the page can show."""
    return str(inspect.unwrap(item).__module__).startswith("saccade.")
