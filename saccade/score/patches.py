"""How well a reader of pictures restores hidden patches."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from saccade.config.schema import Corpus, Patches
from saccade.data.batching.batch import Batch
from saccade.data.sources.media import ALONE, read_media
from saccade.data.sources.pairs import taken
from saccade.errors import SaccadeError
from saccade.model.writers.patches import PatchWriter, missed_patches
from saccade.predict.predictors.predictor import Predictor

SEED = 1  # of which patches are hidden: the same for every run, on every device
AT_ONCE = 64  # pictures


@dataclass(frozen=True)
class PatchEvaluation:
    """What was measured of some pictures."""

    cut: ClassVar[tuple[int, ...]] = ()
    loss: float
    pictures: int
    hidden: float  # the share of patches
    normalised: bool
    seconds: float
    hypotheses: tuple[str, ...]  # the loss of each picture

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {"pictures": self.pictures, "hidden": self.hidden, "normalised": self.normalised}
        return {**told, "scores": {"loss": self.loss}, "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        what = "patches, each normalised" if self.normalised else "pixels from -1 to 1"
        return [("loss", f"{self.loss:.4f}", f"mean square error of {what}, {self.hidden:.0%} of them hidden")]

    def summary(self) -> str:
        count = f"{self.pictures:,} picture{'s' if self.pictures != 1 else ''}"
        return f"{count} in {self.seconds:.1f} s: {self.pictures / self.seconds:,.1f} pictures/s"


def measure_patches(predictor: Predictor, corpora: Sequence[Corpus], *, made: int | None = None) -> PatchEvaluation:
    """Hides the same patches of the same pictures, whatever model restores them; `made` as in evaluate_corpora."""
    model, settings = predictor.model, predictor.recipe.objectives[0]
    if not isinstance(model.writer, PatchWriter) or not isinstance(settings, Patches):
        raise SaccadeError(
            "there is nothing to measure: this model gives vectors alone; use --embed of predict, or train vit init=RUN"
        )
    medium, codec = predictor.medium, predictor.codec
    files = [path for corpus in taken(corpora, made) for _, path in read_media(corpus, medium=medium, wanted=ALONE)]
    begin, losses, drawing = time.perf_counter(), list[float](), torch.Generator().manual_seed(SEED)
    for first in range(0, len(files), AT_ONCE):
        batch: Batch = codec.collate(codec.encode(files[first : first + AT_ONCE], "picture"))
        with predictor.inference():
            missed = missed_patches(
                model, batch["source"], drawing, hidden=settings.hidden, normalised=settings.normalised
            )
        losses += ((missed.squares * missed.hidden).sum(1) / missed.hidden.sum(1)).tolist()
    seconds = time.perf_counter() - begin
    each = tuple(f"{loss:.4f}" for loss in losses)
    mean = sum(losses) / len(losses)
    return PatchEvaluation(mean, len(losses), settings.hidden, settings.normalised, seconds, each)
