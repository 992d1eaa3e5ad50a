"""What draws hidden patches of a picture again: a head over the states of its reader."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.data.batching.batch import Batch, Pictures
from saccade.layers.memory import Memory
from saccade.layers.vision.patches import Picture, hidden_patches, painted
from saccade.model.model import Model
from saccade.model.writers.labels import StatesHead

SMALL = 1e-6  # added to variances


class PatchWriter(StatesHead):
    """The pixels of each patch by one matrix of its state (Xie et al. 2022)."""

    capabilities = Capabilities(static_shapes=True)

    def __init__(self, dim: int, *, patch: int) -> None:
        super().__init__()
        self.dim, self.patch = dim, patch
        self.output = nn.Linear(dim, 3 * patch * patch)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, memory: Memory) -> Float[Tensor, "B N P"]:
        """Of a state that stands before the patches nothing is drawn."""
        assert memory.grid is not None, "pictures have one"
        return self.output(memory.states[:, -memory.grid[0] * memory.grid[1] :])

    def wanted(self, pictures: Picture, *, normalised: bool) -> Float[Tensor, "B N P"]:
        """The pixels of each patch from -1 to 1, or how they differ from their mean (He et al. 2022, section 3)."""
        pixels = F.unfold(pictures.float() / 127.5 - 1, self.patch, stride=self.patch).mT
        if not normalised:
            return pixels
        apart = pixels - pixels.mean(-1, keepdim=True)
        return apart / (pixels.var(-1, keepdim=True) + SMALL).sqrt()


class Missed(NamedTuple):
    """The mean square of how far the pixels of each patch are missed, and which patches were hidden."""

    squares: Float[Tensor, "B N"]
    hidden: Bool[Tensor, "B N"]


def missed_patches(
    model: Model, pictures: Pictures, generator: torch.Generator, *, hidden: float, normalised: bool
) -> Missed:
    """Hides patches of pictures and lets the model draw them (He et al. 2022; Xie et al. 2022).

    Hidden ones are grey, and the reader sees that: so it may be any reader of patches.
    """
    writer, values = model.writer, pictures.values
    high, wide = (side // writer.patch for side in values.shape[-2:])
    gone = hidden_patches(len(values), high * wide, share=hidden, generator=generator).to(values.device)
    shown = Pictures(painted(values, gone, patch=writer.patch), pictures.mask)
    made = writer(model.read(Batch({"source": shown}, {"source": 0})))
    squares = (made.float() - writer.wanted(values, normalised=normalised)).square().mean(-1)
    return Missed(squares, gone & pictures.mask[:, :1])
