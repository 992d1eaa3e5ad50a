"""One decoding step of a Transformer stack on a CPU in one call of C, where its products are in C too.

It computes what the blocks compute, from their own weights; for stacks of other parts the blocks go on by themselves.
"""

import ctypes
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.kernels.cpu import fma, native, step_attention, vnni
from saccade.kernels.cpu.fma import FmaLinear
from saccade.kernels.cpu.prepared import PreparedHeads
from saccade.kernels.cpu.step_attention import Part
from saccade.kernels.cpu.vnni import VnniLinear
from saccade.layers.memory import AttentionState
from saccade.layers.record import recording

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


class Unknown(Exception):
    """A part of a stack is none of those that the source knows."""


class WholeStep:
    """A stack, described for C."""

    def __init__(self, stack: Any) -> None:
        residuals = [residual for block in stack.blocks for residual in block.residuals]
        orders = {residual.pre for residual in residuals}
        crosses = {block.cross is not None for block in stack.blocks}
        plain = all(residual.adds and residual.skip is None for residual in residuals)
        if len(orders) != 1 or len(crosses) != 1 or not plain or any(window is not None for window in stack.windows):
            raise Unknown
        self.parts: list[Any] = []  # what the addresses below lead to
        self.widest, self.room = 0, 0
        self.latest: tuple[tuple[Any, ...], Any] = ((), None)  # first tensors of the last state, and its caches
        blocks = [self._block(block) for block in stack.blocks]
        self.blocks = (Block * len(blocks))(*blocks)
        self.dim, self.heads, self.crosses = stack.dim, blocks[0].heads, crosses.pop()
        self.stack = Stack(
            ctypes.addressof(self.blocks), address(step_attention.kernel()), len(blocks), stack.dim, orders.pop(),
            self.crosses,
        )  # fmt: skip

    def __call__(self, x: Float[Tensor, "B 1 D"], state: AttentionState, caches: Any) -> Float[Tensor, "B 1 D"]:
        """One position in every row, given what `caches` tells of the state; the caller moves the state."""
        y = x.contiguous().clone()
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        place = self.place(state, caches, keep)
        take: Any = kernel()
        take(self.stack, place, self.desk(y, place, steps=1))
        return y

    def place(self, state: AttentionState, caches: Any, keep: Tensor | None) -> Place:
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

    def caches(self, state: AttentionState) -> Any:
        """Where keys and values of a state lie, which stays so from step to step; None where the source cannot go."""
        pairs = (*state.own[:1], *state.memory[:1])
        known, found = self.latest
        if len(known) == len(pairs) and all(part() is pair.keys for part, pair in zip(known, pairs, strict=True)):
            return found
        fused = step_attention.is_fused(*(part for pair in pairs for part in (pair.keys, pair.values)))
        found = (Cache * len(self.blocks))(*self._caches(state)) if fused else None
        self.latest = tuple(weakref.ref(pair.keys) for pair in pairs), found
        return found

    def _caches(self, state: AttentionState) -> Iterable[Cache]:
        for i, own in enumerate(state.own):
            both = [own, state.memory[i]] if self.crosses else [own]
            yield Cache(
                *(Part(part.data_ptr(), *part.stride()[:3]) for pair in both for part in (pair.keys, pair.values))
            )

    def _block(self, block: Any) -> Block:
        attention, cross, feedforward = block.self, block.cross, block.feedforward
        heads, parts, features = attention.project.shape
        plain = attention.rotary is None and attention.heads.term is None and parts == 3
        fits = features <= step_attention.WIDEST
        if not plain or not fits or type(feedforward) is not nn.Sequential or len(feedforward) != 2:
            raise Unknown
        asks = [Linear(), Linear()] if cross is None else [self.linear(cross.query), self.linear(cross.heads.out)]
        self.widest = max(self.widest, 3 * heads * features, feedforward[0].outputs)
        norms = (Norm * 3)(*(self.norm(residual.norm) for residual in block.residuals))
        return Block(
            self.linear(attention.project), self.linear(attention.heads.out), *asks,
            *(self.linear(part) for part in feedforward), norms, heads, features, attention.heads.scale,
            0.0 if cross is None else cross.heads.scale,
        )  # fmt: skip

    def linear(self, part: Any) -> Linear:
        product = part.product if isinstance(part, PreparedHeads) else part
        described: Any
        if isinstance(product, VnniLinear):
            multiply, described = vnni.kernel(), product.product
            self.room = max(self.room, product.packed.shape[1] + 1)
        elif isinstance(product, FmaLinear):
            multiply, described = fma.kernel(), product.product
        else:
            raise Unknown
        self.parts += [product, described]
        return Linear(address(multiply), ctypes.addressof(described))

    def norm(self, norm: Any) -> Norm:
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            raise Unknown
        self.parts.append(norm)
        return Norm(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps)


# By stack: its first network, which is another one when weights are laid out anew, and what takes its steps.
KNOWN: WeakKeyDictionary[Any, tuple[Any, WholeStep | None]] = WeakKeyDictionary()


def whole_step(stack: Any, x: Float[Tensor, "B n D"], state: AttentionState) -> Float[Tensor, "B n D"] | None:
    """This step in one call; None where the blocks have to take it."""
    if x.shape[1] != 1 or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    whole, caches = taker(stack, state)
    return None if whole is None else whole(x, state, caches)


def taker(stack: Any, state: AttentionState) -> tuple[WholeStep, Any] | tuple[None, None]:
    """What takes steps of a stack from a state on, and its caches; None where nothing does."""
    if not state.even or torch.is_grad_enabled() or recording() or kernel() is None:
        return None, None
    first, known = stack.blocks[0].feedforward, KNOWN.get(stack)
    if known is None or known[0] is not first:
        known = KNOWN[stack] = first, described(stack)
    caches = None if known[1] is None else known[1].caches(state)
    return (None, None) if known[1] is None or caches is None else (known[1], caches)


def described(stack: Any) -> WholeStep | None:
    try:
        return WholeStep(stack)
    except (Unknown, AttributeError):  # a user's own block may have none of the parts
        return None


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    if None in (step_attention.kernel(), fma.kernel(), vnni.kernel()):
        return None
    return native.function(SOURCE, "stack_step", *(ctypes.POINTER(kind) for kind in (Stack, Place, Desk)))
