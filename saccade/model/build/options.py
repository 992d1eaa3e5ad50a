"""What all builders of parts share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from saccade.config.schema import Train


class Options(NamedTuple):
    train: Train
    kinds: Mapping[str, Any]  # what a user brings: the class or function behind each kind
    copies_states: bool = True  # whether the final cell states of a recurrent reader go to the writer

    def build_own(self, table: Any, *sizes: int) -> Any:
        """A user's own part (`table` is a Custom), called with sizes and with its settings of the recipe."""
        return self.kinds[table.kind](*sizes, **table.settings())
