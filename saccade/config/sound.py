"""What reads sound, how sound becomes frames, and how it is changed while a model learns, as tables of a recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.media import MediaReader
from saccade.config.stacks import RecurrentReading, TransformerStack
from saccade.config.table import Count, Share, StackTraits, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

Seconds = Annotated[float, Field(gt=0)]


class Sound(Table):
    """Sound as frames: how strong each band of pitches is, at moments a few milliseconds apart."""

    rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000  # samples a second, to which every recording is brought
    bands: Count = 80  # of pitch; features that are given must be as many
    window: Seconds = 0.025  # of time that makes one frame
    hop: Seconds = 0.010  # from one frame to the next
    normalise: bool | Literal["whisper"] = True  # each feature has mean 0 and variance 1; or as Whisper does it
    longest: Seconds = 60.0  # longer recordings are left out, and counted
    pad: Seconds | None = None  # shorter ones end in silence up to here, which is read

    @model_validator(mode="after")
    def _frames_have_samples(self) -> Sound:
        if min(self.window, self.hop) * self.rate < 1:
            raise ValueError(
                f"window and hop must have at least one sample at {self.rate} samples a second, got {self.window:g} "
                f"and {self.hop:g} seconds"
            )
        if self.pad is not None and self.pad < self.longest:
            raise ValueError(f"longest must be at most pad = {self.pad:g} seconds, got {self.longest:g}")
        return self


class SoundChanges(Table):
    """What is changed at random in recordings that a model learns from; each of these is off at 0."""

    time_masks: Annotated[int, Field(ge=0)] = 0  # stretches of time that are hidden (SpecAugment, Park et al. 2019)
    time_share: Share = 0.05  # of a recording, that one of them hides at most
    band_masks: Annotated[int, Field(ge=0)] = 0  # groups of neighbouring bands that are hidden
    band_share: Share = 0.25  # of all bands, that one of them hides at most
    noise: Annotated[float, Field(ge=0)] = 0.0  # standard deviation of what is added to every feature
    speed: Annotated[float, Field(ge=0, lt=1)] = 0.0  # up to this share faster or slower

    @property
    def any(self) -> bool:
        return bool(self.time_masks or self.band_masks or self.noise or self.speed)


class PyramidStack(Table, StackTraits):
    """Recurrent layers in both directions, each over half as many states as the one below (Chan et al. 2016)."""

    kind: Literal["pyramid"] = "pyramid"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    layers: Count = 4  # n of them make one state of 2 ** (n - 1) frames
    dim: Annotated[int, Field(ge=2, multiple_of=2)] = 512  # of both directions together
    dropout: Share = 0.2  # of what each layer gives

    @property
    def width(self) -> int:
        return self.dim

    @property
    def reduction(self) -> int:
        return 2 ** (self.layers - 1)


FrameStack = Annotated[TransformerStack | RecurrentReading | PyramidStack | Custom, ByKind()]


class FrameReader(MediaReader):
    """Sound in frames: convolutions that make fewer of them, then a stack."""

    medium: ClassVar[str] = "sound"
    kind: Literal["frames"] = "frames"
    sound: Sound = Sound()
    changes: SoundChanges = SoundChanges()
    strides: tuple[Count, ...] = (2, 2)  # one convolution each, which keeps every n-th frame; none: a matrix instead
    kernel: Annotated[int, Field(ge=1)] = 3  # frames that a convolution joins; an odd number
    stack: FrameStack = TransformerStack()
    positions: Literal["sinusoidal", "none"] = "sinusoidal"  # added to what the convolutions give
    dropout: Share = 0.1  # of that

    @property
    def augmentation(self) -> Table:
        return self.changes

    @property
    def step(self) -> int:
        """Frames that make one state."""
        return math.prod(self.strides) * self.stack.reduction

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _every_frame_is_read(self) -> FrameReader:
        if self.kernel % 2 == 0 or self.kernel < max(self.strides, default=1):
            raise ValueError(
                f"kernel must be odd, and at least as large as every stride, or frames are left out, got {self.kernel} "
                f"and strides {list(self.strides)}"
            )
        return self
