"""The Transformer block and stack (Vaswani et al. 2017, section 3.1): the same family serves reader and writer."""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saccade.config.protocols import Capabilities
from saccade.kernels.cpu import step_attention
from saccade.kernels.weights import BlockWeights, StackWeights, Unsupported, describe_norm
from saccade.layers.attention import masks
from saccade.layers.attention.cache import AttentionState, DynamicCache, KeyValue, LayerCache
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.static_cache import FixedState, StaticSizes
from saccade.layers.auxiliary import Aux, report_routing
from saccade.layers.blocks.experts import Choice, Routing, routed
from saccade.layers.blocks.fused_step import take_fused_step
from saccade.layers.blocks.residual import Residual, add_and_normalize
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, split_mask
from saccade.layers.regions import region


class Block(nn.Module):
    """Self-attention, attention to memory and feed-forward where there are any; each with its residual connection."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: nn.Module | None,
        *,
        residuals: Sequence[Residual],
        cross: CrossAttention | None = None,
    ) -> None:
        super().__init__()
        self.self = attention
        self.cross = cross
        self.feedforward = feedforward
        self.residuals: Any = nn.ModuleList(residuals)  # one for each sublayer, in the order of use

    def forward(
        self,
        hidden: Float[Tensor, "B T D"],
        residual: Float[Tensor, "B T D"] | None = None,
        mask: Mask | None = None,
        packing: Packing | None = None,
        states: Float[Tensor, "N S M"] | None = None,
        memory_mask: Bool[Tensor, "N S"] | Packing | None = None,
        cache: LayerCache | None = None,
        memory: KeyValue | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None, Choice | None]:
        """Hidden states and residual stream after the block, and which experts were chosen where there are any.

        A whole sequence attends to memory's `states`. While decoding, `cache` has the positions before, and `memory`
        the keys and values of memory, which were computed once.
        """
        first, *others = self.residuals
        hidden, residual = first.before(hidden, residual)
        hidden = self.self(hidden, mask=mask, packing=packing, cache=cache)
        hidden, residual = first.after(hidden, residual)

        if self.cross is not None:
            if memory is None and states is not None:
                memory = self.cross.keys_values(states)
            hidden, residual = others[0].before(hidden, residual)
            hidden = self.cross(hidden, memory, mask=memory_mask, packing=packing)
            hidden, residual = others[0].after(hidden, residual)

        choice = None
        if self.feedforward is not None:
            hidden, residual = others[-1].before(hidden, residual)
            hidden, choice = routed(self.feedforward, hidden)
            hidden, residual = others[-1].after(hidden, residual)
        return hidden, residual, choice

    @property
    def repeated_passes(self) -> bool:
        """Whether `filling` can run it: scores have no term of their own, and the feed-forward network declares it."""
        return self.self.heads.term is None and getattr(self.feedforward, "repeated_passes", False)

    def describe(self, window: int | None) -> BlockWeights:
        """Its weights for the kernels of a decoding step."""
        feedforward: Any = self.feedforward
        if feedforward is None:
            raise Unsupported("it has no feed-forward network")
        if not all(residual.adds for residual in self.residuals):
            raise Unsupported("its sublayers have no residual connection")
        return BlockWeights(
            self.self.describe(),
            None if self.cross is None else self.cross.describe(),
            feedforward.describe(),
            tuple(describe_norm(residual.norm) for residual in self.residuals),
            window,
            any(residual.skip is not None for residual in self.residuals),
        )


def recompute_block(
    block: Block, *inputs: Tensor | Mask | Packing | None
) -> tuple[Tensor, Tensor | None, Choice | None]:
    """The same, but nothing inside is kept for the backward pass: it is computed once more."""
    return checkpoint(Block.forward, block, *inputs, use_reentrant=False)


KEPT, RECOMPUTED = region(Block.forward), region(recompute_block)


class TransformerStack(nn.Module):
    """Blocks one after the other; `causal` for a writer, `norm` at the end where the blocks are pre-norm."""

    operation = "attention"  # for counts of parameters by operation

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        dim: int,
        causal: bool = False,
        window: Sequence[int | None] | int | None = None,
        norm: nn.Module | None = None,
        recompute: bool = False,
        narrow: bool = False,
    ) -> None:
        """`window` is that of all blocks, or of each."""
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # of Block, which ModuleList's type cannot say
        self.windows = list(window) if isinstance(window, Sequence) else [window] * len(blocks)
        self.norm = norm if norm is not None else nn.Identity()
        self.dim, self.causal, self.recompute = dim, causal, recompute
        self._described: tuple[nn.Module | None, StackWeights] | None = None  # see `describe_step`
        self.narrow = narrow  # whether sums along the blocks are as narrow as autocast makes products

    @property
    def capabilities(self) -> Capabilities:
        """All of them, unless stochastic depth skips rows of a batch, which packed sequences would share."""
        skips = any(residual.skip is not None for block in self.blocks for residual in block.residuals)
        reasons = {"packed_rows": "stack skips whole rows of a batch (drop_path)"} if skips else {}
        repeats = not self.causal and not any(self.windows) and all(block.repeated_passes for block in self.blocks)
        return Capabilities(
            packed_rows=not skips,
            static_shapes=True,
            static_step=True,
            fused_cpu_step=True,
            repeated_passes=repeats,
            reasons=reasons,
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | Packing | None,
        memory: Memory | None = None,
        state: AttentionState | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, AttentionState | None, Aux]:
        """Hidden states after all blocks, mask, state and aux; with a state, only the next positions are processed.

        `segments` is the segment of each position, for score terms that depend on it.
        """
        if self.narrow and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if state is not None:
            x, state = self._step(x, state)
            return x, mask, state, {}
        packing, padding = split_mask(mask)
        # Padding stands on the right, so a causal text needs no padding mask: no real position looks to its right.
        real = None if self.causal else padding
        if packing is not None and segments is not None:
            segments = packing.unpack(segments[..., None, None])[..., 0, 0]
        states, keep = (None, None) if memory is None else (memory.states, memory.mask)
        run_block = (RECOMPUTED if self.recompute and self.training else KEPT).select()
        counted = padding if packing is None else packing.keep
        routing: list[Routing] = []
        hidden, residual = x, None
        for block, window in zip(self.blocks, self.windows, strict=True):
            allowed = self.structure(real, window, segments)
            hidden, residual, choice = run_block(block, hidden, residual, allowed, packing, states, keep)
            if choice is not None:
                routing.append(Routing(block.feedforward, choice, counted))
        hidden, _ = add_and_normalize(hidden, residual, self.norm, self.blocks[-1].residuals[-1].dropout)
        return hidden, mask, None, report_routing(routing)

    def _step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        n = x.shape[1]
        seen = state.longest + n
        if seen > state.capacity:
            raise ValueError(f"the state has room for {state.capacity} positions, got {seen}; start with more")
        if (y := take_fused_step(self, self.blocks[0].feedforward, x, state)) is not None:
            return self.norm(y), state.advance(n)
        at = state.positions(n)
        caches = [DynamicCache(layer, at, seen) for layer in state.own]
        # One new position in rows of one length sees all that is there: no mask, no matrix.
        sees_all = n == 1 and state.even
        return self.step_blocks(x, caches, state.memory, state.memory_mask, sees_all=sees_all), state.advance(n)

    def step_blocks(
        self,
        hidden: Float[Tensor, "B n D"],
        caches: Sequence[LayerCache],
        memory: Sequence[KeyValue],
        memory_mask: Bool[Tensor, "N S"] | None,
        *,
        sees_all: bool = False,
    ) -> Float[Tensor, "B n D"]:
        """The next positions of each row, given a cache for each block and memory's keys and values, if there are any.

        `sees_all`: they may attend to every position in the caches, unless a block has a window.
        """
        residual = None
        for i, (block, window) in enumerate(zip(self.blocks, self.windows, strict=True)):
            mask = None if sees_all and window is None else self.structure(None, window)
            seen = memory[i] if memory else None
            hidden, residual, _ = block(hidden, residual, mask, memory_mask=memory_mask, cache=caches[i], memory=seen)
        return add_and_normalize(hidden, residual, self.norm, self.blocks[-1].residuals[-1].dropout)[0]

    def structure(
        self, keep: Bool[Tensor, "B T"] | None, window: int | None, segments: Int[Tensor, "B T"] | None = None
    ) -> Mask | None:
        """What a query may see inside this stack, in a block with such a window."""
        parts: list[Mask] = [masks.causal()] if self.causal else []
        if keep is not None:
            parts.append(masks.padding(keep))
        if window is not None:
            parts.append(masks.window(window))
        if segments is not None:
            parts.append(masks.segments(segments, segments))
        return reduce(and_, parts) if parts else None

    # ---- steps on buffers that never move, as a CUDA graph holds them: what `static_step` declares

    def start_static(self, sizes: StaticSizes) -> FixedState:
        """Buffers for decoding on the device of the weights."""
        heads, _, head_dim = self.blocks[0].self.project.shape
        attends = sum(block.cross is not None for block in self.blocks)
        return FixedState.empty(
            len(self.blocks), attends, (heads, head_dim), sizes=sizes, like=next(self.parameters())
        )  # fmt: skip

    def project_memory(self, states: Float[Tensor, "B S M"]) -> list[KeyValue]:
        """The keys and values of memory in each block that attends to it."""
        return [block.cross.keys_values(states) for block in self.blocks if block.cross is not None]

    def step_static(self, x: Float[Tensor, "R 1 D"], state: FixedState) -> Float[Tensor, "R 1 D"]:
        """One position further in every row; the caller moves `lengths`. The reference of `kernels/triton/step.py`."""
        memory = [KeyValue(layer.keys[state.source], layer.values[state.source]) for layer in state.memory]
        memory_mask = state.memory_mask[state.source] if memory else None
        return self.step_blocks(x, state.layer_caches(), memory, memory_mask)

    # ---- its weights, for kernels

    def describe_step(self) -> StackWeights:
        """Its weights for the kernels of a decoding step; raises `Unsupported` where they cannot express it.

        Weights that were laid out for a CPU do not change any more, and are described once.
        """
        first = self.blocks[0].feedforward  # another object once weights were laid out anew
        if self._described is not None and self._described[0] is first:
            return self._described[1]
        orders = {residual.pre for block in self.blocks for residual in block.residuals}
        if len(orders) > 1:
            raise Unsupported("some of its blocks are pre-norm, others post-norm")
        blocks = tuple(block.describe(window) for block, window in zip(self.blocks, self.windows, strict=True))
        weights = StackWeights(blocks, describe_norm(self.norm), self.dim, orders.pop())
        if blocks[0].feedforward.up.native is not None:
            self._described = first, weights
        return weights

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> AttentionState:
        """An empty state with room for `capacity` positions; memory's keys and values are computed here, once."""
        seen = () if memory is None else tuple(block.cross.keys_values(memory.states) for block in self.blocks)
        heads, _, head_dim = self.blocks[0].self.project.shape
        like = seen[0].keys if seen else next(self.parameters())  # of the type that keys and values will have
        mask, origins = None if memory is None else memory.padding, None
        if like.device.type == "cpu":  # where asking costs nothing
            fused = bool(seen) and step_attention.is_fused(seen[0].keys)
            seen = tuple(layer.by_head() if fused else layer.by_feature() for layer in seen)
            mask = None if mask is None or mask.all() else mask
            origins = torch.zeros(rows, capacity, dtype=torch.long)
        return AttentionState(
            own=tuple(KeyValue.empty(rows, capacity, heads, head_dim, like=like) for _ in self.blocks),
            memory=seen,
            memory_mask=mask,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
            longest=0,
            even=True,
            origins=origins,
        )
