"""What tasks have in common that read images or audio, with or without a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.task import Pairs

if TYPE_CHECKING:
    from saccade.config.schema import Recipe
    from saccade.config.table import ReaderTraits
    from saccade.data.tokenization.encode import Settings


def add_question(settings: Settings, recipe: Recipe) -> Settings:
    """Rows have one more side where a question comes with each file."""
    from saccade.data.tokenization.encode import Settings

    if not recipe.reader.asks:
        return settings
    return Settings(recipe.data.max_length, sides=("source", "question", settings.sides[-1]))


def get_questions(pairs: Pairs, reader: ReaderTraits) -> list[str] | None:
    """The questions of inputs that are a file and a question; None where inputs are files alone."""
    from saccade.data.tokenization.text_pairs import separated

    return [separated(source)[-1] for source, _ in pairs] if reader.asks else None


def get_folder_usage() -> str:
    return "--data FOLDER (data=FOLDER"
