"""What is done to pictures and sound while a model learns from them, as its reader's table says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from saccade.config.schema import FrameReader, MediaReader, PictureChanges, PictureReader, Recipe, SoundChanges
from saccade.data.batching.batch import Batch, Frames, Pictures
from saccade.train.augment.pictures import change_pictures
from saccade.train.augment.sound import change_sound

Change = Callable[[Batch, torch.Generator], Batch]


def changes_of(recipe: Recipe) -> Change | None:
    """What changes batches before a model learns from them; none where nothing is to be changed."""
    reader = recipe.reader.of_files if isinstance(recipe.reader, MediaReader) else None
    if isinstance(reader, PictureReader) and (reader.changes.flip or reader.changes.crop or reader.changes.operations):
        return partial(with_pictures, settings=reader.changes)
    if isinstance(reader, FrameReader) and reader.changes.any:
        return partial(with_sound, settings=reader.changes)
    return None


def with_pictures(batch: Batch, generator: torch.Generator, *, settings: PictureChanges) -> Batch:
    pictures = batch["source"]
    changed = Pictures(change_pictures(pictures.values, settings, generator), pictures.mask)
    return Batch({**batch.fields, "source": changed}, batch.counts)


def with_sound(batch: Batch, generator: torch.Generator, *, settings: SoundChanges) -> Batch:
    sound = batch["source"]
    changed = Frames(*change_sound(sound.values, sound.mask, settings, generator))
    return Batch({**batch.fields, "source": changed}, batch.counts)
