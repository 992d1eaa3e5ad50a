"""Data augmentation during training: that of the reader's table for images and audio, then those of `train.augment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from saccade.config.kinds import Custom
from saccade.config.schema import AudioAugmentation, FrameReader, ImageAugmentation, MediaReader, PictureReader, Recipe
from saccade.config.training import TokenDropout
from saccade.data.batching.batch import Batch, Frames, Pictures
from saccade.data.tokenization.tokenizer import SPECIAL_TOKENS, UNKNOWN
from saccade.train.augment.pictures import augment_pictures
from saccade.train.augment.sound import augment_sound

Augmentation = Callable[[Batch, torch.Generator], Batch]


def build_augmentation(recipe: Recipe) -> Augmentation | None:
    """Build the augmentation of training batches; None if the recipe has none."""
    own = [build_batch_augmentation(table) for table in recipe.train.augment]
    media = build_media_augmentation(recipe)
    chain = [*([media] if media else []), *own]
    return partial(apply_all, augmentations=chain) if chain else None


def apply_all(batch: Batch, generator: torch.Generator, *, augmentations: Sequence[Augmentation]) -> Batch:
    for augment in augmentations:
        batch = augment(batch, generator)
    return batch


def build_batch_augmentation(table: TokenDropout | Custom) -> Augmentation:
    """Build one entry of `train.augment`; the user's own is a function of batch, generator and its settings."""
    if isinstance(table, Custom):
        return partial(table.maker, **table.settings())
    return partial(drop_tokens, prob=table.prob)


def drop_tokens(batch: Batch, generator: torch.Generator, *, prob: float) -> Batch:
    """Replace source tokens by the unknown token with probability `prob`, except special tokens."""
    ids = batch["source"].ids
    dropped = torch.rand(ids.shape, generator=generator, device=ids.device) < prob
    replaced = ids.masked_fill(dropped & (ids >= len(SPECIAL_TOKENS)), UNKNOWN)
    return Batch({**batch.fields, "source": replace(batch["source"], ids=replaced)}, batch.counts)


def build_media_augmentation(recipe: Recipe) -> Augmentation | None:
    """Build the augmentation of images or audio that the reader's table asks for; None if there is none."""
    reader = recipe.reader.file_reader if isinstance(recipe.reader, MediaReader) else None
    if isinstance(reader, PictureReader) and reader.augment.any:
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
