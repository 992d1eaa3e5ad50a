"""What crosses from a reader to a writer."""

from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.auxiliary import Aux
from saccade.layers.packing import Packing, split_mask
from saccade.layers.walking import Walking


@dataclass(frozen=True)
class Memory:
    """What was read: one state for each position of the input, and which of them are real."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"] | Packing  # which of them are real, or where each text of a packed row is
    tokens: Int[Tensor, "B N"] | None = None  # what was read; a stack may have made more or fewer states of it
    values: Float[Tensor, "B S D"] | None = None  # what attention mixes, where it is not the states (ConvS2S)
    final: tuple[tuple[Tensor, ...], ...] | None = None  # of a recurrent reader: the last state (B, D) of each layer
    grid: tuple[int, int] | None = None  # rows and columns in which the last states lie in what was read: a picture
    inputs: Float[Tensor, "B N E"] | None = None  # what the reader's stack was given: tokens as vectors
    walking: Walking | None = None  # where a writer of actions begins
    aux: Aux = field(default_factory=Aux)  # what the layers of the reader report

    @property
    def padding(self) -> Bool[Tensor, "B S"]:
        """The padding mask, for parts that do not declare packed_rows."""
        _, mask = split_mask(self.mask)
        assert mask is not None, "this part does not declare packed_rows, so it is never given any"
        return mask

    def repeated(self, times: int) -> "Memory":
        """Each row so many times, one after the other."""
        tokens, values = (None if x is None else x.repeat_interleave(times, 0) for x in (self.tokens, self.values))
        layers = self.final and tuple(tuple(x.repeat_interleave(times, 0) for x in layer) for layer in self.final)
        states, mask = (x.repeat_interleave(times, 0) for x in (self.states, self.padding))
        return Memory(states, mask, tokens, values, layers, self.grid, aux=self.aux)
