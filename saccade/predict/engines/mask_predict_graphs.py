"""Mask-predict in one CUDA graph: reading, length prediction and all passes over the canvas.

Batches are padded to rounded numbers of rows and positions, so that few shapes occur. A shape that occurs for the first
time is decoded by the plain engine; from the second time on, its graph is cached.
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
from saccade.model.writers.fertility import FertilityWriter
from saccade.model.writers.fill import FillWriter
from saccade.predict.engines.engine import list_gpu_failures
from saccade.predict.engines.job import round_up_batch_size
from saccade.predict.engines.replay import capture_graph
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis
from saccade.predict.search.mask_predict import (
    N_SUMMARY_COLUMNS,
    MaskPredictParams,
    collect_hypotheses,
    run_mask_predict,
)
from saccade.predict.search.request import Request
from saccade.predict.search.teacher import get_rescoring

LENGTH_MULTIPLE = 16  # positions; sources are padded to a multiple of it
MAX_CANVAS_POSITIONS = 4096  # with more, launch overhead is small, and buffers need much memory
MAX_CACHED_GRAPHS = 32  # per model


class MaskPredictGraphs:
    """Mask-predict for writers that declare `static_step`: one CUDA graph per batch shape."""

    name, title, non_autoregressive = "cuda-graphs", "CUDA graphs", True

    def __init__(self, device_type: str = "cuda") -> None:
        self.device_type = device_type

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        return list_gpu_failures()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        if request.device.type != self.device_type:
            return Support(f"the batch is on {request.device.type}, not on {self.device_type}")
        if request.align:
            return Support("attention weights are requested (align)")
        if torch.is_autocast_enabled(self.device_type):
            return Support("the model is being trained, and capturing graphs would take longer than they save")
        missing = get_capabilities(model.writer, "the writer").explain_missing("static_step")
        source, params = request.source["source"], MaskPredictParams.from_decoding(request.decoding)
        return Support(
            missing
            or get_graph_cache(cast(Model, model)).explain_unsupported(
                cast(Model, model), source, request.limits, params
            )
        )

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        source, limits = request.source["source"], request.limits
        params = MaskPredictParams.from_decoding(request.decoding)
        # No inference mode: the graph shares tensors of the random generator with graphs of training.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(source.ids):
            canvases = get_graph_cache(cast(Model, model)).run(cast(Model, model), source, limits, params)
        return collect_hypotheses(
            canvases, None, sentences=len(limits), decoding=request.decoding, rescore=get_rescoring(request)
        )


_caches: "weakref.WeakKeyDictionary[Model, MaskPredictGraphCache]" = weakref.WeakKeyDictionary()


def get_graph_cache(model: Model) -> "MaskPredictGraphCache":
    """Return the graph cache of a model; a new one if its weights have moved in memory."""
    # All weights move together, so two of them are enough.
    weight_pointers = next(model.parameters()).data_ptr(), model.writer.output.weight.data_ptr()
    cache = _caches.get(model)
    if cache is None or cache.weight_pointers != weight_pointers:
        cache = _caches[model] = MaskPredictGraphCache(weight_pointers)
    return cache


class MaskPredictGraphCache:
    """The batch shapes that a model has decoded, and buffers for those decoded more than once, in LRU order."""

    def __init__(self, weight_pointers: tuple[int, ...]) -> None:
        self.weight_pointers = weight_pointers
        self.seen_shapes: set[Hashable] = set()
        self.buffers: OrderedDict[Hashable, MaskPredictBuffers] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def explain_unsupported(
        self, model: Model, source: Tokens, limits: Sequence[int], params: MaskPredictParams
    ) -> str:
        """Return why a batch has no graph; empty if it has. The first batch of a shape has none, the next one has."""
        rows, length = round_shape(source)
        width = get_max_canvas_length(model.writer, length, limits, params)
        key = (rows, length, params, width)
        if rows * params.lengths * width > MAX_CANVAS_POSITIONS:
            return "the batch is so large that launch overhead does not matter"
        if not has_positions(model, length, width):
            return "the table of learned positions is shorter than the buffers"
        if key in self.seen_shapes:
            return ""
        self.seen_shapes.add(key)
        return "a batch of this shape occurs for the first time"

    def run(
        self, model: Model, source: Tokens, limits: Sequence[int], params: MaskPredictParams
    ) -> Float[Tensor, "R n"]:
        rows, length = round_shape(source)
        width = get_max_canvas_length(model.writer, length, limits, params)
        key = (rows, length, params, width)
        buffers = self.buffers.pop(key, None) or MaskPredictBuffers.build(
            model, rows=rows, length=length, width=width, params=params
        )
        self.buffers[key] = buffers
        while len(self.buffers) > MAX_CACHED_GRAPHS:
            self.buffers.popitem(last=False)
        return buffers.run(model, source, limits, self.pool)


def round_shape(source: Tokens) -> tuple[int, int]:
    """Return rows and positions of a batch, rounded up so that few shapes occur."""
    return round_up_batch_size(source.ids.shape[0]), -(-source.ids.shape[1] // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def get_max_canvas_length(
    writer: FillWriter | FertilityWriter, length: int, limits: Sequence[int], params: MaskPredictParams
) -> int:
    """Return the longest canvas: source length plus the writer's largest length difference, or the minimum length.

    Fertilities have no such difference: any length up to the limit, rounded up, is possible.
    """
    if isinstance(writer, FertilityWriter):
        return -(-(max(limits) + 1) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return max(length + writer.max_length_difference, params.min_length + 1)


def count_candidates(writer: FillWriter | FertilityWriter, params: MaskPredictParams) -> int:
    """Return how many canvases a sentence has: at most as many as there are lengths."""
    if isinstance(writer, FertilityWriter):
        return params.lengths
    return min(params.lengths, 2 * writer.max_length_difference + 1)


def has_positions(model: Model, source_length: int, target_length: int) -> bool:
    """Return whether tables of learned positions are as long as the buffers."""
    limits = (
        (getattr(model.reader, "max_length", None), source_length),
        (model.writer.embedding.max_length, target_length),
    )
    return all(limit is None or length <= limit for limit, length in limits)


@dataclass
class MaskPredictBuffers:
    """Static input and output buffers for one batch shape, and the captured graph."""

    source: Tokens
    limits: Tensor
    canvases: Tensor
    params: MaskPredictParams
    replay: Callable[[], None] | None = None

    @classmethod
    def build(
        cls, model: Model, *, rows: int, length: int, width: int, params: MaskPredictParams
    ) -> "MaskPredictBuffers":
        device = model.writer.embedding.tokens.weight.device
        n_lengths = count_candidates(model.writer, params)

        def new(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        source = Tokens(new(rows, length), new(rows, length, dtype=torch.bool))
        return cls(source, new(rows), new(rows * n_lengths, width + N_SUMMARY_COLUMNS, dtype=torch.float32), params)

    def run(self, model: Model, source: Tokens, limits: Sequence[int], pool: Any) -> Float[Tensor, "R n"]:
        """Copy a batch into the buffers, replay the graph, and return the rows of the real sentences."""
        rows, length = source.ids.shape
        for buffer, given in ((self.source.ids, source.ids), (self.source.mask, source.mask)):
            if buffer.shape != given.shape:
                buffer.zero_()
                buffer[:, :1].fill_(1)  # padding rows need one real token: softmax over no key is NaN
            buffer[:rows, :length].copy_(given)
        self.limits[:rows].copy_(torch.tensor(limits), non_blocking=True)
        self._get_replay(model, pool)()
        return self.canvases[: rows * (len(self.canvases) // len(self.limits))]

    def _get_replay(self, model: Model, pool: Any) -> Callable[[], None]:
        """Return the replay function, captured on first use; a plain call without CUDA."""
        if self.replay is not None:
            return self.replay

        def decode() -> None:
            width = self.canvases.shape[1] - N_SUMMARY_COLUMNS
            self.canvases.copy_(run_mask_predict(model, self.source, self.limits, self.params, width))

        if self.canvases.device.type != "cuda":
            return decode
        self.replay = capture_graph(decode, decode, [], pool, None)
        return self.replay
