"""How results are shown: `repr`, HTML tables in notebooks, and pandas data frames."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

MAX_HTML_ROWS = 50  # of a table in a notebook


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
