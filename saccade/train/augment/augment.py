"""Data augmentation of pictures and sound during training, as the table of the reader asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from saccade.config.schema import AudioAugmentation, FrameReader, ImageAugmentation, MediaReader, PictureReader, Recipe
from saccade.data.batching.batch import Batch, Frames, Pictures
from saccade.train.augment.pictures import augment_pictures
from saccade.train.augment.sound import augment_sound

Augmentation = Callable[[Batch, torch.Generator], Batch]


def build_augmentation(recipe: Recipe) -> Augmentation | None:
    """Build the augmentation of training batches; None if the recipe has none."""
    reader = recipe.reader.file_reader if isinstance(recipe.reader, MediaReader) else None
    if isinstance(reader, PictureReader) and (reader.augment.flip or reader.augment.crop or reader.augment.num_ops):
        return partial(augment_picture_batch, settings=reader.augment)
    if isinstance(reader, FrameReader) and reader.augment.any:
        return partial(augment_sound_batch, settings=reader.augment)
    return None


def augment_picture_batch(batch: Batch, generator: torch.Generator, *, settings: ImageAugmentation) -> Batch:
    pictures = batch["source"]
    augmented = Pictures(augment_pictures(pictures.values, settings, generator), pictures.mask)
    return Batch({**batch.fields, "source": augmented}, batch.counts)


def augment_sound_batch(batch: Batch, generator: torch.Generator, *, settings: AudioAugmentation) -> Batch:
    sound = batch["source"]
    augmented = Frames(*augment_sound(sound.values, sound.mask, settings, generator))
    return Batch({**batch.fields, "source": augmented}, batch.counts)
