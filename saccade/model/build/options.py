"""What all builders of model parts share: their options, and how a part of a custom kind is built."""

from typing import Any, NamedTuple

from saccade.config.schema import Train


class Options(NamedTuple):
    train: Train
    copies_states: bool = True  # whether the writer starts from the final cell states of a recurrent reader


def build_custom(table: Any, *sizes: int) -> Any:
    """Build a part of a custom kind: call it with the sizes and its settings in the recipe (table: a Custom)."""
    return table.make(*sizes)
