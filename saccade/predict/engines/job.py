"""One batch that is to be decoded on fixed buffers: what was read, what is asked, and how much room it takes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from saccade.config.schema import Decoding
from saccade.layers.memory import Memory
from saccade.predict.search.request import Request

SHORTEST, LONG = 32, 256  # positions: fewer are not worth their own graphs, more would take memory in vain


@dataclass(frozen=True)
class Job:
    """A request, and what was read for it."""

    request: Request
    memory: Memory | None

    @property
    def limits(self) -> Sequence[int]:
        return self.request.limits

    @property
    def decoding(self) -> Decoding:
        return self.request.decoding

    @property
    def copies(self) -> int:
        """Rows of the search for one row of memory, each a sentence of its own: samples."""
        return self.decoding.n_best if self.decoding.sample else 1

    @property
    def beams(self) -> int:
        return 1 if self.decoding.sample else self.decoding.beam

    @property
    def given(self) -> int:
        """Tokens before the first one that is written."""
        return 1 if self.request.prompts is None else self.request.prompts.shape[1]

    def shape(self) -> tuple[int, int]:
        """Room for how many positions, written and read."""
        source = 0 if self.memory is None else self.memory.states.shape[1]
        return room_above(max(self.limits) + 1 + self.given), room_above(source) if source else 0

    def kind(self) -> Hashable:
        """What must be equal for two batches to share a graph."""
        if not self.decoding.sample:
            return self.beams
        return self.decoding.temperature, self.decoding.top_k, self.decoding.top_p


def size_above(n: int) -> int:
    """The smallest number of sentences of 1, 2, 4, 8, 16, 24, 32, 48, 64 ... that is not below n."""
    power = 1 << max(n - 1, 0).bit_length()
    return 3 * power // 4 if power >= 32 and n <= 3 * power // 4 else power


def room_above(n: int) -> int:
    """The same for positions: 32, 64, 128, 256, 512, 768 ...; kernels read only what is in use of them."""
    return -(-n // LONG) * LONG if n > LONG else max(SHORTEST, 1 << (n - 1).bit_length())
