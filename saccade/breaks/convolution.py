"""Breaks of convolutional stacks: ConvS2S and ByteNet."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks import convolution
from saccade.layers.blocks.convolution import ConvS2SAttention, GatedBlock, ResidualBlock
from saccade.layers.blocks.convolution_stack import ConvolutionStack


@break_code("open-gates", "Gated linear units do not gate: A instead of A sigmoid(B).")
def open_gates(patch: Patch) -> None:
    def forward(original: Any, self: GatedBlock, x: Tensor, gather: Any, weights: Any, *rest: Any) -> Tensor:
        hook = self.convolution.register_forward_hook(
            lambda module, given, y: y.index_fill(-1, y.new_tensor(range(y.shape[-1] // 2, y.shape[-1])).long(), 50.0)
        )
        with hook:
            y: Tensor = original(self, x, gather, weights, *rest)
        return y

    patch.replace(GatedBlock.forward, forward)


@break_code("convolution-without-attention", "The decoder layers of ConvS2S do not attend to the source.")
def leave_out_attention(patch: Patch) -> None:
    patch.replace(ConvS2SAttention.forward, lambda original, self, h, *rest: h)


@break_code("unscaled-convolution-residuals", "Sums in ConvS2S are not scaled by sqrt(0.5).")
def leave_out_scaling(patch: Patch) -> None:
    patch.set(convolution, "SQRT_HALF", 1.0)


@break_code("convolution-looks-ahead", "Convolutions of a decoder are centered on their position, not causal.")
def look_ahead(patch: Patch) -> None:
    def run(original: Any, block: Any, dilation: int, x: Tensor, mask: Any, causal: bool, *rest: Any) -> Tensor:
        y: Tensor = original(block, dilation, x, mask, False, *rest)
        return y

    patch.replace(convolution.run_block, run)


@break_code("convolution-reads-padding", "Convolutions of an encoder see padding as if it were words.")
def read_padding(patch: Patch) -> None:
    def run(original: Any, block: Any, dilation: int, x: Tensor, mask: Any, *rest: Any) -> Tensor:
        y: Tensor = original(block, dilation, x, None, *rest)
        return y

    patch.replace(convolution.run_block, run)


@break_code("undilated-convolutions", "Convolutions ignore their dilation: neighbours are next to each other.")
def ignore_dilation(patch: Patch) -> None:
    patch.replace(convolution.run_block, lambda original, block, dilation, *rest: original(block, 1, *rest))


@break_code("no-dynamic-unfolding", "An encoder returns as many states as words, whatever `unfold` says.")
def ignore_unfolding(patch: Patch) -> None:
    patch.replace(ConvolutionStack.unfold_sequences, lambda original, self, x, mask: (x, mask))


@break_code("decoder-not-on-encoder", "The decoder of ByteNet gets nothing from the encoder.")
def separate_decoder(patch: Patch) -> None:
    def prepare(original: Any, self: ConvolutionStack, memory: Any) -> Any:
        source, aligned = original(self, memory)
        return source, None if aligned is None else 0 * aligned

    patch.replace(ConvolutionStack._prepare_memory, prepare)


@break_code("no-residual-convolutions", "The blocks of ByteNet have no residual connection.")
def leave_out_residual(patch: Patch) -> None:
    patch.replace(ResidualBlock.forward, lambda original, self, x, *rest: original(self, x, *rest) - x)
