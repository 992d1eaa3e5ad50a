"""A writer that fills in a whole text at once (Gu et al. 2018): Memory -> how long, and which token at each place.

What it reads is a canvas: as many places as there will be tokens, END at the last one, and MASK wherever nothing is
written yet. No text has a START inside and a canvas needs none before it, so that this id is free to be the mask.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, get_capabilities
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.layers.attention.masks import positions
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.scores import masked_softmax
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks import filling
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, layout_of, split_mask
from saccade.model.readers.tokens import Embedding, places

Pass = Callable[[Tensor], Tensor]  # canvas (B, T) -> logits (B, T, V)
MASK = START
NUMBER = 64  # features of the length of a source
NEAR = 1.0  # places of the source: a state so far away is copied with 1/e of the weight of the nearest


class Lengths(NamedTuple):
    """What is thought of each length of an output, END included: entry c is about length shortest + c."""

    logits: Float[Tensor, "R C"]
    shortest: Int[Tensor, " R"]


class FillWriter(nn.Module):
    """Text, all places at once: a stack that looks in both directions and at memory, and a head over the vocabulary."""

    cpu_layout = CpuLayout(("output",), exact=True)
    output_scale = 1.0

    def __init__(
        self, embedding: Embedding, stack: Stack, *, output: nn.Module, memory_dim: int, reach: int, copy_source: bool
    ) -> None:
        """`reach`: how many tokens an output may have more or fewer than its source."""
        super().__init__()
        self.embedding = embedding
        self.stack: Any = stack  # with further methods where its capabilities say so
        self.output = output
        self.copy_source, self.reach = copy_source, reach
        self.number = Sinusoidal(NUMBER)
        self.length = nn.Sequential(
            nn.Linear(memory_dim + NUMBER, memory_dim), nn.ReLU(), nn.Linear(memory_dim, 2 * reach + 1)
        )

    @property
    def capabilities(self) -> Capabilities:
        found = get_capabilities(self.stack, "stack")
        linear = type(self).head is FillWriter.head
        return Capabilities(
            packed_rows=found.packed_rows, static_step=True, linear_head=linear, aux=True, reasons=found.reasons
        )

    def forward(
        self, canvas: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> Float[Tensor, "B T D"]:
        """The state at each place, given what is written at the others; `head` makes logits of it.

        Rows next to each other may share a row of memory, as lengths that are tried side by side do.
        """
        return self.write(canvas, mask, memory)[0]

    def write(
        self, canvas: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """The same, and what the layers of the stack report."""
        x = self.embedding(canvas, places(mask))
        if self.copy_source:
            x = x + torch.where((canvas == MASK)[..., None], copied(memory, mask, canvas.shape), 0.0)
        hidden, _, _, aux = self.stack(x, mask, memory)
        return hidden, aux

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)

    def fill(self, memory: Memory, mask: Bool[Tensor, "B T"] | None, shape: Sequence[int]) -> Pass:
        """A function from a canvas of this shape and mask to the logits at its places; what stays is computed once."""
        if not filling.covers(self.stack) or self.embedding.concat:
            return lambda canvas: self.head(self(canvas, mask, memory))
        where = self.embedding.positions
        plain = memory.states.new_zeros(1, 1, 1) if where is None else where(positions(shape[1], memory.states.device))
        plain = plain.to(memory.states.dtype)
        unwritten = plain + copied(memory, mask, shape) if self.copy_source else plain
        looked = filling.look(self.stack, memory.states, rectangle(memory)[1])
        bias = filling.bias_of(mask, memory.states)

        def over(canvas: Tensor) -> Tensor:
            base = torch.where((canvas == MASK)[..., None], unwritten, plain)
            x = torch.add(base, self.embedding.tokens(canvas), alpha=self.embedding.scale)
            return self.head(filling.over_texts(self.stack, x, bias, looked))

        return over

    def lengths(self, memory: Memory) -> Lengths:
        """From the mean of memory's states and their number: how many tokens more or fewer there will be."""
        states, real = rectangle(memory)
        count = real.sum(1)
        mean = (states * real[..., None]).sum(1) / count.clamp(min=1)[:, None]
        number = self.number(count[:, None])[:, 0].to(states.dtype)
        return Lengths(self.length(torch.cat((mean.to(states.dtype), number), 1)), count - self.reach)


def blank(lengths: Int[Tensor, " R"], width: int) -> Int[Tensor, "R T"]:
    """A canvas for texts of these lengths, END included, on which nothing is written yet."""
    left = lengths[:, None] - torch.arange(width, device=lengths.device)
    return torch.where(left > 1, MASK, torch.where(left == 1, END, PAD))


def rectangle(memory: Memory) -> tuple[Float[Tensor, "R S D"], Bool[Tensor, "R S"]]:
    """Memory's states row by row, and which are real, also where texts are packed."""
    layout = layout_of(memory.mask)
    return layout.rectangle(memory.states), layout.inside()


def copied(memory: Memory, mask: Bool[Tensor, "B T"] | Packing | None, shape: Sequence[int]) -> Float[Tensor, "B T D"]:
    """For each place of a canvas the source states about as far on in their text: sum_i softmax_i(-|i - i_t|) h_i,
    where i_t = t (S - 1) / (T - 1) (the soft copy of Wei et al. 2019)."""
    states, real = rectangle(memory)
    packing, padding = split_mask(mask)
    if packing is not None:
        lengths, width = packing.lengths, packing.longest
    else:
        rows, width = shape
        each = rows // states.shape[0]
        if each > 1:
            states, real = (part[:, None].expand(-1, each, *part.shape[1:]).flatten(0, 1) for part in (states, real))
        lengths = real.new_full((rows,), width, dtype=torch.long) if padding is None else padding.sum(1)
    ratio = (real.sum(1) - 1) / (lengths - 1).clamp(min=1)
    there = torch.arange(width, device=states.device) * ratio[:, None]
    away = (there[..., None] - torch.arange(states.shape[1], device=states.device)).abs() / NEAR
    y = masked_softmax(-away, real[:, None]).to(states.dtype) @ states
    return y if packing is None else packing.pack(y)
