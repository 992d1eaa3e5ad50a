"""An outcome as text: one line, or in full."""

from __future__ import annotations

from saccade.lectures.claims import Compared, Value
from saccade.lectures.formula import as_text
from saccade.lectures.outcomes import Outcome

LARGEST = 1e15  # above which nobody counts digits


def number(value: Value) -> str:
    """As many digits as matter."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (1000 <= abs(value) < LARGEST and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"


def comparison(item: Compared) -> str:
    """expected ... measured ..., as a reader wants to see it."""
    expected = (
        f"{item.tolerance} {number(item.expected)}" if item.tolerance.startswith("at ") else number(item.expected)
    )
    near = f" {item.tolerance}" if item.tolerance.startswith("±") else ""
    return f"expected {expected}{near}, measured {number(item.measured)}"


def as_line(item: Outcome) -> str:
    """Row, state, sentence; what is wrong where something is."""
    line = f"{item.row.row:>3}  {item.state:<14}  {item.row.where.split(',')[0]:<14}  {item.row.sentence}"
    return "\n".join([line, *(f"       {text}" for text in _failures(item))])


def _failures(item: Outcome) -> list[str]:
    if item.error:
        return [item.error]
    wrong = [] if item.measured is None else [one for one in item.measured.compared if not one.holds]
    return [f"{one.what}: {comparison(one)}" for one in wrong]


def in_full(item: Outcome) -> str:
    """The row with its formula and everything that was compared."""
    row = item.row
    lines = [f"row {row.row}, {row.where}: {item.state}", row.sentence]
    if row.measure is None:
        return "\n".join([*lines, f"({row.why})"])
    lines += ["", f"    {as_text(row.formula)}", ""]
    if item.measured is not None:
        for one in item.measured.compared:
            lines += [f"  {'holds' if one.holds else 'FAILS'}  {one.what}", f"         {comparison(one)}"]
        lines += [f"\n{item.measured.note}"] if item.measured.note else []
    return "\n".join([*lines, item.error] if item.error else lines)
