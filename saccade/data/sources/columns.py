"""Say which columns of a table have to be named, and the option that names them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from saccade.errors import SaccadeError

INDEX_COLUMNS = ("idx", "index", "id")  # columns of row numbers


class UnclearColumnsError(SaccadeError):
    """Which columns of a corpus are meant is not clear; `example` are columns that could be."""

    def __init__(self, before: str, example: Sequence[str], after: str = "") -> None:
        self.before, self.after = before, after
        self.example = json.dumps(list(example), ensure_ascii=False)
        super().__init__(f"{before} columns = {self.example} in a recipe{after}")

    def with_option(self, key: str) -> SaccadeError:
        """Return the error with the option of the command line that names the columns of the corpus `key`."""
        return SaccadeError(f"{self.before} {key}.columns={shlex.quote(self.example)}{self.after}")


def suggest_columns(candidates: Sequence[str], available: Sequence[str], count: int) -> list[str]:
    """Return the first `count` candidates that are no row numbers; of all columns if these are too few."""
    likely = [name for name in candidates if name.lower() not in INDEX_COLUMNS]
    return (likely if len(likely) >= count else list(available))[:count]
