"""Adapts a shipped text recipe to the run it is initialized from, whose architecture and tokenizer it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Recipe, TokenReader, TokenWriter, Writer
from saccade.runs import RECIPE, build_not_a_run_error, find_run

INIT_PREFIXES = ("init=", "reader.init=")


def find_init_run(overrides: Sequence[str]) -> str:
    """Return the run of `init=RUN` or `reader.init=RUN` among the overrides; "" if there is none."""
    found = [word.partition("=")[2] for word in overrides if word.replace(" ", "").startswith(INIT_PREFIXES)]
    return found[-1].strip().strip("'\"") if found else ""


def adopt_run(recipe: Recipe, run: str) -> Recipe:
    """Return the recipe with the reader and tokenizer of a run, and its writer if the task is the same.

    `data.max_length` becomes at most that of the run.
    """
    folder = find_run(run)
    if not (folder / RECIPE).is_file():
        raise build_not_a_run_error(folder)
    old = load(folder / RECIPE, kinds=recipe.kinds)
    parts = recipe.task.adopt_parts(recipe, old)
    if not parts:
        return recipe
    max_length = min(recipe.data.max_length, old.data.max_length)
    data = recipe.data.model_copy(update={"max_length": max_length})
    shared = recipe.task.predicts_labels or old.tokenizer.shared
    tokenizer = recipe.tokenizer.adopt_init(shared=shared)
    return recipe.model_copy(update={**parts, "data": data, "tokenizer": tokenizer})


def adopt_tokenizer(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with the tokenizer of its `init` run, if both train one with the same settings."""
    if not recipe.init or any(word.startswith("tokenizer") for word in overrides):
        return recipe
    folder = find_run(recipe.init)
    if not (folder / RECIPE).is_file():
        raise build_not_a_run_error(folder)
    same_settings = load(folder / RECIPE, kinds=recipe.kinds).tokenizer == recipe.tokenizer
    if not same_settings or not recipe.tokenizer.is_learned:
        return recipe
    return recipe.model_copy(update={"tokenizer": recipe.tokenizer.adopt_init(shared=recipe.tokenizer.shared)})


def adopt_for_labels(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """Return the reader of a run and a classification head for it; {} if the run reads no text."""
    reader = get_token_reader(old)
    return {"reader": reader, "writer": choose_label_head(recipe.writer, old, reader)} if reader is not None else {}


def adopt_encoder(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """Return reader and writer of a masked language model or of an encoder without head; {} for other runs."""
    writer, before = recipe.writer.masked, old.writer.masked
    if writer is None or not (before or old.writer.gives_states):
        return {}
    # `pairs` belongs to the objective, so it stays that of the recipe
    adopted = writer if before is None else before.model_copy(update={"init": "", "pairs": writer.pairs})
    return {"reader": old.reader.without_init(), "writer": adopted}


def adopt_same_parts(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """Return reader and writer of a run; {} if its task or kind of writer differs."""
    if recipe.task.transfer_group != old.task.transfer_group or not recipe.writer.has_kind_of(old.writer):
        return {}
    return {"reader": old.reader.without_init(), "writer": old.writer.without_init()}


def get_token_reader(old: Recipe) -> TokenReader | None:
    """Return the token reader of a run; of a language model, its writer as a causal reader; None for other runs."""
    if (reader := old.reader.text) is not None:
        return reader.without_init()
    writer = old.writer.tokens
    if not old.reader.is_none or writer is None:
        return None
    same = {key: getattr(writer, key) for key in TokenReader.model_fields if key in TokenWriter.model_fields}
    return TokenReader(**{**same, "kind": "tokens", "init": "", "causal": True})


def choose_label_head(writer: Writer, old: Recipe, reader: TokenReader) -> Writer:
    """Choose the pooling of a classification head by how the run was trained: the first state, or one at the end."""
    if not writer.pooling_kind or old.writer.is_label_head:
        return old.writer.without_init() if writer.has_kind_of(old.writer) else writer
    if reader.causal:
        return writer.model_copy(update={"pooling": "before-end"})
    if old.writer.is_permuted:
        return writer.model_copy(update={"pooling": "last", "hidden_dim": reader.stack.width})
    first = {"pooling": "first", "hidden_dim": reader.stack.width}
    return writer.model_copy(update=first) if old.writer.pools_first_state else writer
