"""Reconstruction error of a masked autoencoder of pictures."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from saccade.config.schema import Corpus, Patches
from saccade.data.batching.batch import Batch
from saccade.data.sources.media import FILES_ONLY, read_media
from saccade.data.sources.pairs import limit_embedded_examples
from saccade.errors import SaccadeError
from saccade.model.writers.patches import PatchWriter, compute_patch_errors
from saccade.predict.predictors.predictor import Predictor
from saccade.score.result import ScoreTable

MASK_SEED = 1  # the masked patches are the same for every run, on every device
BATCH_SIZE = 64


@dataclass(frozen=True)
class PatchEvaluation(ScoreTable):
    """Reconstruction error of masked patches."""

    truncated_lengths: ClassVar[tuple[int, ...]] = ()
    loss: float
    pictures: int
    hidden: float  # share of masked patches
    normalised: bool
    seconds: float
    hypotheses: tuple[str, ...]  # loss of each picture

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        settings = {"pictures": self.pictures, "hidden": self.hidden, "normalised": self.normalised}
        return {**settings, "scores": {"loss": self.loss}, "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and description of the loss, for a table."""
        what = "patches, each normalised" if self.normalised else "pixels from -1 to 1"
        return [("loss", f"{self.loss:.4f}", f"mean square error of {what}, {self.hidden:.0%} of them hidden")]

    def summary(self) -> str:
        count = f"{self.pictures:,} picture{'s' if self.pictures != 1 else ''}"
        return f"{count} in {self.seconds:.1f} s: {self.pictures / self.seconds:,.1f} pictures/s"


def measure_patches(
    predictor: Predictor, corpora: Sequence[Corpus], *, synthetic_count: int | None = None
) -> PatchEvaluation:
    """Mask the same patches of the same pictures whatever the model, and measure their reconstruction.

    `synthetic_count` as in `EvaluationOptions`.
    """
    model, settings = predictor.model, predictor.recipe.objectives[0]
    if not isinstance(model.writer, PatchWriter) or not isinstance(settings, Patches):
        raise SaccadeError(
            "there is nothing to measure: this model only embeds; use --embed of predict, or train vit init=RUN"
        )
    medium, codec = predictor.medium, predictor.codec
    files = [
        path
        for corpus in limit_embedded_examples(corpora, synthetic_count)
        for _, path in read_media(corpus, medium=medium, target=FILES_ONLY)
    ]
    begin, losses, drawing = time.perf_counter(), list[float](), torch.Generator().manual_seed(MASK_SEED)
    for first in range(0, len(files), BATCH_SIZE):
        batch: Batch = codec.collate(codec.encode(files[first : first + BATCH_SIZE], "picture"))
        with predictor.inference():
            missed = compute_patch_errors(
                model,
                batch["source"],
                drawing,
                mask_ratio=settings.mask_ratio,
                normalize_pixels=settings.normalize_pixels,
            )
        losses += ((missed.squared_errors * missed.is_masked).sum(1) / missed.is_masked.sum(1)).tolist()
    seconds = time.perf_counter() - begin
    each = tuple(f"{loss:.4f}" for loss in losses)
    mean = sum(losses) / len(losses)
    return PatchEvaluation(mean, len(losses), settings.mask_ratio, settings.normalize_pixels, seconds, each)
