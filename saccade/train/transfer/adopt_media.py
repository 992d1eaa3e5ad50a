"""Adapts a shipped recipe of pictures or sound to the runs that its reader and writer are initialized from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saccade.config.load import load
from saccade.config.renames import get_new_path
from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.runs import RECIPE, build_not_a_run_error, find_run

INIT_KEYS = ("init", "reader.init", "reader.image.init", "writer.init")
UNTIED = {"all": "output", "input": "none"}  # writer.tie without a token reader to share the embedding with


def find_init_runs(overrides: Sequence[str]) -> dict[str, str]:
    """Return the runs that overrides initialize parts from, by key."""
    pairs = (word.partition("=") for word in overrides)
    found = {get_new_path(key.strip()): run.strip().strip("'\"") for key, _, run in pairs}
    return {key: found[key] for key in INIT_KEYS if found.get(key)}


def adopt_media_parts(recipe: Recipe, runs: Mapping[str, str]) -> Recipe:
    """Return the recipe with the readers and writers of the runs; objectives and training settings stay."""
    for key, run in runs.items():
        folder = find_run(run)
        if not (folder / RECIPE).is_file():
            raise build_not_a_run_error(folder)
        old = load(folder / RECIPE, kinds=recipe.kinds)
        if key in ("writer.init", "reader.image.init"):
            recipe = (adopt_writer if key == "writer.init" else adopt_picture_reader)(recipe, old, run)
            continue
        recipe = adopt_reader(recipe, old, run=f"{key}={run}")
        if key == "init" and recipe.task.adopts_writer(old):
            recipe = adopt_writer(recipe, old, run)
    return recipe


def adopt_reader(recipe: Recipe, old: Recipe, *, run: str) -> Recipe:
    """Return the recipe with the reader of a run, but its own augmentation; a head gets the pooling of that run."""
    check_modality(recipe, old, run)
    augment, old_augment = (one.reader.media and one.reader.media.augmentation for one in (recipe, old))
    own_augment = {"augment": augment} if augment is not None and old_augment is not None else {}
    reader = old.reader.model_copy(update={"init": "", **own_augment})
    writer = recipe.writer
    if writer.pooling_kind and old.writer.pooling_kind:
        writer = old.writer.without_init()
    elif writer.pooling_kind:
        writer = writer.model_copy(update={"pooling": "first" if reader.has_class_token else "mean"})
    return recipe.model_copy(update={"reader": reader, "writer": writer})


def adopt_picture_reader(recipe: Recipe, old: Recipe, run: str) -> Recipe:
    """Return a recipe of questions about pictures with the picture reader of a run, but its own augmentation."""
    reader = recipe.reader.joined_table
    if reader is None:
        return recipe  # validation rejects the key later
    image = old.reader if old.reader.joined_table is None else old.reader.joined_table.image
    if not image.is_picture or image.backbone is not None:
        raise SaccadeError(
            f'reader.image.init={run}: that run has reader.kind = "{image.kind}"; give one with "grid" or "patches", '
            "or leave it out"
        )
    image = image.model_copy(update={"init": "", "augment": reader.image.augment})
    return recipe.model_copy(update={"reader": reader.model_copy(update={"image": image})})


def check_modality(recipe: Recipe, old: Recipe, run: str) -> None:
    """Raise a SaccadeError unless the run reads the same modality as the recipe."""
    reader = recipe.reader
    if old.reader.medium and (old.reader.medium, old.reader.has_question) == (reader.medium, reader.has_question):
        return
    theirs = "nothing" if old.reader.is_none else f"{old.reader.medium or 'text'}s"
    raise SaccadeError(
        f"{run}: that run reads {theirs}, and recipe '{recipe.name}' reads {reader.medium_plural}"
        + (" with questions" if reader.has_question else "")
        + "; give a run that reads the same, or leave it out"
    )


def adopt_writer(recipe: Recipe, old: Recipe, run: str) -> Recipe:
    """Return the recipe with the token writer, the tokenizer and `data.max_length` of a run."""
    writer, ours = old.writer.tokens, recipe.writer.tokens
    if writer is None:
        raise SaccadeError(
            f'writer.init={run}: that run has writer.kind = "{old.writer.kind}", which writes no tokens; give a '
            'language model, or any run with writer.kind = "tokens"'
        )
    if ours is None:
        raise SaccadeError(
            f"writer.init={run}: recipe '{recipe.name}' has writer.kind = \"{recipe.writer.kind}\", which writes no "
            "tokens; leave it out, or take a recipe that describes"
        )
    tie = UNTIED.get(writer.tie, writer.tie)
    return recipe.model_copy(update={
        "writer": writer.model_copy(update={"init": "", "tie": tie, "ctc": ours.ctc}),
        "data": recipe.data.model_copy(update={"max_length": old.data.max_length}),
        "tokenizer": recipe.tokenizer.model_copy(update={"kind": "init", "shared": True, "files": ()}),
        "objectives": tuple(objective.without_coverage() for objective in recipe.objectives)
        if writer.stack.is_transformer
        else recipe.objectives,
    })  # fmt: skip
