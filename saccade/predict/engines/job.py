"""One batch to decode on static buffers: the request, the memory, and the buffer sizes that it needs."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from saccade.config.schema import Decoding
from saccade.layers.memory import Memory
from saccade.predict.search.request import Request

MIN_BUFFER_LENGTH = 32  # positions; shorter buffers are not worth graphs of their own
BUFFER_LENGTH_STEP = 256  # positions; above it, doubling would waste memory


@dataclass(frozen=True)
class Job:
    """A request and the memory that was read for it."""

    request: Request
    memory: Memory | None

    @property
    def limits(self) -> Sequence[int]:
        return self.request.limits

    @property
    def decoding(self) -> Decoding:
        return self.request.decoding

    @property
    def samples_per_row(self) -> int:
        """Rows of the search for one row of memory; each sample is searched as a sentence of its own."""
        return self.decoding.n_best if self.decoding.sample else 1

    @property
    def beams(self) -> int:
        return 1 if self.decoding.sample else self.decoding.beam

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first output token, START included."""
        return 1 if self.request.prompts is None else self.request.prompts.shape[1]

    def get_buffer_lengths(self) -> tuple[int, int]:
        """Return the buffer lengths for target and source, rounded up; 0 without a source."""
        source = 0 if self.memory is None else self.memory.states.shape[1]
        return round_up_length(max(self.limits) + 1 + self.prompt_length), round_up_length(source) if source else 0

    def get_graph_key(self) -> Hashable:
        """Return what must be equal for two batches to share a graph."""
        if not self.decoding.sample:
            return self.beams
        return self.decoding.temperature, self.decoding.top_k, self.decoding.top_p


def round_up_batch_size(n: int) -> int:
    """Return the smallest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96 ... that is at least n."""
    power = 1 << max(n - 1, 0).bit_length()
    return 3 * power // 4 if power >= 32 and n <= 3 * power // 4 else power


def round_up_length(n: int) -> int:
    """Return the smallest of 32, 64, 128, 256, 512, 768 ... that is at least n; kernels skip unused positions."""
    if n > BUFFER_LENGTH_STEP:
        return -(-n // BUFFER_LENGTH_STEP) * BUFFER_LENGTH_STEP
    return max(MIN_BUFFER_LENGTH, 1 << (n - 1).bit_length())
