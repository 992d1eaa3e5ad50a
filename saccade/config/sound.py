"""The table [reader] of a recipe for audio: its spectrogram, its augmentation and its layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.media import MediaReader
from saccade.config.stacks import RecurrentReaderStack, TransformerStack
from saccade.config.table import Count, Repeats, Share, StackTraits, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

Seconds = Annotated[float, Field(gt=0)]


class Sound(Table):
    """How audio becomes frames: a log-mel spectrogram."""

    sample_rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000
    """Samples per second to which every recording is resampled. 16000 suits speech; 8000 is telephone quality."""
    mel_bands: Count = 80
    """Number of mel frequency bands of a frame. 40 to 128 are usual; precomputed features must have as many."""
    window: Seconds = 0.025
    """Length of the analysis window of one frame, in seconds."""
    hop: Seconds = 0.010
    """Time from one frame to the next, in seconds; 0.01 gives 100 frames per second."""
    normalize: bool | Literal["whisper"] = True
    """Normalize each feature to mean 0 and variance 1 over the recording; "whisper" normalizes as Whisper does. False:
    no normalization."""
    max_seconds: Seconds = 60.0
    """Longer recordings are skipped, and counted. Memory of training grows with the longest one."""
    pad_seconds: Seconds | None = None
    """Shorter recordings are padded with silence to this length, as Whisper needs it. None: no padding."""

    @model_validator(mode="after")
    def _frames_have_samples(self) -> Sound:
        if min(self.window, self.hop) * self.sample_rate < 1:
            raise ValueError(
                f"window and hop must have at least one sample at {self.sample_rate} samples per second, got "
                f"{self.window:g} and {self.hop:g} seconds"
            )
        if self.pad_seconds is not None and self.pad_seconds < self.max_seconds:
            raise ValueError(
                f"max_seconds must be at most pad_seconds = {self.pad_seconds:g} seconds, got {self.max_seconds:g}"
            )
        return self


class AudioAugmentation(Table):
    """Random augmentation of training audio, different for each recording and step. Each is off at 0."""

    time_masks: Annotated[int, Field(ge=0)] = 0
    """SpecAugment: number of masked time intervals per recording (Park et al. 2019). 0 disables it; 2 is usual."""
    time_mask_ratio: Share = 0.05
    """SpecAugment: maximal length of one time mask, as a share of the recording."""
    freq_masks: Annotated[int, Field(ge=0)] = 0
    """SpecAugment: number of masked groups of adjacent mel bands. 0 disables it; 2 is usual."""
    freq_mask_ratio: Share = 0.25
    """SpecAugment: maximal size of one frequency mask, as a share of all bands."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of Gaussian noise added to every feature. 0 disables it."""
    speed: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Speed perturbation: recordings are played up to this share faster or slower. 0 disables it; 0.1 is usual."""

    @property
    def any(self) -> bool:
        return bool(self.time_masks or self.freq_masks or self.noise or self.speed)


class PyramidStack(Table, StackTraits):
    """Pyramidal bidirectional recurrent layers, each over half as many states as the one below (Chan et al. 2016)."""

    kind: Literal["pyramid"] = "pyramid"
    """Chooses this stack: pyramidal recurrent layers."""
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    """Recurrent cell: Elman RNN, GRU (Cho et al. 2014) or LSTM (Hochreiter and Schmidhuber 1997)."""
    layers: Repeats = 4
    """Number of layers; n layers reduce the number of frames by 2^(n - 1)."""
    dim: Annotated[int, Field(ge=2, multiple_of=2)] = 512
    """Width of the hidden states, both directions together; an even number."""
    dropout: Share = 0.2
    """Dropout probability of the output of each layer."""

    @property
    def width(self) -> int:
        return self.dim

    @property
    def reduction(self) -> int:
        return 2 ** (self.layers - 1)


FrameStack = Annotated[TransformerStack | RecurrentReaderStack | PyramidStack | Custom, ByKind()]


class FrameReader(MediaReader):
    """Reads audio: strided convolutions over the frames, then a stack."""

    medium: ClassVar[str] = "sound"
    kind: Literal["frames"] = "frames"
    """Chooses this reader: frames of audio."""
    sound: Sound = Sound()
    """How audio becomes frames."""
    augment: AudioAugmentation = AudioAugmentation()
    """Random augmentation of the training audio."""
    strides: tuple[Count, ...] = (2, 2)
    """Strides of the convolutions before the stack, one convolution each; their product is the reduction of the frame
    rate. Empty: a linear projection."""
    kernel: Annotated[int, Field(ge=1)] = 3
    """Kernel size of these convolutions in frames; odd, and at least as large as every stride."""
    stack: FrameStack = TransformerStack()
    """The layers over the frames."""
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    """Position vectors added to the output of the convolutions: fixed sinusoids, or none for recurrent stacks."""
    dropout: Share = 0.1
    """Dropout probability of the frames after positions are added."""

    @property
    def augmentation(self) -> Table:
        return self.augment

    @property
    def step(self) -> int:
        """Frames per memory state."""
        return math.prod(self.strides) * self.stack.reduction

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _every_frame_is_read(self) -> FrameReader:
        if self.kernel % 2 == 0 or self.kernel < max(self.strides, default=1):
            raise ValueError(
                f"kernel must be odd, and at least as large as every stride, or frames are skipped, got {self.kernel} "
                f"and strides {list(self.strides)}"
            )
        return self
