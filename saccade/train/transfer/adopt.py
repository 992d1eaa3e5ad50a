"""A recipe of texts by name that starts from a run: that says what the model is, the recipe what it learns and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Recipe, TokenReader, TokenWriter, Writer
from saccade.runs import RECIPE, find_run, not_a_run

INITS = ("init=", "reader.init=")


def first_run(overrides: Sequence[str]) -> str:
    """The run that `init=RUN` or `reader.init=RUN` names; nothing where neither is there."""
    found = [word.partition("=")[2] for word in overrides if word.replace(" ", "").startswith(INITS)]
    return found[-1].strip().strip("'\"") if found else ""


def adopted(recipe: Recipe, run: str, *, kinds: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with the parts of a run that it goes on with: reader, writer where it does the same, tokenizer.

    Nothing is longer than the run was made for.
    """
    folder = find_run(run)
    if not (folder / RECIPE).is_file():
        raise not_a_run(folder)
    old = load(folder / RECIPE, kinds=kinds)
    parts = recipe.task.adopt_parts(recipe, old)
    if not parts:
        return recipe
    longest = min(recipe.data.max_length, old.data.max_length)
    data = recipe.data.model_copy(update={"max_length": longest})
    shared = recipe.task.predicts_labels or old.tokenizer.shared
    tokenizer = recipe.tokenizer.model_copy(update={"kind": "init", "shared": shared, "files": ()})
    return recipe.model_copy(update={**parts, "data": data, "tokenizer": tokenizer})


def with_its_tokenizer(recipe: Recipe, overrides: Sequence[str], *, kinds: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with the tokenizer of the run that it starts from, where it asks for one that is learned alike."""
    if not recipe.init or any(word.startswith("tokenizer") for word in overrides):
        return recipe
    folder = find_run(recipe.init)
    if not (folder / RECIPE).is_file():
        raise not_a_run(folder)
    alike = load(folder / RECIPE, kinds=kinds).tokenizer == recipe.tokenizer
    if not alike or not recipe.tokenizer.is_learned:
        return recipe
    return recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"kind": "init"})})


def adopt_for_labels(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """The reader of a run, and a head for it; nothing where the run reads no text."""
    reader = reading(old)
    return {"reader": reader, "writer": labelling(recipe.writer, old, reader)} if reader is not None else {}


def adopt_encoder(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """Reader and writer of a run that masks tokens, or gives vectors alone; nothing where it does something else."""
    writer, before = recipe.writer.masked, old.writer.masked
    if writer is None or not (before or old.writer.gives_states):
        return {}
    # What it says of pairs goes with the objective
    kept = writer if before is None else before.model_copy(update={"init": "", "pairs": writer.pairs})
    return {"reader": old.reader.without_init(), "writer": kept}


def adopt_same_parts(recipe: Recipe, old: Recipe) -> dict[str, Any]:
    """Reader and writer as the run has them; nothing where its task or its kind of writer is another."""
    if recipe.task.transfer_group != old.task.transfer_group or not recipe.writer.has_kind_of(old.writer):
        return {}
    return {"reader": old.reader.without_init(), "writer": old.writer.without_init()}


def reading(old: Recipe) -> TokenReader | None:
    """What reads in a run; of a language model what writes, which then reads without looking ahead."""
    if (reader := old.reader.text) is not None:
        return reader.without_init()
    writer = old.writer.tokens
    if not old.reader.is_none or writer is None:
        return None
    same = {key: getattr(writer, key) for key in TokenReader.model_fields if key in TokenWriter.model_fields}
    return TokenReader(**{**same, "kind": "tokens", "init": "", "causal": True})


def labelling(writer: Writer, old: Recipe, reader: TokenReader) -> Writer:
    """A head that asks the state which the run has trained to stand for a text: the first one, or one at its end."""
    if not writer.pooled or old.writer.is_label_head:
        return old.writer.without_init() if writer.has_kind_of(old.writer) else writer
    if reader.causal:
        return writer.model_copy(update={"pooling": "before-end"})
    if old.writer.is_permuted:
        return writer.model_copy(update={"pooling": "last", "hidden": reader.stack.width})
    first = {"pooling": "first", "hidden": reader.stack.width}
    return writer.model_copy(update=first) if old.writer.pools_first else writer
