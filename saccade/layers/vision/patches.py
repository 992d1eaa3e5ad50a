"""Pictures as sequences of vectors (cells): patch embeddings, convolutional feature maps, pretrained backbones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from saccade.layers.vision.grid_attention import GridAttention

Picture = UInt8[Tensor, "B 3 Y X"] | Float[Tensor, "B 3 Y X"]  # values from 0 to 255
MAX_NORM_GROUPS = 8  # of GroupNorm


class ColorNormalization(NamedTuple):
    """Mean and standard deviation of each color channel, for values from 0 to 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def normalize(self, pictures: Picture, dtype: torch.dtype) -> Float[Tensor, "B 3 Y X"]:
        # Python floats, channel by channel, keep the precision of `dtype`.
        x = pictures.to(dtype) / 255
        return torch.stack([(x[:, i] - mean) / std for i, (mean, std) in enumerate(zip(*self, strict=True))], 1)


def make_channels_contiguous(pictures: Picture) -> Picture:
    """Convert from channels-last memory format: there, torch's CPU gradient of a 1 x 1 convolution with stride 2 writes
    out of bounds."""
    return pictures.contiguous()


def rescale_to_unit_range(pictures: Picture, dtype: torch.dtype) -> Float[Tensor, "B 3 Y X"]:
    """Rescale values from 0 ... 255 to -1 ... 1."""
    return pictures.to(dtype) / 127.5 - 1


class PatchEmbedding(nn.Module):
    """Linear projection of square patches, in row-major order (ViT, Dosovitskiy et al. 2021, equation 1)."""

    def __init__(self, dim: int, *, patch: int, normalization: ColorNormalization | None = None) -> None:
        """Without `normalization`, values are rescaled to -1 ... 1."""
        super().__init__()
        self.patch, self.normalization = patch, normalization
        self.project = nn.Linear(3 * patch * patch, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        normalize = rescale_to_unit_range if self.normalization is None else self.normalization.normalize
        x = normalize(pictures, self.project.weight.dtype)
        return self.project(F.unfold(x, self.patch, stride=self.patch).transpose(1, 2))


class ResNetBlock(nn.Module):
    """Two convolutions with a shortcut (He et al. 2016) and GroupNorm (Wu and He 2018).

    Unlike BatchNorm, GroupNorm does not depend on the other pictures of a batch. `positions_per_state` is the number of
    positions here for each state of the final feature map, for counting operations.
    """

    def __init__(self, before: int, after: int, *, stride: int | tuple[int, int], positions_per_state: int = 1) -> None:
        super().__init__()
        self.positions_per_state = positions_per_state
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(get_num_groups(after), after) for _ in range(2))
        needs_projection = stride != 1 or before != after
        self.past = nn.Conv2d(before, after, 1, stride=stride, bias=False) if needs_projection else nn.Identity()

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B c y x"]:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.past(x))


