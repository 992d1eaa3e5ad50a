"""How results are shown: `repr`, HTML tables in notebooks, pandas data frames, and progress in notebooks."""

from __future__ import annotations

import html
import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

MAX_HTML_ROWS = 50  # of a table in a notebook
MAX_RECENT_LINES = 5  # of the log of a training in a notebook, since its first step
UPDATE_SECONDS = 0.5  # between two updates of the progress in a notebook


class Tabular(ABC):
    """A result that is a table: a data frame with `to_pandas`, an HTML table in a notebook."""

    @abstractmethod
    def to_records(self) -> list[dict[str, Any]]:
        """Return the rows of the table, each as {column: value}."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame."""
        import pandas

        return pandas.DataFrame(self.to_records())

    def _repr_html_(self) -> str:
        return format_html_table(self.to_records())


def format_html_table(records: Sequence[dict[str, Any]]) -> str:
    """Format rows as an HTML table; the text of cells is escaped, and rows after the first 50 are only counted."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = [
        "".join(f"<td>{html.escape(format_cell(record.get(name)))}</td>" for name in columns)
        for record in records[:MAX_HTML_ROWS]
    ]
    more = len(records) - MAX_HTML_ROWS
    note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def format_cell(value: Any) -> str:
    """Format a value for people: four significant digits, thousands separated, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}"


def find_notebook_display() -> Callable[..., Any] | None:
    """Return the function `display` of IPython in a notebook; None in a terminal or a program."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if get_shell is None or not hasattr(get_shell(), "kernel"):
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display


class NotebookProgress:
    """The output of a training in a cell of a notebook, which is updated in place: lines of text and a progress bar.

    The lines before the first step stay, of later ones the last `MAX_RECENT_LINES`; metrics.jsonl has them all.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self.display = display
        self.handle: Any = None  # of the output, once there is one
        self.first_lines: list[str] = []
        self.recent_lines: deque[str] = deque(maxlen=MAX_RECENT_LINES)
        self.step, self.status = 0, ""
        self.total: int | None = None
        self.updated = 0.0

    def print_line(self, text: str) -> None:
        (self.recent_lines if self.step else self.first_lines).append(text)
        self._update()

    def set_progress(self, step: int, total: int | None, status: str | None = None) -> None:
        """Move the progress bar; `status` is the text behind it, by default as before."""
        self.step, self.total = step, total
        self.status = self.status if status is None else status
        if time.monotonic() - self.updated >= UPDATE_SECONDS:
            self._update()

    def _update(self) -> None:
        self.updated = time.monotonic()
        if self.handle is None:
            self.handle = self.display(self, display_id=True)
        else:
            self.handle.update(self)

    def _repr_html_(self) -> str:
        first, recent = (html.escape("\n".join(lines)) for lines in (self.first_lines, self.recent_lines))
        total = f' max="{self.total}"' if self.total else ""
        of_total = f"/{self.total:,}" if self.total else ""
        bar = (
            f'<progress value="{self.step}"{total}></progress> step {self.step:,}{of_total}  {html.escape(self.status)}'
        )
        return f"<pre>{first}</pre>" + (f"<div>{bar}</div><pre>{recent}</pre>" if self.step else "")
