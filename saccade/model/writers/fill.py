"""The non-autoregressive writer: predicts the length, then all tokens at once (Gu et al. 2018).

Its input is a canvas: one position for each output token, END at the last, and MASK where the token is not known yet.
MASK is the id of START, which does not occur inside a sequence and is not needed before a canvas.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, TensorPlan, get_capabilities
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.layers.attention.masks import make_positions
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.scores import masked_softmax
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks import repeated_passes
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, get_batch_layout, split_mask
from saccade.model.readers.tokens import Embedding, get_packed_positions

CanvasDecoder = Callable[[Tensor], Tensor]  # canvas (B, T) -> logits (B, T, V)
MASK = START
LENGTH_FEATURES = 64  # features that encode the length of the source
COPY_DISTANCE = 1.0  # source positions over which the weight of a copied state falls to 1/e


class LengthPrediction(NamedTuple):
    """Logits of output lengths, END included: column c is the length `min_length` + c."""

    logits: Float[Tensor, "R C"]
    min_length: Int[Tensor, " R"]


class FillWriter(nn.Module):
    """A bidirectional stack over the canvas that attends to memory; heads for the tokens and for the length."""

    cpu_layout = CpuLayout(("output",), exact=True)
    tensor_plan = TensorPlan(outputs=("output",))
    output_scale = 1.0

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        *,
        output: nn.Module,
        memory_dim: int,
        max_length_difference: int,
        copy_source: bool,
    ) -> None:
        """An output has at most `max_length_difference` tokens more or fewer than its source."""
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.output = output
        self.copy_source, self.max_length_difference = copy_source, max_length_difference
        self.number = Sinusoidal(LENGTH_FEATURES)
        self.length = nn.Sequential(
            nn.Linear(memory_dim + LENGTH_FEATURES, memory_dim),
            nn.ReLU(),
            nn.Linear(memory_dim, 2 * max_length_difference + 1),
        )

    @property
    def capabilities(self) -> Capabilities:
        found = get_capabilities(self.stack, "stack")
        linear = type(self).head is FillWriter.head
        return Capabilities(
            packed_rows=found.packed_rows, static_step=True, linear_head=linear, aux=True,
            tensor_parallel=found.tensor_parallel, reasons=found.reasons,
        )  # fmt: skip

    def forward(
        self, canvas: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> Float[Tensor, "B T D"]:
        """Hidden states at all positions of the canvas; `head` turns them into logits.

        Consecutive rows may share a row of memory, as candidate lengths of one source do.
        """
        return self.write(canvas, mask, memory)[0]

    def write(
        self, canvas: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """As `forward`, and return the `aux` of the stack too."""
        x = self.embedding(canvas, get_packed_positions(mask))
        if self.copy_source:
            x = x + torch.where((canvas == MASK)[..., None], soft_copy(memory, mask, canvas.shape), 0.0)
        hidden, _, _, aux = self.stack(x, mask, memory)
        return hidden, aux

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)

    def build_canvas_decoder(
        self, memory: Memory, mask: Bool[Tensor, "B T"] | None, shape: Sequence[int]
    ) -> CanvasDecoder:
        """Return a function canvas -> logits for a fixed memory, mask and shape, with all invariants precomputed."""
        if not repeated_passes.supports(self.stack) or self.embedding.concat:
            return lambda canvas: self.head(self(canvas, mask, memory))
        stack = cast(TransformerStack, self.stack)  # declares `repeated_passes`
        device, table = memory.states.device, self.embedding.positions
        encoding = memory.states.new_zeros(1, 1, 1) if table is None else table(make_positions(shape[1], device))
        encoding = encoding.to(memory.states.dtype)
        masked_encoding = encoding + soft_copy(memory, mask, shape) if self.copy_source else encoding
        cross_memory = repeated_passes.project_memory(stack, memory.states, unpack_memory(memory)[1])
        bias = repeated_passes.build_key_bias(mask, memory.states)

        def decode(canvas: Tensor) -> Tensor:
            base = torch.where((canvas == MASK)[..., None], masked_encoding, encoding)
            x = torch.add(base, self.embedding.tokens(canvas), alpha=self.embedding.scale)
            return self.head(repeated_passes.run_stack(stack, x, bias, cross_memory))

        return decode

    def predict_lengths(self, memory: Memory) -> LengthPrediction:
        """Predict the output length, relative to the source's, from the mean and the number of memory states."""
        states, real = unpack_memory(memory)
        count = real.sum(1)
        mean = (states * real[..., None]).sum(1) / count.clamp(min=1)[:, None]
        number = self.number(count[:, None])[:, 0].to(states.dtype)
        return LengthPrediction(
            self.length(torch.cat((mean.to(states.dtype), number), 1)), count - self.max_length_difference
        )


def build_masked_canvas(lengths: Int[Tensor, " R"], width: int) -> Int[Tensor, "R T"]:
    """Return canvases of these lengths (END included) with MASK at all positions before END."""
    remaining = lengths[:, None] - torch.arange(width, device=lengths.device)
    return torch.where(remaining > 1, MASK, torch.where(remaining == 1, END, PAD))


def unpack_memory(memory: Memory) -> tuple[Float[Tensor, "R S D"], Bool[Tensor, "R S"]]:
    """Return the states of memory, packed or not, as a padded batch, and which of them are real."""
    layout = get_batch_layout(memory.mask)
    return layout.to_padded(memory.states), layout.get_padded_mask()


def soft_copy(
    memory: Memory, mask: Bool[Tensor, "B T"] | Packing | None, shape: Sequence[int]
) -> Float[Tensor, "B T D"]:
    """Copy source states to canvas positions at the same relative place (Wei et al. 2019).

    Position t gets sum_i softmax_i(-|i - i_t|) h_i, where i_t = t (S - 1) / (T - 1).
    """
    states, real = unpack_memory(memory)
    packing, padding = split_mask(mask)
    if packing is not None:
        lengths, width = packing.lengths, packing.max_length
    else:
        rows, width = shape
        repeats = rows // states.shape[0]
        if repeats > 1:
            states, real = (x[:, None].expand(-1, repeats, *x.shape[1:]).flatten(0, 1) for x in (states, real))
        lengths = real.new_full((rows,), width, dtype=torch.long) if padding is None else padding.sum(1)
    ratio = (real.sum(1) - 1) / (lengths - 1).clamp(min=1)
    centers = torch.arange(width, device=states.device) * ratio[:, None]
    distances = (centers[..., None] - torch.arange(states.shape[1], device=states.device)).abs() / COPY_DISTANCE
    y = masked_softmax(-distances, real[:, None]).to(states.dtype) @ states
    return y if packing is None else packing.pack(y)
