"""The output of a reader (encoder), which a writer (decoder or head) attends to."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.auxiliary import Aux
from saccade.layers.packing import Packing, split_mask


@dataclass(frozen=True)
class Memory:
    """The encoded input: one state per position, and the padding mask or packing."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"] | Packing  # padding mask (True: real), or the packing of the sequences in one row
    tokens: Int[Tensor, "B N"] | None = None  # input ids; a stack may return more or fewer states
    values: Float[Tensor, "B S D"] | None = None  # values for cross-attention, where they are not the states (ConvS2S)
    final: tuple[tuple[Tensor, ...], ...] | None = None  # of a recurrent reader: last states (B, D) of each layer
    grid: tuple[int, int] | None = None  # of a picture: rows and columns of the grid that the last states form
    inputs: Float[Tensor, "B N E"] | None = None  # inputs of the reader's stack: embedded tokens
    attached: Any = None  # what a writer with the capability `attaches` adds from the batch, for itself
    soft_rows: Bool[Tensor, "B 1"] | None = None  # hard attention in training: rows that use soft attention instead
    aux: Aux = field(default_factory=Aux)  # auxiliary outputs of the reader's layers

    @property
    def padding(self) -> Bool[Tensor, "B S"]:
        """The padding mask, for parts that do not declare the capability packed_rows."""
        _, mask = split_mask(self.mask)
        assert mask is not None, "only parts that declare packed_rows are given packed sequences"
        return mask

    def repeat_rows(self, times: int | Int[Tensor, " B"]) -> "Memory":
        """Repeat each row `times` times, one number or one for each row, as `repeat_interleave` does."""
        tokens, values = (None if x is None else x.repeat_interleave(times, 0) for x in (self.tokens, self.values))
        layers = self.final and tuple(tuple(x.repeat_interleave(times, 0) for x in layer) for layer in self.final)
        states, mask = (x.repeat_interleave(times, 0) for x in (self.states, self.padding))
        return Memory(states, mask, tokens, values, layers, self.grid, aux=self.aux)
