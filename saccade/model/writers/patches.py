"""The writer of masked image modelling: reconstructs the pixels of masked patches from the reader's states."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.data.batching.batch import Batch, Pictures
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.memory import Memory
from saccade.layers.vision.patches import Picture, paint_patches, sample_hidden_patches
from saccade.model.model import Model
from saccade.model.writers.labels import StatesHead

EPSILON = 1e-6  # added to the variance of a patch


class PatchWriter(StatesHead):
    """Predicts the pixels of each patch by one linear layer (SimMIM, Xie et al. 2022)."""

    capabilities = Capabilities(static_shapes=True, tensor_parallel=True)

    def __init__(self, dim: int, *, patch: int) -> None:
        super().__init__()
        self.dim, self.patch = dim, patch
        self.output = nn.Linear(dim, 3 * patch * patch)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, memory: Memory) -> Float[Tensor, "B N P"]:
        """Pixels of each patch; a class token before the patches is skipped."""
        assert memory.grid is not None, "the memory of a picture has a grid"
        return self.output(memory.states[:, -memory.grid[0] * memory.grid[1] :])

    def compute_targets(self, pictures: Picture, *, normalize_pixels: bool) -> Float[Tensor, "B N P"]:
        """Pixels of each patch from -1 to 1, or normalized by the patch's mean and variance (He et al. 2022)."""
        pixels = F.unfold(pictures.float() / 127.5 - 1, self.patch, stride=self.patch).mT
        if not normalize_pixels:
            return pixels
        centered = pixels - pixels.mean(-1, keepdim=True)
        return centered / (pixels.var(-1, keepdim=True) + EPSILON).sqrt()


class PatchErrors(NamedTuple):
    """Mean squared error of the pixels of each patch, and which patches were masked."""

    squared_errors: Float[Tensor, "B N"]
    is_masked: Bool[Tensor, "B N"]


def compute_patch_errors(
    model: Model, pictures: Pictures, generator: torch.Generator, *, mask_ratio: float, normalize_pixels: bool
) -> PatchErrors:
    """Mask patches of pictures and let the model reconstruct them (He et al. 2022; Xie et al. 2022).

    Masked patches are painted grey and read like all others, so that any reader of patches can be trained.
    """
    writer, values = model.writer, pictures.values
    rows, columns = (side // writer.patch for side in values.shape[-2:])
    masked = sample_hidden_patches(len(values), rows * columns, share=mask_ratio, generator=generator).to(values.device)
    inputs = Pictures(paint_patches(values, masked, patch=writer.patch), pictures.mask)
    predicted = writer(model.read(Batch({"source": inputs}, {"source": 0})))
    squared_errors = (
        (to_loss_dtype(predicted) - writer.compute_targets(values, normalize_pixels=normalize_pixels)).square().mean(-1)
    )
    return PatchErrors(squared_errors, masked & pictures.mask[:, :1])
