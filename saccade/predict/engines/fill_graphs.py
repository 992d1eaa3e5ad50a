"""Filling without the host: reading, lengths and all passes over the canvas are one CUDA graph.

Sources are filled up to a round number of rows and places, so that few shapes occur. One that comes for the first time
is filled plainly; when it comes again, it gets a graph, which is kept.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.protocols import Support, get_capabilities
from saccade.data.batching.batch import Tokens
from saccade.model.model import Model
from saccade.model.writers.fill import FillWriter
from saccade.predict.engines.engine import GPU_FAILURES
from saccade.predict.engines.job import size_above
from saccade.predict.engines.replay import captured
from saccade.predict.search.fill import NUMBERS, Wanted, filled, outputs
from saccade.predict.search.greedy import DecodableModel, Found
from saccade.predict.search.request import Request

STEP = 16  # places: sources are filled up to a multiple of it
MOST = 4096  # places of all canvases: for more, launching takes little of the time, and buffers much memory
KEPT = 32  # graphs of one model


class MaskPredictGraphs:
    """Mask-predict by a writer that declares `static_step`, as one graph for each shape of batch."""

    name, title, at_once = "cuda-graphs", "CUDA graphs", True
    failures = GPU_FAILURES

    def __init__(self, device_type: str = "cuda") -> None:
        self.device_type = device_type

    def supports(self, model: DecodableModel, request: Request) -> Support:
        if request.device.type != self.device_type:
            return Support(f"the batch is on {request.device.type}, not on {self.device_type}")
        if request.align:
            return Support("the attention of each token is asked for")
        if torch.is_autocast_enabled(self.device_type):
            return Support("the model is being trained, and capturing graphs would take longer than they save")
        missing = get_capabilities(model.writer, "the writer").explain_missing("static_step")
        source, wanted = request.source["source"], Wanted.of(request.decoding)
        return Support(missing or rooms_of(cast(Model, model)).explain(cast(Model, model), source, wanted))

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        source, wanted, limits = request.source["source"], Wanted.of(request.decoding), request.limits
        # As for steps: a graph shares tensors of the random generator with graphs of training, which come later.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(source.ids):
            made = rooms_of(cast(Model, model)).run(cast(Model, model), source, limits, wanted)
        return outputs(made, None, sentences=len(limits), decoding=request.decoding)


_rooms: "weakref.WeakKeyDictionary[Model, Rooms]" = weakref.WeakKeyDictionary()


def rooms_of(model: Model) -> "Rooms":
    """The buffers and graphs of a model; made anew when its weights have moved."""
    where = next(model.parameters()).data_ptr(), model.writer.output.weight.data_ptr()  # all move together
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

    def explain(self, model: Model, source: Tokens, wanted: Wanted) -> str:
        """Why a batch gets no graph; empty where it does. One of a new shape gets none, but the next one of it does."""
        rows, length = round_shape(source)
        key, width = (rows, length, wanted), longest(model.writer, length, wanted)
        if rows * wanted.lengths * width > MOST:
            return "the batch is so large that launching takes little of its time"
        if not has_positions(model, length, width):
            return "the table of learned positions is shorter than the buffers"
        if key in self.met:
            return ""
        self.met.add(key)
        return "a batch of this shape comes for the first time"

    def run(self, model: Model, source: Tokens, limits: Sequence[int], wanted: Wanted) -> Float[Tensor, "R n"]:
        rows, length = round_shape(source)
        key = (rows, length, wanted)
        room = self.rooms.pop(key, None) or Room.build(model, rows=rows, length=length, wanted=wanted)
        self.rooms[key] = room
        while len(self.rooms) > KEPT:
            self.rooms.popitem(last=False)
        return room.run(model, source, limits, self.pool)


def round_shape(source: Tokens) -> tuple[int, int]:
    """Rows and places of a batch, rounded up so that few shapes occur."""
    return size_above(source.ids.shape[0]), -(-source.ids.shape[1] // STEP) * STEP


def longest(writer: FillWriter, length: int, wanted: Wanted) -> int:
    """No output has more places than its source and the writer's reach, unless more are asked for."""
    return max(length + writer.reach, wanted.least + 1)


def has_positions(model: Model, read: int, written: int) -> bool:
    """Whether tables of learned positions go as far as the buffers do."""
    limits = ((getattr(model.reader, "max_length", None), read), (model.writer.embedding.max_length, written))
    return all(limit is None or length <= limit for limit, length in limits)


@dataclass
class Room:
    """Buffers for sources of one shape, what is made of them, and the pass over them."""

    source: Tokens
    limits: Tensor
    made: Tensor
    wanted: Wanted
    replay: Callable[[], None] | None = None

    @classmethod
    def build(cls, model: Model, *, rows: int, length: int, wanted: Wanted) -> "Room":
        device, writer = model.writer.embedding.tokens.weight.device, model.writer
        each, width = min(wanted.lengths, 2 * writer.reach + 1), longest(writer, length, wanted)

        def new(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        source = Tokens(new(rows, length), new(rows, length, dtype=torch.bool))
        return cls(source, new(rows), new(rows * each, width + NUMBERS, dtype=torch.float32), wanted)

    def run(self, model: Model, source: Tokens, limits: Sequence[int], pool: Any) -> Float[Tensor, "R n"]:
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

    def _pass(self, model: Model, pool: Any) -> Callable[[], None]:
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
