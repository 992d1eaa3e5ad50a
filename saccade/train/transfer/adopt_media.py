"""A recipe by name of pictures or sound that starts from runs: one for what reads, another one for what writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.runs import RECIPE, find_run, not_a_run

KEYS = ("init", "reader.init", "reader.look.init", "writer.init")
APART = {"all": "output", "input": "none"}  # writer.tie where no table is left to be shared with


def named_runs(overrides: Sequence[str]) -> dict[str, str]:
    """The runs that overrides name, by their keys."""
    pairs = (word.partition("=") for word in overrides)
    found = {key.strip(): run.strip().strip("'\"") for key, _, run in pairs if key.strip() in KEYS}
    return {key: found[key] for key in KEYS if found.get(key)}


def adopted_parts(recipe: Recipe, runs: Mapping[str, str], *, kinds: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with what the runs are; what is learned, and how, stays as it was."""
    for key, run in runs.items():
        folder = find_run(run)
        if not (folder / RECIPE).is_file():
            raise not_a_run(folder)
        old = load(folder / RECIPE, kinds=kinds)
        if key in ("writer.init", "reader.look.init"):
            recipe = (with_writer if key == "writer.init" else with_look)(recipe, old, run)
            continue
        recipe = with_reader(recipe, old, run=f"{key}={run}")
        if key == "init" and recipe.task.adopts_writer(old):
            recipe = with_writer(recipe, old, run)
    return recipe


def with_reader(recipe: Recipe, old: Recipe, *, run: str) -> Recipe:
    """The reader of a run, with the changes of the recipe; a head asks the state which stands for all there."""
    check_reads(recipe, old, run)
    changes, before = (one.reader.media and one.reader.media.augmentation for one in (recipe, old))
    kept = {"changes": changes} if changes is not None and before is not None else {}
    reader = old.reader.model_copy(update={"init": "", **kept})
    writer = recipe.writer
    if writer.pooled and old.writer.pooled:
        writer = old.writer.without_init()
    elif writer.pooled:
        writer = writer.model_copy(update={"pooling": "first" if reader.class_token else "mean"})
    return recipe.model_copy(update={"reader": reader, "writer": writer})


def with_look(recipe: Recipe, old: Recipe, run: str) -> Recipe:
    """Pictures that are asked about are read as in the run, with the changes of the recipe."""
    reader = recipe.reader.joined
    if reader is None:
        return recipe  # which has no such setting, as is told later
    look = old.reader if old.reader.joined is None else old.reader.joined.look
    if not look.is_picture or look.backbone is not None:
        raise SaccadeError(
            f'reader.look.init={run}: that run has reader.kind = "{look.kind}"; give one with "grid" or "patches", '
            "or leave it out"
        )
    look = look.model_copy(update={"init": "", "changes": reader.look.changes})
    return recipe.model_copy(update={"reader": reader.model_copy(update={"look": look})})


def check_reads(recipe: Recipe, old: Recipe, run: str) -> None:
    wanted = recipe.reader
    if old.reader.medium and (old.reader.medium, old.reader.asks) == (wanted.medium, wanted.asks):
        return
    theirs = "nothing" if old.reader.is_none else f"{old.reader.medium or 'text'}s"
    raise SaccadeError(
        f"{run}: that run reads {theirs}, and recipe '{recipe.name}' reads {wanted.medium}s"
        + (" with questions" if wanted.asks else "")
        + "; give a run that reads the same, or leave it out"
    )


def with_writer(recipe: Recipe, old: Recipe, run: str) -> Recipe:
    """The writer and the tokenizer of a run that writes texts, and how many of its pieces a text may have."""
    writer, ours = old.writer.tokens, recipe.writer.tokens
    if writer is None:
        raise SaccadeError(
            f'writer.init={run}: that run has writer.kind = "{old.writer.kind}", which writes no texts; give a '
            'language model, or any run with writer.kind = "tokens"'
        )
    if ours is None:
        raise SaccadeError(
            f"writer.init={run}: recipe '{recipe.name}' has writer.kind = \"{recipe.writer.kind}\", which writes no "
            "texts; leave it out, or take a recipe that describes"
        )
    tie = APART.get(writer.tie, writer.tie)
    return recipe.model_copy(update={
        "writer": writer.model_copy(update={"init": "", "tie": tie, "ctc": ours.ctc}),
        "data": recipe.data.model_copy(update={"max_length": old.data.max_length}),
        "tokenizer": recipe.tokenizer.model_copy(update={"kind": "init", "shared": True, "files": ()}),
        "objectives": tuple(objective.without_coverage() for objective in recipe.objectives)
        if writer.stack.is_transformer
        else recipe.objectives,
    })  # fmt: skip