class ResNetCells(nn.Module):
    """A small ResNet whose stages each halve height and width; returns its feature map as cells in row-major order.

    The last `height_only_stages` stages halve only the height. Self-attention follows the stages listed in
    `attention`, counted from 1.
    """

    def __init__(
        self, channels: Sequence[int], *, depth: int, height_only_stages: int = 0, attention: Sequence[int] = ()
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for stage, (before, after) in enumerate(zip([3, *channels], channels, strict=False), start=1):
            above = len(channels) - stage
            times = 2 ** (2 * above - min(height_only_stages, above))
            stride = 2 if above >= height_only_stages else (2, 1)
            blocks.append(ResNetBlock(before, after, stride=stride, positions_per_state=times))
            blocks += [ResNetBlock(after, after, stride=1, positions_per_state=times) for _ in range(depth - 1)]
            blocks += [GridAttention(after, positions_per_state=times)] if stage in attention else []
        self.blocks = nn.Sequential(*blocks)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        x = rescale_to_unit_range(make_channels_contiguous(pictures), self.blocks[0].first.weight.dtype)  # type: ignore[union-attr, arg-type]
        return self.blocks(x).flatten(2).transpose(1, 2)


def get_num_groups(channels: int) -> int:
    return next(groups for groups in range(min(MAX_NORM_GROUPS, channels), 0, -1) if channels % groups == 0)


# ---- convolutional patch embedding


class ConvStemLayer(nn.Module):
    """Convolution, GroupNorm and ReLU; `positions_per_state` is the number of positions here for each patch."""

    def __init__(self, before: int, after: int, *, stride: int, positions_per_state: int) -> None:
        super().__init__()
        self.positions_per_state = positions_per_state
        self.convolve = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(get_num_groups(after), after)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B c y x"]:
        return F.relu(self.norm(self.convolve(x)))


class ConvPatchEmbedding(nn.Module):
    """Patch embedding by a stack of convolutions and a linear layer, in row-major order (Xiao et al. 2021).

    The last log2(patch) convolutions have stride 2, so that there is one vector per patch; the others have stride 1.
    """

    def __init__(
        self, dim: int, *, patch: int, channels: Sequence[int], normalization: ColorNormalization | None = None
    ) -> None:
        """Without `normalization`, values are rescaled to -1 ... 1."""
        super().__init__()
        self.normalization = normalization
        num_strided, levels = patch.bit_length() - 1, []
        for number, (before, after) in enumerate(zip([3, *channels], channels, strict=False), start=1):
            left = len(channels) - number
            levels.append(
                ConvStemLayer(
                    before,
                    after,
                    stride=2 if left < num_strided else 1,
                    positions_per_state=4 ** min(left, num_strided),
                )
            )
        self.levels = nn.Sequential(*levels)
        self.project = nn.Linear(channels[-1], dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        normalize = rescale_to_unit_range if self.normalization is None else self.normalization.normalize
        x = self.levels(normalize(make_channels_contiguous(pictures), self.project.weight.dtype))
        return self.project(x.flatten(2).mT)


# ---- random masking of patches with gray


GRAY_LEVEL = 127.5  # becomes 0 when values are rescaled to -1 ... 1


def sample_hidden_patches(rows: int, count: int, *, share: float, generator: torch.Generator) -> Bool[Tensor, "B N"]:
    """A random mask of hidden patches: this share of each picture, but at least one and not all."""
    num_hidden = min(max(1, round(share * count)), max(1, count - 1))
    order = torch.rand(rows, count, generator=generator, device=generator.device).argsort(1)
    return order.argsort(1) < num_hidden


def paint_patches(pictures: Picture, hidden: Bool[Tensor, "B N"], *, patch: int) -> Float[Tensor, "B 3 Y X"]:
    """Pictures with the hidden patches painted gray."""
    rows, columns = (side // patch for side in pictures.shape[-2:])
    mask = hidden.view(-1, 1, rows, columns).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(mask, GRAY_LEVEL, pictures.float())


# ---- pretrained backbones


class Backbone(nn.Module):
    """The feature map of a pretrained network (timm), projected to `dim`, as cells in row-major order.

    `network` returns a list whose last item is a feature map with `channels` channels, in the format (B, C, Y, X), or
    (B, Y, X, C) if `channels_last`. If not `trainable`, it is frozen, including the statistics of BatchNorm.
    """

    def __init__(
        self,
        network: nn.Module,
        dim: int,
        *,
        channels: int,
        normalization: ColorNormalization,
        trainable: bool,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.normalization, self.trainable, self.channels_last = (
            network,
            normalization,
            trainable,
            channels_last,
        )
        self.network.requires_grad_(trainable)
        self.project = nn.Linear(channels, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        self.network.train(mode and self.trainable)
        return self

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        maps: Any = self.network(self.normalization.normalize(pictures, self.project.weight.dtype))
        return self.project(maps[-1].flatten(1, 2) if self.channels_last else maps[-1].flatten(2).mT)
