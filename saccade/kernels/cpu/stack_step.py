"""One decoding step of a Transformer stack on a CPU in one call of C, where its products are in C too.

The reference is `TransformerStack._step`: it computes what the blocks compute, from the weights that they describe.
`prepare_step` says for which of them.
"""

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.kernels.cpu import fma, native, step_attention, vnni
from saccade.kernels.cpu.step_attention import Part
from saccade.kernels.weights import BlockWeights, LinearWeights, NormWeights, StackWeights, Unsupported

SOURCE = Path(__file__).with_suffix(".c")
POINTER, LONG = ctypes.c_void_p, ctypes.c_int64


class Linear(ctypes.Structure):
    _fields_ = [("multiply", POINTER), ("product", POINTER)]


class Norm(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("epsilon", ctypes.c_float)]


class Block(ctypes.Structure):
    _fields_ = [
        *((name, Linear) for name in ("project", "out", "query", "back", "up", "down")),
        ("norms", Norm * 3),
        *((name, LONG) for name in ("heads", "features")),
        *((name, ctypes.c_float) for name in ("scale", "memory_scale")),
    ]


class Cache(ctypes.Structure):
    _fields_ = [(name, Part) for name in ("key", "value", "memory_key", "memory_value")]


class Stack(ctypes.Structure):
    _fields_ = [
        ("blocks", POINTER), ("attend", POINTER), ("count", LONG), ("dim", LONG), ("pre", ctypes.c_int),
        ("crosses", ctypes.c_int),
    ]  # fmt: skip


class Place(ctypes.Structure):
    _fields_ = [("caches", POINTER), ("keep", POINTER), *((n, LONG) for n in ("rows", "seen", "memories", "source"))]


class Desk(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("x", "normal", "wide", "mixed", "y", "scores", "room")),
        ("threads", ctypes.c_int),
    ]


@runtime_checkable
class KeyValuePair(Protocol):
    """Keys and values (B, L, H, E) of one attention layer."""

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...


@runtime_checkable
class CachedState(Protocol):
    """What the kernel knows of a writer's state, in which all rows have the same length."""

    @property
    def own(self) -> Sequence[KeyValuePair]: ...  # of the positions written so far, for each block

    @property
    def memory(self) -> Sequence[KeyValuePair]: ...

    @property
    def memory_mask(self) -> Tensor | None: ...

    @property
    def lengths(self) -> Tensor: ...

    @property
    def longest(self) -> int: ...

    @property
    def origins(self) -> Tensor | None: ...  # (B, L): the row that wrote what a row has at a position


