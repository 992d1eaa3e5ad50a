"""One decoding step of a Transformer stack on a CPU in one call of C, where its products are in C too.

It computes what the blocks compute, from their own weights; for stacks of other parts the blocks go on by themselves.
"""

import ctypes
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers import fma, native, step_attention, vnni
from saccade.layers.fma import FmaLinear
from saccade.layers.memory import AttentionState
from saccade.layers.prepared import PreparedHeads
from saccade.layers.record import recording
from saccade.layers.step_attention import Part
from saccade.layers.vnni import VnniLinear

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
        blocks = [self._block(block) for block in stack.blocks]
        self.blocks = (Block * len(blocks))(*blocks)
        self.dim, self.heads, self.crosses = stack.dim, blocks[0].heads, crosses.pop()
        self.stack = Stack(
            ctypes.addressof(self.blocks), address(step_attention.kernel()), len(blocks), stack.dim, orders.pop(),
            self.crosses,
        )  # fmt: skip

    def __call__(self, x: Float[Tensor, "B 1 D"], state: AttentionState) -> Float[Tensor, "B 1 D"]:
        """One position in every row; the caller moves the state."""
        rows, seen = x.shape[0], state.longest + 1
        memories, source = state.memory[0].keys.shape[:2] if self.crosses else (1, 0)
        y = x.contiguous().clone()
        caches = (Cache * len(self.blocks))(*self._caches(state))
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        place = Place(ctypes.addressof(caches), None if keep is None else keep.data_ptr(), rows, seen, memories, source)
        sizes = [
            rows * self.dim, rows * self.widest, rows * self.widest, rows * self.dim,
            self.heads * max(rows * seen, memories * source), rows * self.room,
        ]  # fmt: skip
        desk = x.new_empty(sum(sizes))
        at, starts = desk.data_ptr(), []
        for size in sizes:
            starts.append(at)
            at += size * desk.element_size()
        take: Any = kernel()
        take(self.stack, place, Desk(y.data_ptr(), *starts, torch.get_num_threads()))
        return y

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
        asks = [Linear(), Linear()] if cross is None else [self._linear(cross.query), self._linear(cross.heads.out)]
        norms = (Norm * 3)(*(self._norm(residual.norm) for residual in block.residuals))
        return Block(
            self._linear(attention.project), self._linear(attention.heads.out), *asks,
            *(self._linear(part) for part in feedforward), norms, heads, features, attention.heads.scale,
            0.0 if cross is None else cross.heads.scale,
        )  # fmt: skip

    def _linear(self, part: Any) -> Linear:
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
        self.widest = max(self.widest, described.outputs)
        return Linear(address(multiply), ctypes.addressof(described))

    def _norm(self, norm: Any) -> Norm:
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            raise Unknown
        self.parts.append(norm)
        return Norm(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps)


# By stack: its first network, which is another one when weights are laid out anew, and what takes its steps.
KNOWN: WeakKeyDictionary[Any, tuple[Any, WholeStep | None]] = WeakKeyDictionary()


def whole_step(stack: Any, x: Float[Tensor, "B n D"], state: AttentionState) -> WholeStep | None:
    """What takes this step in one call; None where the blocks have to."""
    alone = x.shape[1] == 1 and state.even and x.dtype == torch.float32 and x.device.type == "cpu"
    if not alone or torch.is_grad_enabled() or recording() or kernel() is None:
        return None
    first, known = stack.blocks[0].feedforward, KNOWN.get(stack)
    if known is None or known[0] is not first:
        known = KNOWN[stack] = first, described(stack)
    found = known[1]
    if found is None:
        return None
    caches = [part for pair in (*state.own[:1], *state.memory[:1]) for part in (pair.keys, pair.values)]
    return found if step_attention.is_fused(*caches) else None


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
