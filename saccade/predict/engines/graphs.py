"""Decoding without the host: a few whole steps (embedding, blocks, head, search) are one CUDA graph, replayed.

Buffers and graphs are kept for each size of batch, so that the next batch of one model finds them. How many sentences
are left is asked after every graph, and the answer is taken one graph later, so that the device always has work; when
half of them are done, a graph for fewer goes on. Without CUDA the same steps are plain calls.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.protocols import Support, get_capabilities
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.kernels.next_token import Best, Rules
from saccade.layers.attention.static_cache import StaticSizes
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import TokenWriter
from saccade.predict.engines.engine import GPU_FAILURES, explain_fused_scores, explain_watched
from saccade.predict.engines.fixed_search import Record, Search, advance, advance_fast
from saccade.predict.engines.fixed_writer import FixedWriter
from saccade.predict.engines.job import Job, size_above
from saccade.predict.engines.replay import Watch, captured
from saccade.predict.search.greedy import Chooser, DecodableModel, Found, penalty, sampling
from saccade.predict.search.request import Request

AT_ONCE = 4  # steps of one graph: between two graphs the device waits for some microseconds
FEWEST = 8  # sentences: still fewer would not be faster
ROOMS = 8  # sets of buffers that are kept for one model


class CudaGraphs:
    """Steps of a writer that declares `static_step`, captured once and replayed; without CUDA, plain calls."""

    name, title, at_once = "cuda-graphs", "CUDA graphs", False
    failures = GPU_FAILURES

    def __init__(self, device_type: str = "cuda") -> None:
        """Tests take its steps on another device."""
        self.device_type = device_type

    def supports(self, model: DecodableModel, request: Request) -> Support:
        decoding = request.decoding
        reason = explain_watched(request) or explain_fused_scores(request)
        if request.device.type != self.device_type:
            reason = f"the batch is on {request.device.type}, not on {self.device_type}"
        elif decoding.no_repeat or decoding.coverage or decoding.stop or decoding.repetition != 1.0:
            reason = "each step depends on what was written (no_repeat, coverage, stop or repetition)"
        elif decoding.frequency:
            reason = "each step depends on what was written (frequency)"
        elif torch.is_autocast_enabled(self.device_type):
            reason = "the model is being trained, and capturing graphs would take longer than they save"
        reason = reason or get_capabilities(model.writer, "the writer").explain_missing("static_step")
        if not reason and model.writer.embedding.tokens.num_embeddings <= 2 * decoding.beam:
            reason = "the vocabulary is too small for so many beams"
        return Support(reason)

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        found = decode_static(model.writer, model.read(request.source), request)
        return [outputs[: request.decoding.n_best] for outputs in found]


def decode_static(writer: TokenWriter, memory: Memory | None, request: Request) -> list[list[Found]]:
    """The outputs of each row; prompts take the place of START where there are any."""
    table = writer.embedding.tokens.weight
    # Not in inference mode: a graph shares tensors of the random generator with graphs of training, which come later.
    plain = torch.autocast(table.device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(table), plain:
        return rooms_of(writer).run(writer, Job(request, memory))


_rooms: "weakref.WeakKeyDictionary[TokenWriter, Rooms]" = weakref.WeakKeyDictionary()


def rooms_of(writer: TokenWriter) -> "Rooms":
    """The buffers and graphs of a writer; made anew when its weights have moved."""
    where = tuple(parameter.data_ptr() for parameter in writer.parameters())
    rooms = _rooms.get(writer)
    if rooms is None or rooms.where != where:
        rooms = _rooms[writer] = Rooms(where)
    return rooms


class Rooms:
    """The sets of buffers of one writer, those used last."""

    def __init__(self, where: tuple[int, ...]) -> None:
        self.where = where
        self.rooms: OrderedDict[Any, Room] = OrderedDict()

    def run(self, writer: TokenWriter, job: Job) -> list[list[Found]]:
        size = size_above(len(job.limits) * job.copies)
        key = (job.kind(), *job.shape())
        room = self.rooms.pop(key, None)
        if room is None or room.size < size:
            room = Room.build(writer, job, size)
        self.rooms[key] = room
        while len(self.rooms) > ROOMS:
            self.rooms.popitem(last=False)
        return room.run(writer, job)


@dataclass
class Room:
    """Buffers for searches of up to `size` sentences, and the steps over fewer or all of them."""

    size: int
    writer: FixedWriter
    search: Search
    generator: torch.Generator
    captured: dict[tuple[int, int], Callable[[], None]] = field(default_factory=dict)
    pool: Any = None

    @classmethod
    def build(cls, writer: TokenWriter, job: Job, size: int) -> "Room":
        tokens = writer.embedding.tokens
        capacity, source = job.shape()
        fixed = FixedWriter.of(writer, StaticSizes(size * job.beams, job.beams, capacity, source))
        search = new_search(fixed, vocabulary=tokens.num_embeddings, size=size, beams=job.beams)
        return cls(size, fixed, search, torch.Generator(tokens.weight.device))

    def run(self, writer: TokenWriter, job: Job) -> list[list[Found]]:
        """Fills the buffers, searches, and reads what was found."""
        sentences = len(job.limits) * job.copies
        self._fill(writer, job)
        taken = self._search(writer, job, sentences)
        if job.request.generator is not None:
            job.request.generator.set_state(self.generator.get_state())
        return self.search.record.outputs(
            steps=taken, sentences=sentences, copies=job.copies, alpha=job.decoding.length_penalty
        )

    # ---- inside

    def _search(self, writer: TokenWriter, job: Job, sentences: int) -> int:
        """Steps until no sentence is left; gives their number."""
        n, most, taken = size_above(sentences), max(job.limits) + 1, 0
        watch = Watch(self.search.left)
        while taken < most:
            left = watch.left()
            if left == 0:
                break
            smaller = n if left is None else max(FEWEST, 1 << (left - 1).bit_length())
            if smaller <= n // 2:
                self.search.first(n).shrink(smaller)
                n = smaller
            count = AT_ONCE if most - taken >= AT_ONCE else 1
            self._steps(writer, job, n, count)()
            taken += count
            watch.ask()
        return taken

    def _steps(self, writer: TokenWriter, job: Job, n: int, count: int) -> Callable[[], None]:
        """`count` steps of the first n sentences, captured when they are needed for the first time."""
        if (n, count) in self.captured:
            return self.captured[n, count]
        search, beams = self.search.first(n), job.beams
        choose = sampling(job.request.make_shapers(), self.generator) if job.decoding.sample else None
        keep = advance_fast if self.writer.kernels else advance

        def step() -> None:
            if choose is None:
                best = self.writer.best(writer, search.tokens, search.state, search.rules, beams)
            else:
                best = drawn(self.writer.logits(writer, search.tokens, search.state), search.rules, choose)
            keep(search, best)

        def steps() -> None:
            for _ in range(count):
                step()

        if search.tokens.device.type != "cuda":
            return steps
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        replay = captured(step, steps, search.moving(), self.pool, self.generator if choose else None)
        self.captured[n, count] = replay
        return replay

    def _fill(self, writer: TokenWriter, job: Job) -> None:
        """Puts a batch and what is asked of it into the buffers."""
        search, count = self.search, len(job.limits) * job.copies
        device = search.tokens.device
        self.writer.refresh()
        if job.request.generator is not None:
            self.generator.set_state(job.request.generator.get_state())
        state = search.state
        state.restart(job.beams)
        if job.memory is not None:
            state.source.copy_((state.source // job.copies).clamp(max=self.size - 1))
            states = job.memory.states.to(writer.embedding.tokens.weight.dtype)
            seen, mask = writer.stack.project_memory(states), job.memory.mask
            assert isinstance(mask, Tensor), "what is decoded is not packed"
            state.put_memory(seen, mask)
        restart(search, job, torch.tensor(job.limits, device=device).repeat_interleave(job.copies), count)
        search.tokens.fill_(START)
        if job.request.prompts is not None:
            read_prompt(writer, search, job.request.prompts, job.copies)


def new_search(fixed: FixedWriter, *, vocabulary: int, size: int, beams: int) -> Search:
    """A search over buffers of this size."""
    state = fixed.room
    device, steps = state.lengths.device, state.capacity

    def new(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    never = new(vocabulary, dtype=torch.int8)
    for token in (PAD, START, UNKNOWN):
        never[token] = 1
    return Search(
        state=state,
        rules=Rules(new(1), new(1), new(size), new(steps + 1), never, END),
        tokens=new(size * beams),
        sentences=new(size),
        done=new(size, dtype=torch.bool),
        scores=new(size, beams, dtype=torch.float32),
        pool=new(size, beams, dtype=torch.float32),
        wanted=new(1),
        penalties=new(steps + 3, dtype=torch.float32),
        left=new(1),
        record=Record(
            new(steps, size, beams, dtype=torch.int32),
            new(steps, size, beams, dtype=torch.int16),
            new(steps, size, beams, dtype=torch.float32),
        ),
    )


def restart(search: Search, job: Job, limits: Int[Tensor, " n"], count: int) -> None:
    """The beginning of a search of `count` sentences; the others of the room are done."""
    device, rules = search.tokens.device, search.rules
    everyone = torch.arange(search.sentences.shape[0], device=device)
    search.sentences.copy_(everyone)
    search.done.copy_(everyone >= count)
    search.left.fill_(count)
    rules.limits.zero_()
    rules.limits[:count] = limits
    rules.step.zero_()
    rules.least.fill_(job.decoding.min_length)
    rules.prefix.fill_(-1)
    if prefix := job.request.prefix:
        rules.prefix[: len(prefix)] = torch.tensor(prefix, device=device)
    search.scores.fill_(-torch.inf)
    search.scores[:, 0] = 0.0  # all beams of a sentence begin alike: one is enough
    search.pool.fill_(-torch.inf)
    search.record.ends.fill_(-torch.inf)
    search.wanted.fill_(min(job.decoding.n_best, search.beams) - 1)
    lengths = range(search.penalties.shape[0])
    search.penalties.copy_(torch.tensor([penalty(length, job.decoding.length_penalty) for length in lengths]))


def read_prompt(writer: TokenWriter, search: Search, prompt: Int[Tensor, "N n"], copies: int) -> None:
    """All but the last token of each prompt, in one pass; the last one is what the first step reads."""
    prompt = prompt.repeat_interleave(copies * search.beams, 0)
    (rows, n), state = prompt.shape, search.state
    if n > 1:
        writer.step(prompt[:, :-1], state.view_prompt(rows))
    state.lengths.fill_(n - 1)
    search.tokens[:rows] = prompt[:, -1]


def drawn(logits: Tensor, rules: Rules, choose: Chooser) -> Best:
    """One token for each row, as `choose` draws it."""
    log_probs = logits.float().log_softmax(-1)
    tokens = choose(rules.apply(log_probs))[:, None]
    values = log_probs.gather(1, tokens)
    return Best(values, tokens, torch.zeros_like(values[:, 0]))
