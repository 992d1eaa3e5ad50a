"""Decode with CUDA graphs: a few whole steps (embedding, blocks, head, search) are captured and replayed.

Buffers and graphs are cached by batch size. The number of unfinished sentences is copied to the host after every graph
and read one graph later, so that the device never idles; when half of them are done, a graph for fewer sentences takes
over. Without CUDA, the same steps are plain calls.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.protocols import Support, get_capabilities
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.kernels.next_token import DecodingConstraints, TopTokens
from saccade.layers.attention.static_cache import StaticSizes, StaticStack
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import TokenWriter
from saccade.predict.engines.engine import explain_fused_scores, explain_inspection, list_gpu_failures
from saccade.predict.engines.job import Job, round_up_batch_size
from saccade.predict.engines.replay import PREPARING, AsyncCounter, announce_if_slow, capture_graph
from saccade.predict.engines.static_search import SearchHistory, StaticSearch, advance, advance_fast
from saccade.predict.engines.static_writer import StaticWriter
from saccade.predict.search.greedy import (
    Chooser,
    DecodableModel,
    SearchHypothesis,
    build_sampler,
    compute_length_penalty,
)
from saccade.predict.search.request import Request

STEPS_PER_GRAPH = 4  # between two graphs the device idles for some microseconds
MIN_SENTENCES = 8  # smallest batch to shrink to: fewer are not faster
MAX_BUFFER_SETS = 8  # per model
REPAYING_STEPS = 1000  # compiling kernels and capturing graphs takes seconds, a step of the plain search milliseconds


class CudaGraphs:
    """Steps of a writer that declares `static_step`, captured once and replayed; plain calls without CUDA."""

    name, title, non_autoregressive = "cuda-graphs", "CUDA graphs", False

    def __init__(self, device_type: str = "cuda") -> None:
        """`device_type` is that of the batches it supports; tests use another than CUDA."""
        self.device_type = device_type

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        return list_gpu_failures()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        decoding = request.decoding
        reason = explain_inspection(request) or explain_fused_scores(request)
        if request.device.type != self.device_type:
            reason = f"the batch is on {request.device.type}, not on {self.device_type}"
        elif decoding.no_repeat_ngram or decoding.coverage_penalty or decoding.stop:
            reason = "each step depends on previous tokens (no_repeat_ngram, coverage_penalty or stop)"
        elif decoding.repetition_penalty != 1.0 or decoding.frequency_penalty:
            reason = "each step depends on previous tokens (repetition_penalty or frequency_penalty)"
        elif request.steps_before is not None and request.steps_before + max(request.limits) < REPAYING_STEPS:
            reason = f"preparing kernels and graphs takes seconds: it begins after {REPAYING_STEPS} steps of decoding"
        elif torch.is_autocast_enabled(self.device_type):
            reason = "the model is being trained, and capturing graphs would take longer than they save"
        reason = reason or get_capabilities(model.writer, "the writer").explain_missing("static_step")
        if not reason and model.writer.embedding.tokens.num_embeddings <= 2 * decoding.beam:
            reason = "the vocabulary is too small for so many beams"
        return Support(reason)

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        hypotheses = decode_static(model.writer, model.read(request.source), request)
        return [outputs[: request.decoding.n_best] for outputs in hypotheses]


def decode_static(writer: TokenWriter, memory: Memory | None, request: Request) -> list[list[SearchHypothesis]]:
    """Return the hypotheses of each row; prompts, if any, take the place of START."""
    table = writer.embedding.tokens.weight
    # No inference mode: the graph shares tensors of the random generator with graphs of training.
    no_autocast = torch.autocast(table.device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(table), no_autocast:
        return get_graph_cache(writer).run(writer, Job(request, memory))


_caches: "weakref.WeakKeyDictionary[TokenWriter, SearchGraphCache]" = weakref.WeakKeyDictionary()


def get_graph_cache(writer: TokenWriter) -> "SearchGraphCache":
    """Return the graph cache of a writer; a new one if its weights have moved in memory."""
    weight_pointers = tuple(parameter.data_ptr() for parameter in writer.parameters())
    cache = _caches.get(writer)
    if cache is None or cache.weight_pointers != weight_pointers:
        cache = _caches[writer] = SearchGraphCache(weight_pointers)
    return cache


class SearchGraphCache:
    """The most recently used buffers of one writer."""

    def __init__(self, weight_pointers: tuple[int, ...]) -> None:
        self.weight_pointers = weight_pointers
        self.buffers: OrderedDict[Any, SearchBuffers] = OrderedDict()

    def run(self, writer: TokenWriter, job: Job) -> list[list[SearchHypothesis]]:
        size = round_up_batch_size(len(job.limits) * job.samples_per_row)
        key = (job.get_graph_key(), *job.get_buffer_lengths())
        buffers = self.buffers.pop(key, None)
        if buffers is None or buffers.size < size:
            buffers = SearchBuffers.build(writer, job, size)
        self.buffers[key] = buffers
        while len(self.buffers) > MAX_BUFFER_SETS:
            self.buffers.popitem(last=False)
        return buffers.run(writer, job)


@dataclass
class SearchBuffers:
    """Buffers for searches of up to `size` sentences, and the graphs over all or fewer of them."""

    size: int
    writer: StaticWriter
    search: StaticSearch
    generator: torch.Generator
    graphs: dict[tuple[int, int], Callable[[], None]] = field(default_factory=dict)
    pool: Any = None

    @classmethod
    def build(cls, writer: TokenWriter, job: Job, size: int) -> "SearchBuffers":
        tokens = writer.embedding.tokens
        capacity, source = job.get_buffer_lengths()
        static_writer = StaticWriter.build(writer, StaticSizes(size * job.beams, job.beams, capacity, source))
        search = allocate_search(static_writer, vocabulary=tokens.num_embeddings, size=size, beams=job.beams)
        return cls(size, static_writer, search, torch.Generator(tokens.weight.device))

    def run(self, writer: TokenWriter, job: Job) -> list[list[SearchHypothesis]]:
        """Copy a job into the buffers, search, and return the hypotheses."""
        sentences = len(job.limits) * job.samples_per_row
        self._load_job(writer, job)
        steps = self._run_search(writer, job, sentences)
        if job.request.generator is not None:
            job.request.generator.set_state(self.generator.get_state())
        return self.search.history.to_hypotheses(
            steps=steps, sentences=sentences, samples_per_row=job.samples_per_row, alpha=job.decoding.length_penalty
        )

    # ---- inside

    def _run_search(self, writer: TokenWriter, job: Job, sentences: int) -> int:
        """Take steps until no sentence is left; return their number."""
        n, max_steps, taken = round_up_batch_size(sentences), max(job.limits) + 1, 0
        counter = AsyncCounter(self.search.remaining)
        while taken < max_steps:
            remaining = counter.read_previous()
            if remaining == 0:
                break
            smaller = n if remaining is None else max(MIN_SENTENCES, 1 << (remaining - 1).bit_length())
            if smaller <= n // 2:
                self.search.take_first(n).compact(smaller)
                n = smaller
            count = STEPS_PER_GRAPH if max_steps - taken >= STEPS_PER_GRAPH else 1
            self._get_steps(writer, job, n, count)()
            taken += count
            counter.start_copy()
        return taken

    def _get_steps(self, writer: TokenWriter, job: Job, n: int, count: int) -> Callable[[], None]:
        """Return `count` steps over the first n sentences, captured on first use."""
        if (n, count) in self.graphs:
            return self.graphs[n, count]
        search, beams = self.search.take_first(n), job.beams
        choose = build_sampler(job.request.make_warpers(), self.generator) if job.decoding.sample else None
        bookkeep = advance_fast if self.writer.uses_kernels else advance

        def step() -> None:
            if choose is None:
                best = self.writer.select_tokens(writer, search.tokens, search.state, search.rules, beams)
            else:
                best = sample_tokens(
                    self.writer.compute_logits(writer, search.tokens, search.state), search.rules, choose
                )
            bookkeep(search, best)

        def steps() -> None:
            for _ in range(count):
                step()

        if search.tokens.device.type != "cuda":
            return steps
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        with announce_if_slow(PREPARING):
            replay = capture_graph(
                step, steps, search.list_mutable_tensors(), self.pool, self.generator if choose else None
            )
        self.graphs[n, count] = replay
        return replay

    def _load_job(self, writer: TokenWriter, job: Job) -> None:
        """Copy a batch and its options into the buffers."""
        search, count = self.search, len(job.limits) * job.samples_per_row
        device = search.tokens.device
        self.writer.refresh()
        if job.request.generator is not None:
            self.generator.set_state(job.request.generator.get_state())
        state = search.state
        state.reset(job.beams)
        if job.memory is not None:
            state.memory_rows.copy_((state.memory_rows // job.samples_per_row).clamp(max=self.size - 1))
            states = job.memory.states.to(writer.embedding.tokens.weight.dtype)
            keys_values, mask = cast(StaticStack, writer.stack).project_memory(states), job.memory.mask
            assert isinstance(mask, Tensor), "decoding never packs rows"
            state.load_memory(keys_values, mask)
        restart(search, job, torch.tensor(job.limits, device=device).repeat_interleave(job.samples_per_row), count)
        search.tokens.fill_(START)
        if job.request.prompts is not None:
            read_prompt(writer, search, job.request.prompts, job.samples_per_row)


def allocate_search(writer: StaticWriter, *, vocabulary: int, size: int, beams: int) -> StaticSearch:
    """Allocate a search over the buffers of a writer."""
    state = writer.state
    device, steps = state.lengths.device, state.capacity

    def new(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    forbidden = new(vocabulary, dtype=torch.int8)
    for token in (PAD, START, UNKNOWN):
        forbidden[token] = 1
    return StaticSearch(
        state=state,
        rules=DecodingConstraints(new(1), new(1), new(size), new(steps + 1), forbidden, END),
        tokens=new(size * beams),
        sentences=new(size),
        done=new(size, dtype=torch.bool),
        scores=new(size, beams, dtype=torch.float32),
        pool=new(size, beams, dtype=torch.float32),
        n_best_index=new(1),
        penalties=new(steps + 3, dtype=torch.float32),
        remaining=new(1),
        history=SearchHistory(
            new(steps, size, beams, dtype=torch.int32),
            new(steps, size, beams, dtype=torch.int16),
            new(steps, size, beams, dtype=torch.float32),
        ),
    )


def restart(search: StaticSearch, job: Job, limits: Int[Tensor, " n"], count: int) -> None:
    """Initialize the search for `count` sentences; the remaining rows of the buffers are marked as done."""
    device, rules = search.tokens.device, search.rules
    indices = torch.arange(search.sentences.shape[0], device=device)
    search.sentences.copy_(indices)
    search.done.copy_(indices >= count)
    search.remaining.fill_(count)
    rules.max_lengths.zero_()
    rules.max_lengths[:count] = limits
    rules.step.zero_()
    rules.min_length.fill_(job.decoding.min_length)
    rules.forced_prefix.fill_(-1)
    if prefix := job.request.prefix:
        rules.forced_prefix[: len(prefix)] = torch.tensor(prefix, device=device)
    search.scores.fill_(-torch.inf)
    search.scores[:, 0] = 0.0  # all beams of a sentence are equal at first, so only one is live
    search.pool.fill_(-torch.inf)
    search.history.ends.fill_(-torch.inf)
    search.n_best_index.fill_(min(job.decoding.n_best, search.beams) - 1)
    lengths = range(search.penalties.shape[0])
    search.penalties.copy_(
        torch.tensor([compute_length_penalty(length, job.decoding.length_penalty) for length in lengths])
    )


def read_prompt(writer: TokenWriter, search: StaticSearch, prompt: Int[Tensor, "N n"], samples_per_row: int) -> None:
    """Read all but the last token of each prompt in one pass; the first step reads the last one."""
    prompt = prompt.repeat_interleave(samples_per_row * search.beams, 0)
    (rows, n), state = prompt.shape, search.state
    if n > 1:
        writer.step(prompt[:, :-1], state.view_prompt(rows))
    state.lengths.fill_(n - 1)
    search.tokens[:rows] = prompt[:, -1]


def sample_tokens(logits: Tensor, rules: DecodingConstraints, choose: Chooser) -> TopTokens:
    """Sample one token per row with `choose`."""
    log_probs = logits.float().log_softmax(-1)
    tokens = choose(rules.mask_logits(log_probs))[:, None]
    values = log_probs.gather(1, tokens)
    return TopTokens(values, tokens, torch.zeros_like(values[:, 0]))
