"""One decoding step of a Transformer stack on a CPU in a single C call, for stacks whose linear layers run in C too.

Computes the same as the blocks (`TransformerStack._step` is the reference) from the weights that they describe;
`prepare_step` raises `Unsupported` for stacks that it cannot express.
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
from saccade.kernels.cpu.step_attention import TensorView
from saccade.kernels.memory import check_product
from saccade.kernels.weights import BlockWeights, LinearWeights, NormWeights, StackWeights, Unsupported

SOURCE = Path(__file__).with_suffix(".c")
POINTER, INT64 = ctypes.c_void_p, ctypes.c_int64


class Linear(ctypes.Structure):
    _fields_ = [("multiply", POINTER), ("product", POINTER)]


class Norm(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("epsilon", ctypes.c_float)]


class Block(ctypes.Structure):
    _fields_ = [
        *((name, Linear) for name in ("project", "out", "query", "cross_out", "up", "down")),
        ("norms", Norm * 3),
        *((name, INT64) for name in ("heads", "head_dim")),
        *((name, ctypes.c_float) for name in ("scale", "cross_scale")),
    ]


class Cache(ctypes.Structure):
    _fields_ = [(name, TensorView) for name in ("key", "value", "memory_key", "memory_value")]


class Stack(ctypes.Structure):
    _fields_ = [
        ("blocks", POINTER), ("attend", POINTER), ("num_blocks", INT64), ("dim", INT64), ("pre_norm", ctypes.c_int),
        ("has_cross_attention", ctypes.c_int),
    ]  # fmt: skip


class StepPosition(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("caches", "keep")),
        *((name, INT64) for name in ("rows", "length", "memory_rows", "memory_length")),
    ]


class Scratch(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("x", "normalized", "hidden", "attended", "y", "scores", "scratch")),
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
    """The part of a writer's state that the kernel reads; all rows have the same length."""

    @property
    def self_caches(self) -> Sequence[KeyValuePair]: ...  # one per block

    @property
    def cross_caches(self) -> Sequence[KeyValuePair]: ...

    @property
    def memory_mask(self) -> Tensor | None: ...

    @property
    def lengths(self) -> Tensor: ...

    @property
    def max_length(self) -> int: ...

    @property
    def origins(self) -> Tensor | None: ...  # (B, L): the row that first wrote each cached position


