"""By the task of a recipe: how its rows are encoded, and what they are learned from as."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from saccade.config.schema import MediaReader, Recipe
from saccade.data.batching.batches import Rows
from saccade.data.batching.pieces import Pieces
from saccade.data.batching.segments import in_segments, wants_pairs
from saccade.data.batching.spans import hide_spans
from saccade.data.store.arrays import Store
from saccade.data.store.media import MediaStore
from saccade.data.tokenization.encode import Settings
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.data.worlds.route_store import SIDES as ROUTES


class Way(NamedTuple):
    """Pairs that are too long are left out, and learned from as they are; documents are cut, later on."""

    encoded: Callable[[Recipe], Settings]
    in_rows: Callable[[Store, Recipe, Tokenizers], Rows] = lambda store, recipe, tokenizers: store


def pairs(recipe: Recipe) -> Settings:
    return Settings(recipe.data.max_length, recipe.tokenizer.dropout, recipe.tokenizer.variants)


def labelled(recipe: Recipe) -> Settings:
    return Settings(recipe.data.max_length, sides=("source", "label"), cut=recipe.data.cut)


def routes(recipe: Recipe) -> Settings:
    return Settings(recipe.data.max_length, sides=ROUTES)


def documents(recipe: Recipe) -> Settings:
    if isinstance(recipe.reader, MediaReader):
        return Settings(None, sides=("source",))
    dropout, variants = recipe.tokenizer.dropout, recipe.tokenizer.variants
    return Settings(None, dropout, variants, sides=("target",), by_sentence=wants_pairs(recipe))


def pieces(store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
    return Pieces(store, length=recipe.data.max_length, cross=recipe.data.cross)


def spans(store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
    return hide_spans(store, recipe.data, tokenizers.target)


def segments(store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
    return store if isinstance(store, MediaStore) else in_segments(store, recipe, tokenizers.target)


BY_TASK = {
    "translate": Way(pairs),
    "describe": Way(pairs),
    "walk": Way(routes),
    "label": Way(labelled),
    "write": Way(documents, pieces),
    "restore": Way(documents, spans),
    "encode": Way(documents, segments),
}


def encoding(recipe: Recipe) -> Settings:
    """Questions about files have one side more than what else the task has."""
    settings = BY_TASK[recipe.task.name].encoded(recipe)
    if not (isinstance(recipe.reader, MediaReader) and recipe.reader.asks):
        return settings
    return Settings(recipe.data.max_length, sides=("source", "question", settings.sides[-1]))


def in_rows(store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
    return BY_TASK[recipe.task.name].in_rows(store, recipe, tokenizers)
