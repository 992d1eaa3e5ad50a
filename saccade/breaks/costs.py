"""Breaks of what layers cost and how far they see: windows, recurrence, dilation, memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.breaks.attention import use_reference_attention
from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention import backends
from saccade.layers.attention.masks import Window
from saccade.layers.blocks import convolution, recurrent


@break_code("window-computed-in-full", "Window attention computes all scores and masks most of them.")
def compute_windows_in_full(patch: Patch) -> None:
    patch.replace(backends.get_window_band, lambda original, mask: None)


@break_code("window-twice-as-wide", "A window has twice its radius.")
def widen_windows(patch: Patch) -> None:
    patch.replace(Window.to_dense, lambda original, self, q_pos, k_pos: original(Window(2 * self.radius), q_pos, k_pos))
    patch.replace(Window.to_band, lambda original, self: original(Window(2 * self.radius)))


@break_code("recurrence-dropped", "Recurrent layers begin anew at every position.")
def drop_recurrence(patch: Patch) -> None:
    def run(original: Any, layer: Any, packed: Any, reversal: Any) -> Any:
        weights = [p for name, p in layer.named_parameters() if name.startswith("weight_hh")]
        kept = [p.data for p in weights]
        for p in weights:
            p.data = torch.zeros_like(p)
        found = original(layer, packed, reversal)
        for p, data in zip(weights, kept, strict=True):
            p.data = data
        return found

    patch.replace(recurrent.run_packed_layer, run)


@break_code("recurrence-skips-a-step", "Recurrent layers read every other position only.")
def skip_steps(patch: Patch) -> None:
    def run(original: Any, layer: Any, packed: Any, reversal: Any) -> Any:
        outputs, last = original(
            layer, packed._replace(data=packed.data[::2].repeat_interleave(2, 0)[: len(packed.data)]), reversal
        )
        return outputs, last

    patch.replace(recurrent.run_packed_layer, run)


@break_code("dilation-ignored", "Convolutions are never dilated.")
def ignore_dilation(patch: Patch) -> None:
    patch.replace(convolution.run_block, lambda original, block, dilation, *args: original(block, 1, *args))


@break_code("convolution-of-one-position", "Convolutions see the last of their k positions only.")
def narrow_convolution(patch: Patch) -> None:
    def gather(original: Any, padded: Tensor, *, kernel: int, dilation: int) -> Tensor:
        found: Tensor = original(padded, kernel=kernel, dilation=dilation)
        width = padded.shape[-1]
        return torch.cat((0 * found[..., :-width], found[..., -width:]), -1)

    patch.replace(convolution.gather_neighbors, gather)


@break_code(
    "fused-attention-stores-weights", "Fused attention is computed by the implementation that holds the weights."
)
def store_weights(patch: Patch) -> None:
    use_reference_attention(patch)


@break_code(
    "explicit-attention-recomputed", "Attention that should hold its weights computes them in the backward pass."
)
def recompute_weights(patch: Patch) -> None:
    def attend(original: Any, *parts: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        from torch.utils.checkpoint import checkpoint

        y: Tensor = checkpoint(lambda *given: original(*given, **how)[0], *parts, use_reentrant=False)
        return y, original(*(part.detach() for part in parts), **how)[1]

    patch.replace(backends.explicit_attention, attend)
