"""Options that all builders of model parts share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from saccade.config.schema import Train


class Options(NamedTuple):
    train: Train
    kinds: Mapping[str, Any]  # classes or functions of custom kinds, by name
    copies_states: bool = True  # whether the writer starts from the final cell states of a recurrent reader

    def build_custom(self, table: Any, *sizes: int) -> Any:
        """Build a part of a custom kind: call it with the sizes and its settings in the recipe (table: a Custom)."""
        return self.kinds[table.kind](*sizes, **table.settings())