class StackStep:
    """The C description of a stack; called with the input of a step."""

    def __init__(self, weights: StackWeights) -> None:
        crosses = {block.cross is not None for block in weights.blocks}
        if len(crosses) > 1:
            raise Unsupported("only some of its blocks attend to memory")
        self.kept_alive: list[Any] = []  # owners of the memory that C points to
        self.max_width, self.scratch_floats = 0, 0
        # weak references to tensors of the last state, and its caches
        self.latest_caches: tuple[tuple[Any, ...], Any] = (
            (),
            None,
        )
        blocks = [self._build_block(block) for block in weights.blocks]
        self.blocks = (Block * len(blocks))(*blocks)
        self.dim, self.heads, self.has_cross_attention = weights.dim, blocks[0].heads, crosses.pop()
        self.stack = Stack(
            ctypes.addressof(self.blocks), get_address(step_attention.load_kernel()), len(blocks), weights.dim,
            weights.pre_norm, self.has_cross_attention,
        )  # fmt: skip

    def __call__(self, x: Float[Tensor, "B 1 D"], state: CachedState, caches: Any) -> Float[Tensor, "B 1 D"]:
        """Decode one position of every row, with the caches of `find_caches`; the caller advances the state."""
        y = x.contiguous().clone()
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        position = self.build_position(state, caches, keep)
        kernel: Any = load_kernel()
        kernel(self.stack, position, self.allocate_scratch(y, position, steps=1))
        return y

    def build_position(self, state: CachedState, caches: Any, keep: Tensor | None) -> StepPosition:
        """The arguments that describe the next position."""
        memory_shape = state.cross_caches[0].keys.shape[:2] if self.has_cross_attention else (1, 0)
        mask = None if keep is None else keep.data_ptr()
        return StepPosition(ctypes.addressof(caches), mask, len(state.lengths), state.max_length + 1, *memory_shape)

    def allocate_scratch(self, x: Float[Tensor, "B 1 D"], position: StepPosition, *, steps: int) -> Scratch:
        """Buffers for the intermediate results of up to `steps` steps."""
        rows, length = position.rows, position.length + steps - 1
        sizes = [
            rows * self.dim, rows * self.max_width, rows * self.max_width, rows * self.dim,
            self.heads * max(rows * length, position.memory_rows * position.memory_length), rows * self.scratch_floats,
        ]  # fmt: skip
        check_product(1, sum(sizes))
        buffer = x.new_empty(sum(sizes))
        pointer, pointers = buffer.data_ptr(), []
        for size in sizes:
            pointers.append(pointer)
            pointer += size * buffer.element_size()
        scratch = Scratch(x.data_ptr(), *pointers, torch.get_num_threads())
        scratch.owner = buffer  # keeps the memory alive
        return scratch

    def find_caches(self, state: CachedState) -> Any:
        """Pointers to the keys and values of a state, reused from step to step; None where C cannot read them."""
        pairs = (*state.self_caches[:1], *state.cross_caches[:1])
        known, found = self.latest_caches
        if len(known) == len(pairs) and all(part() is pair.keys for part, pair in zip(known, pairs, strict=True)):
            return found
        fused = step_attention.can_use_kernel(*(part for pair in pairs for part in (pair.keys, pair.values)))
        found = (Cache * len(self.blocks))(*self._build_caches(state)) if fused else None
        self.latest_caches = tuple(weakref.ref(pair.keys) for pair in pairs), found
        return found

    def _build_caches(self, state: CachedState) -> Iterable[Cache]:
        for i, cache in enumerate(state.self_caches):
            pairs = [cache, state.cross_caches[i]] if self.has_cross_attention else [cache]
            yield Cache(
                *(
                    TensorView(part.data_ptr(), *part.stride()[:3])
                    for pair in pairs
                    for part in (pair.keys, pair.values)
                )
            )

    def _build_block(self, block: BlockWeights) -> Block:
        attention, cross, feedforward = block.attention, block.cross, block.feedforward
        if block.window is not None or block.stochastic_depth or attention.rotary_base is not None:
            raise Unsupported("the C step supports no window, no stochastic depth and no rotary positions")
        if feedforward.gate is not None or not feedforward.up.native_linear.relu:
            raise Unsupported("the C step supports only ReLU, without a gate")
        if attention.head_dim > step_attention.MAX_HEAD_DIM:
            raise Unsupported(f"its heads are wider than {step_attention.MAX_HEAD_DIM}")
        cross_linears = [Linear(), Linear()]
        if cross is not None:
            cross_linears = [self.build_linear(cross.project), self.build_linear(cross.out)]
        qkv_width, hidden_dim = 3 * attention.heads * attention.head_dim, feedforward.up.native_linear.out_features
        self.max_width = max(self.max_width, qkv_width, hidden_dim)
        norms = (Norm * 3)(*map(self.build_norm, block.norms))
        return Block(
            self.build_linear(attention.project), self.build_linear(attention.out), *cross_linears,
            self.build_linear(feedforward.up), self.build_linear(feedforward.down), norms, attention.heads,
            attention.head_dim, attention.scale, 0.0 if cross is None else cross.scale,
        )  # fmt: skip

    def build_linear(self, weights: LinearWeights) -> Linear:
        linear = weights.native_linear
        self.scratch_floats = max(self.scratch_floats, linear.scratch_floats)
        self.kept_alive += [linear, linear.struct]
        return Linear(get_address(linear.multiply), ctypes.addressof(linear.struct))

    def build_norm(self, norm: NormWeights) -> Norm:
        if norm.kind != "layer" or norm.weight is None or norm.bias is None:
            raise Unsupported("the C step supports no norm but LayerNorm")
        self.kept_alive.append(norm)
        return Norm(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.epsilon)


# By description: the prepared step, or the reason why it is unsupported.
PREPARED: WeakKeyDictionary[StackWeights, tuple[StackStep | None, str]] = WeakKeyDictionary()


def prepare_step(weights: StackWeights) -> StackStep:
    """The C step of a stack, built once per description; raises `Unsupported` where C cannot express the stack."""
    if load_kernel() is None:
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


def get_address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(1)
def load_kernel() -> Any:
    """The compiled function; None where C kernels are not available."""
    if None in (step_attention.load_kernel(), fma.load_kernel(), vnni.load_kernel()):
        return None
    return native.load_function(
        SOURCE, "stack_step", *(ctypes.POINTER(kind) for kind in (Stack, StepPosition, Scratch))
    )
