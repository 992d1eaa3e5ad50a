"""What a lecturer takes into class: one page with formulas, numbers, pictures, code and errata, and its files."""

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
from saccade.lectures.claims import Compared, Measured, Row
from saccade.lectures.drawing import Drawing, as_csv, as_svg
from saccade.lectures.formula import as_mathml
from saccade.lectures.outcomes import Outcome, number


def needed(lectures: Sequence[str]) -> list[Row]:
    """The rows of these lectures, and those that decide their errata."""
    wanted = {row.row: row for name in lectures for row in catalogue.in_slide_order(name)}
    wanted.update({item.row: catalogue.find(item.row) for item in errata_of(lectures) if item.row})
    return [wanted[number] for number in sorted(wanted)]


def write_report(found: Sequence[Outcome], folder: Path, *, lectures: Sequence[str]) -> Path:
    """Writes index.html, and one .svg and one .csv for each row that is drawn; gives the path of the page."""
    sources = Sources()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {item.row.row: _draw(item, folder) for item in found if item.measured and item.measured.drawing}
        page = _page(found, lectures, pictures, sources)
        (folder / "index.html").write_text(page, encoding="utf-8")
    except (FileExistsError, NotADirectoryError):
        raise SaccadeError(f"'{folder}' is not a folder; give another --out") from None
    return folder / "index.html"


def _draw(item: Outcome, folder: Path) -> str:
    """The files of one row; gives the picture as the page holds it."""
    assert item.measured is not None and item.measured.drawing is not None
    drawing: Drawing = item.measured.drawing
    svg = as_svg(drawing)
    (folder / f"row-{item.row.row}.svg").write_text(svg, encoding="utf-8")
    (folder / f"row-{item.row.row}.csv").write_text(as_csv(drawing), encoding="utf-8")
    name, data = f"row-{item.row.row}", b64encode(svg.encode()).decode()
    return (
        f'<figure><img alt="{escape(drawing.caption)}" src="data:image/svg+xml;base64,{data}">'
        f'<figcaption>{escape(drawing.caption)} <a href="{name}.svg">SVG</a> <a href="{name}.csv">CSV</a>'
        "</figcaption></figure>"
    )


def _page(found: Sequence[Outcome], lectures: Sequence[str], pictures: dict[int, str], sources: Sources) -> str:
    titles, by_row = catalogue.lectures(), {item.row.row: item for item in found}
    style = files(__package__).joinpath("report.css").read_text("utf-8")
    written: set[int] = set()
    sections = [_lecture(name, titles[name], by_row, written, pictures, sources) for name in lectures]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in lectures)
    states = [by_row[number].state for number in sorted(written)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The lectures, measured</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>'
        f"<h1>The lectures, measured</h1><p>{len(states)} rows: {counts}. saccade {__version__}.</p>"
        f'<nav>{links}<a href="#errata">Errata</a><a href="#papers">Papers</a><a href="#code">Code</a></nav>'
        f"{''.join(sections)}{_errata(errata_of(lectures), by_row, written)}{_papers()}{sources.section()}"
        "</body></html>\n"
    )


def _lecture(
    name: str,
    title: str,
    by_row: dict[int, Outcome],
    written: set[int],
    pictures: dict[int, str],
    sources: Sources,
) -> str:
    """The rows of one lecture; a row that an earlier lecture had already is only named."""
    parts = []
    for row in catalogue.in_slide_order(name):
        if row.row in written:
            parts.append(
                f'<article><header><h3><a href="#row-{row.row}">Row {row.row}</a></h3><span class="where">'
                f"{escape(row.where)}</span></header><p>{escape(row.sentence)}</p></article>"
            )
            continue
        written.add(row.row)
        parts.append(_row(by_row[row.row], pictures.get(row.row, ""), sources))
    return f'<section id="{name}"><h2>{name}: {escape(title)}</h2>{"".join(parts)}</section>'


def _row(item: Outcome, picture: str, sources: Sources) -> str:
    row = item.row
    kind = item.state if item.state in ("holds", "fails") else ""
    head = (
        f'<header><h3>Row {row.row}</h3><span class="where">{escape(row.where)}</span>'
        f'<span class="state {kind}">{item.state}</span></header><p>{escape(row.sentence)}</p>'
    )
    if row.measure is None:
        return f'<article id="row-{row.row}">{head}<p class="why">{_prose(row.why)}</p></article>'
    body = as_mathml(row.formula)
    if item.measured is not None:
        body += _table(item.measured.compared) + picture
        body += _notes_table(item.measured.table)
        body += f"<p>{_prose(item.measured.note)}</p>" if item.measured.note else ""
    elif not item.error:
        body += f'<p class="why">Takes minutes: <code>saccade lectures run {row.row}</code></p>'
    body += f"<p>{escape(item.error)}</p>" if item.error else ""
    return f'<article id="row-{row.row}">{head}{body}{sources.links(row.measure, row.code)}</article>'


