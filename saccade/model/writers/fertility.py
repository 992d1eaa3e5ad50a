"""The non-autoregressive writer of Gu et al. 2018: copies each source token by its fertility, then predicts all tokens.

The fertility of a source token is the number of target tokens that it stands for. The copies, in the order of the
source, are the writer's inputs, one for each output token; END stands for END alone. Given the fertilities, all output
tokens are predicted independently of each other.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, TensorPlan, get_capabilities
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks import repeated_passes
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, get_batch_layout
from saccade.model.readers.tokens import Embedding, get_packed_positions
from saccade.model.writers.fill import CanvasDecoder, unpack_memory


class FertilityWriter(nn.Module):
    """A bidirectional stack over copies of source tokens; heads for the tokens and for the fertilities."""

    cpu_layout = CpuLayout(("output",), exact=True)
    tensor_plan = TensorPlan(outputs=("output",))
    output_scale = 1.0
    predicts_fertilities = True

    def __init__(
        self, embedding: Embedding, stack: Stack, *, output: nn.Module, memory_dim: int, max_fertility: int
    ) -> None:
        """`embedding` is over the source vocabulary, whose tokens are copied."""
        super().__init__()
        self.embedding, self.stack, self.output = embedding, stack, output
        self.max_fertility = max_fertility
        self.fertility = nn.Linear(memory_dim, max_fertility + 1)

    @property
    def capabilities(self) -> Capabilities:
        found = get_capabilities(self.stack, "stack")
        linear = type(self).head is FertilityWriter.head
        return Capabilities(
            packed_rows=found.packed_rows, static_step=True, linear_head=linear, aux=True,
            tensor_parallel=found.tensor_parallel, reasons=found.reasons,
        )  # fmt: skip

    def forward(
        self, copies: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> Float[Tensor, "B T D"]:
        """Hidden states at all output positions, given copied source tokens; `head` turns them into logits.

        Consecutive rows may share a row of memory, as candidates for one source do.
        """
        return self.write(copies, mask, memory)[0]

    def write(
        self, copies: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """As `forward`, and return the `aux` of the stack too."""
        hidden, _, _, aux = self.stack(self.embedding(copies, get_packed_positions(mask)), mask, memory)
        return hidden, aux

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)

    def build_canvas_decoder(
        self, memory: Memory, mask: Bool[Tensor, "B T"] | None, shape: Sequence[int]
    ) -> CanvasDecoder:
        """Return a function copies -> logits for a fixed memory, mask and shape."""
        if not repeated_passes.supports(self.stack):
            return lambda copies: self.head(self(copies, mask, memory))
        stack = cast(TransformerStack, self.stack)  # declares `repeated_passes`
        cross_memory = repeated_passes.project_memory(stack, memory.states, unpack_memory(memory)[1])
        bias = repeated_passes.build_key_bias(mask, memory.states)
        return lambda copies: self.head(repeated_passes.run_stack(stack, self.embedding(copies), bias, cross_memory))

    def predict_fertilities(self, memory: Memory) -> Float[Tensor, "R S F"]:
        """Logits of the fertilities 0, 1, 2 ... of each source token, as a padded batch."""
        return self.fertility(unpack_memory(memory)[0])


def get_copyable(mask: Bool[Tensor, "R S"]) -> Bool[Tensor, "R S"]:
    """Which source positions have a fertility: all real ones except the last, which is END."""
    return mask & (torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True) - 1)


def copy_by_fertility(
    source: Int[Tensor, "R S"],
    mask: Bool[Tensor, "R S"],
    fertilities: Int[Tensor, "R S"],
    counts: Int[Tensor, " R"],
    width: int,
) -> Int[Tensor, "R T"]:
    """Return `counts` copies of source tokens, then END, then PAD, in rows of `width` positions.

    Position t copies the source token at which the sum of the fertilities exceeds t; where they are too few, the last
    one that can be copied.
    """
    copyable = get_copyable(mask)
    ends = torch.where(copyable, fertilities, 0).cumsum(1)
    at = torch.arange(width, device=source.device).expand(len(source), -1).contiguous()
    last = (copyable.sum(1, keepdim=True) - 1).clamp(min=0)
    index = torch.minimum(torch.searchsorted(ends, at, right=True), last)
    end = counts[:, None]
    return torch.where(at < end, source.gather(1, index), torch.where(at == end, END, PAD))


def get_source_tokens(memory: Memory) -> tuple[Int[Tensor, "R S"], Bool[Tensor, "R S"]]:
    """Return the source tokens that memory was read from, packed or not, as a padded batch, and which are real."""
    assert memory.tokens is not None, "a reader of tokens keeps them in the memory"
    layout = get_batch_layout(memory.mask)
    return layout.to_padded(memory.tokens), layout.get_padded_mask()
