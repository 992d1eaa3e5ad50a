"""The errata sheet: what the notes say, what is right, and the measurement that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from saccade.lectures import tables
from saccade.lectures.claims import Compared
from saccade.lectures.outcomes import Outcome


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
