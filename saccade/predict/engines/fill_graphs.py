"""Filling without the host: reading, lengths and all passes over the canvas are one CUDA graph.

Sources are filled up to a round number of rows and places, so that few shapes occur. One that comes for the first time
is filled plainly; when it comes again, it gets a graph, which is kept.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.batching.batch import Tokens
from saccade.layers.attention.positions import Learned
from saccade.model.writers.fill import FillWriter
from saccade.predict.engines import graphs
from saccade.predict.engines.job import size_above
from saccade.predict.engines.replay import captured
from saccade.predict.search.fill import NUMBERS, Wanted, filled

STEP = 16  # places: sources are filled up to a multiple of it
MOST = 4096  # places of all canvases: for more, launching takes little of the time, and buffers much memory
KEPT = 32  # graphs of one model


def suits(model: Any) -> bool:
    """Whether a batch can be filled here: on CUDA, by our own writer, and not while the model is trained."""
    if type(model.writer) is not FillWriter or torch.is_autocast_enabled("cuda"):
        return False
    return model.writer.embedding.tokens.weight.device.type == "cuda" and graphs.works(model)


_rooms: "weakref.WeakKeyDictionary[Any, Rooms]" = weakref.WeakKeyDictionary()


def fill_fixed(model: Any, source: Tokens, *, limits: Sequence[int], wanted: Wanted) -> Float[Tensor, "R n"] | None:
    """What `fill.filled` gives; nothing where a shape is met for the first time, or is too large."""
    weight = model.writer.embedding.tokens.weight
    # As for steps: a graph shares tensors of the random generator with graphs of training, which come later.
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(weight):
        return rooms_of(model).run(model, source, limits, wanted)


def rooms_of(model: Any) -> "Rooms":
    """The buffers and graphs of a model; made anew when its weights have moved."""
    where = next(model.reader.parameters()).data_ptr(), model.writer.output.weight.data_ptr()  # all move together
    rooms = _rooms.get(model)
    if rooms is None or rooms.where != where:
        rooms = _rooms[model] = Rooms(where)
    return rooms


class Rooms:
    """The shapes that a model has met, and the buffers of those that it met again, last used last."""

    def __init__(self, where: tuple[int, ...]) -> None:
        self.where = where
        self.met: set[Hashable] = set()
        self.rooms: OrderedDict[Hashable, Room] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def run(self, model: Any, source: Tokens, limits: Sequence[int], wanted: Wanted) -> Float[Tensor, "R n"] | None:
        rows, length = size_above(source.ids.shape[0]), -(-source.ids.shape[1] // STEP) * STEP
        key, width = (rows, length, wanted), longest(model.writer, length, wanted)
        if key not in self.met or rows * wanted.lengths * width > MOST or not has_positions(model, length, width):
            self.met.add(key)
            return None
        room = self.rooms.pop(key, None) or Room.build(model, rows=rows, length=length, wanted=wanted)
        self.rooms[key] = room
        while len(self.rooms) > KEPT:
            self.rooms.popitem(last=False)
        return room.run(model, source, limits, self.pool)


def longest(writer: FillWriter, length: int, wanted: Wanted) -> int:
    """No output has more places than its source and the writer's reach, unless more are asked for."""
    return max(length + writer.reach, wanted.least + 1)


def has_positions(model: Any, read: int, written: int) -> bool:
    """Whether tables of learned positions go as far as the buffers do."""
    places = ((getattr(model.reader, "embedding", None), read), (model.writer.embedding, written))
    tables = [(getattr(embedding, "positions", None), length) for embedding, length in places]
    return all(length <= known.table.num_embeddings for known, length in tables if isinstance(known, Learned))


@dataclass
class Room:
    """Buffers for sources of one shape, what is made of them, and the pass over them."""

    source: Tokens
    limits: Tensor
    made: Tensor
    wanted: Wanted
    replay: Callable[[], None] | None = None

    @classmethod
    def build(cls, model: Any, *, rows: int, length: int, wanted: Wanted) -> "Room":
        device, writer = model.writer.embedding.tokens.weight.device, model.writer
        each, width = min(wanted.lengths, 2 * writer.reach + 1), longest(writer, length, wanted)

        def new(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        source = Tokens(new(rows, length), new(rows, length, dtype=torch.bool))
        return cls(source, new(rows), new(rows * each, width + NUMBERS, dtype=torch.float32), wanted)

    def run(self, model: Any, source: Tokens, limits: Sequence[int], pool: Any) -> Float[Tensor, "R n"]:
        """Fills the buffers, lets the graph run, and gives the rows of the sentences that there are."""
        rows, length = source.ids.shape
        for buffer, given in ((self.source.ids, source.ids), (self.source.mask, source.mask)):
            if buffer.shape != given.shape:
                buffer.zero_()
                buffer[:, :1].fill_(1)  # a row without a single real token would have nothing to attend to
            buffer[:rows, :length].copy_(given)
        self.limits[:rows].copy_(torch.tensor(limits), non_blocking=True)
        self._pass(model, pool)()
        return self.made[: rows * (len(self.made) // len(self.limits))]

    def _pass(self, model: Any, pool: Any) -> Callable[[], None]:
        """Captured when it is needed for the first time."""
        if self.replay is not None:
            return self.replay

        def whole() -> None:
            width = self.made.shape[1] - NUMBERS
            self.made.copy_(filled(model, self.source, self.limits, self.wanted, width))

        if self.made.device.type != "cuda":
            return whole
        self.replay = captured(whole, whole, [], pool, None)
        return self.replay