def _table(compared: Sequence[Compared]) -> str:
    lines = [
        f'<tr class="{"holds" if item.holds else "fails"}"><td>{escape(item.what)}</td>{_cell(item.expected)}'
        f"{_cell(item.measured)}<td>{escape(item.tolerance)}</td></tr>"
        for item in compared
    ]
    head = "<tr><th></th><th>expected</th><th>measured</th><th>agreement</th></tr>"
    return f'<table class="compared">{head}{"".join(lines)}</table>'


def _notes_table(table: Sequence[Sequence[str]]) -> str:
    """A table of the notes, where a row has one."""
    if not table:
        return ""
    titles, *lines = [[escape(cell) for cell in line] for line in table]
    head = "".join(f"<th>{cell}</th>" for cell in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: float | int | str) -> str:
    return f'<td class="number">{escape(number(value))}</td>'


def _prose(text: str) -> str:
    """Text in which commands stand between backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _errata(mistakes: Sequence[Erratum], by_row: dict[int, Outcome], written: set[int]) -> str:
    lines = []
    for item in mistakes:
        lines.append(
            f"<tr><td>{escape(item.where)}</td><td>{_prose(item.says)}</td><td>{_prose(item.right)}</td>"
            f"<td>{_decided(item, by_row, written)}</td></tr>"
        )
    head = "<tr><th>where</th><th>the notes say</th><th>right is</th><th>what decides</th></tr>"
    return f'<section id="errata"><h2>Errata</h2><table>{head}{"".join(lines)}</table></section>'


def _decided(item: Erratum, by_row: dict[int, Outcome], written: set[int]) -> str:
    if not item.row:
        return escape(item.source)
    link = f'<a href="#row-{item.row}">row {item.row}</a>' if item.row in written else f"row {item.row}"
    compared = deciding(item, by_row)
    if compared is None:
        return link
    return f"{link}: {escape(compared.what)}: {escape(number(compared.measured))}"


def _papers() -> str:
    items = "".join(f"<li>{escape(paper)}</li>" for paper in tables.read("papers.toml")["papers"])
    return f'<section id="papers"><h2>Papers</h2><ul>{items}</ul></section>'


# ---- errata


@dataclass(frozen=True)
class Erratum:
    """One mistake of the notes; decided by a comparison of a row, or by a source."""

    where: str
    says: str
    right: str
    row: int = 0
    measure: str = ""  # how the comparison's words begin
    source: str = ""


def errata() -> list[Erratum]:
    return [Erratum(**item) for item in tables.read("errata.toml")["errata"]]


def errata_of(lectures: Sequence[str]) -> list[Erratum]:
    """Those of some lectures."""
    return [item for item in errata() if any(name in item.where for name in lectures)]


def deciding(erratum: Erratum, found: Mapping[int, Outcome]) -> Compared | None:
    """The comparison that decides, where its row was measured."""
    outcome = found.get(erratum.row)
    compared: Sequence[Compared] = () if outcome is None or outcome.measured is None else outcome.measured.compared
    return next((item for item in compared if item.what.startswith(erratum.measure)), None)


# ---- code


ROOT = Path(saccade.__file__).parent


class Sources:
    """Collects the files that were linked to."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def links(self, measure: Callable[[], Measured], code: Sequence[Any]) -> str:
        """Where the blocks are that a check measures, and the check itself, whole."""
        text, _ = inspect.getsourcelines(measure)
        own = self._link(measure)
        blocks = [self._link(item) for item in code if _is_ours(item)]
        listing = escape("".join(text))
        return (
            f'<p class="code">Blocks: {", ".join(dict.fromkeys(blocks)) or "of PyTorch"}</p>'
            f"<details><summary>How it is measured: {own}</summary><pre>{listing}</pre></details>"
        )

    def _link(self, item: Any) -> str:
        item = inspect.unwrap(item)
        path = Path(inspect.getsourcefile(item) or "")
        line = inspect.getsourcelines(item)[1]
        name = str(path.relative_to(ROOT.parent))
        self.files[name] = path
        return f'<a href="#{name}-{line}">{name}:{line}</a> {escape(item.__qualname__)}'

    def section(self) -> str:
        """All of these files with their lines numbered."""
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
    """Whether this is code of saccade, whose files the page can show."""
    return str(inspect.unwrap(item).__module__).startswith("saccade.")
