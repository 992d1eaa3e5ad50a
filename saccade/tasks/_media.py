"""Helpers of tasks for images or audio, with or without a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.task import Pairs

if TYPE_CHECKING:
    from saccade.config.schema import Recipe
    from saccade.config.table import ReaderTraits
    from saccade.data.tokenization.encode import EncodingSettings


def add_question(settings: EncodingSettings, recipe: Recipe) -> EncodingSettings:
    """Add the question as a side of the rows, where the reader takes one with each file."""
    from saccade.data.tokenization.encode import EncodingSettings

    if not recipe.reader.has_question:
        return settings
    return EncodingSettings(recipe.data.max_length, sides=("source", "question", settings.sides[-1]))


def get_questions(pairs: Pairs, reader: ReaderTraits) -> list[str] | None:
    """Questions of inputs of a file and a question; None where inputs are files only."""
    from saccade.data.tokenization.text_pairs import split_texts

    return [split_texts(source)[-1] for source, _ in pairs] if reader.has_question else None


def get_folder_usage() -> str:
    return "--data FOLDER (data=FOLDER"