class StackStep:
    """A stack, described for C."""

    def __init__(self, weights: StackWeights) -> None:
        crosses = {block.cross is not None for block in weights.blocks}
        if len(crosses) > 1:
            raise Unsupported("only some of its blocks attend to memory")
        self.parts: list[Any] = []  # what the addresses below lead to
        self.widest, self.room = 0, 0
        self.latest: tuple[tuple[Any, ...], Any] = ((), None)  # first tensors of the last state, and its caches
        blocks = [self._block(block) for block in weights.blocks]
        self.blocks = (Block * len(blocks))(*blocks)
        self.dim, self.heads, self.crosses = weights.dim, blocks[0].heads, crosses.pop()
        self.stack = Stack(
            ctypes.addressof(self.blocks), address(step_attention.kernel()), len(blocks), weights.dim,
            weights.pre_norm, self.crosses,
        )  # fmt: skip

    def __call__(self, x: Float[Tensor, "B 1 D"], state: CachedState, caches: Any) -> Float[Tensor, "B 1 D"]:
        """One position in every row, given its `find_caches`; the caller moves the state."""
        y = x.contiguous().clone()
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        place = self.place(state, caches, keep)
        take: Any = kernel()
        take(self.stack, place, self.desk(y, place, steps=1))
        return y

    def place(self, state: CachedState, caches: Any, keep: Tensor | None) -> Place:
        """Where the next position stands."""
        memories, source = state.memory[0].keys.shape[:2] if self.crosses else (1, 0)
        real = None if keep is None else keep.data_ptr()
        return Place(ctypes.addressof(caches), real, len(state.lengths), state.longest + 1, memories, source)

    def desk(self, x: Float[Tensor, "B 1 D"], place: Place, *, steps: int) -> Desk:
        """Room for what is in the making in so many steps."""
        rows, seen = place.rows, place.seen + steps - 1
        sizes = [
            rows * self.dim, rows * self.widest, rows * self.widest, rows * self.dim,
            self.heads * max(rows * seen, place.memories * place.source), rows * self.room,
        ]  # fmt: skip
        room = x.new_empty(sum(sizes))
        at, starts = room.data_ptr(), []
        for size in sizes:
            starts.append(at)
            at += size * room.element_size()
        desk = Desk(x.data_ptr(), *starts, torch.get_num_threads())
        desk.held = room  # for as long as it is in use
        return desk

    def find_caches(self, state: CachedState) -> Any:
        """Where keys and values of a state lie, which stays so from step to step; None where C cannot read them."""
        pairs = (*state.own[:1], *state.memory[:1])
        known, found = self.latest
        if len(known) == len(pairs) and all(part() is pair.keys for part, pair in zip(known, pairs, strict=True)):
            return found
        fused = step_attention.is_fused(*(part for pair in pairs for part in (pair.keys, pair.values)))
        found = (Cache * len(self.blocks))(*self._caches(state)) if fused else None
        self.latest = tuple(weakref.ref(pair.keys) for pair in pairs), found
        return found

    def _caches(self, state: CachedState) -> Iterable[Cache]:
        for i, own in enumerate(state.own):
            both = [own, state.memory[i]] if self.crosses else [own]
            yield Cache(
                *(Part(part.data_ptr(), *part.stride()[:3]) for pair in both for part in (pair.keys, pair.values))
            )

    def _block(self, block: BlockWeights) -> Block:
        attention, cross, feedforward = block.attention, block.cross, block.feedforward
        if block.window is not None or block.stochastic_depth or attention.rotary_base is not None:
            raise Unsupported("the C step knows no window, no stochastic depth and no rotary positions")
        if feedforward.gate is not None or not feedforward.up.prepared.relu:
            raise Unsupported("the C step knows no activation but ReLU, and no gate")
        if attention.head_dim > step_attention.WIDEST:
            raise Unsupported(f"its heads are wider than {step_attention.WIDEST}")
        asks = [Linear(), Linear()] if cross is None else [self.linear(cross.project), self.linear(cross.out)]
        self.widest = max(self.widest, 3 * attention.heads * attention.head_dim, feedforward.up.prepared.outputs)
        norms = (Norm * 3)(*map(self.norm, block.norms))
        return Block(
            self.linear(attention.project), self.linear(attention.out), *asks, self.linear(feedforward.up),
            self.linear(feedforward.down), norms, attention.heads, attention.head_dim, attention.scale,
            0.0 if cross is None else cross.scale,
        )  # fmt: skip

    def linear(self, weights: LinearWeights) -> Linear:
        product = weights.prepared
        self.room = max(self.room, product.scratch)
        self.parts += [product, product.structure]
        return Linear(address(product.multiply), ctypes.addressof(product.structure))

    def norm(self, norm: NormWeights) -> Norm:
        if norm.kind != "layer" or norm.weight is None or norm.bias is None:
            raise Unsupported("the C step knows no norm but LayerNorm")
        self.parts.append(norm)
        return Norm(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.epsilon)


# By description: what takes its steps, or why nothing does.
PREPARED: WeakKeyDictionary[StackWeights, tuple[StackStep | None, str]] = WeakKeyDictionary()


def prepare_step(weights: StackWeights) -> StackStep:
    """What takes the steps of a stack, made once; raises `Unsupported` where the source cannot."""
    if kernel() is None:
        raise Unsupported(native.explain_missing() or "the C kernels could not be compiled")
    if weights not in PREPARED:
        try:
            PREPARED[weights] = StackStep(weights), ""
        except Unsupported as error:
            PREPARED[weights] = None, str(error)
    step, reason = PREPARED[weights]
    if step is None:
        raise Unsupported(reason)
    return step


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    if None in (step_attention.kernel(), fma.kernel(), vnni.kernel()):
        return None
    return native.function(SOURCE, "stack_step", *(ctypes.POINTER(kind) for kind in (Stack, Place, Desk)))
