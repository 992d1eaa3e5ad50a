"""The Transformer block and stack (Vaswani et al. 2017, section 3.1), for encoders (readers) and decoders (writers)."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saccade.config.protocols import Capabilities, TensorPlan
from saccade.kernels.cpu import step_attention
from saccade.kernels.weights import BlockWeights, StackWeights, Unsupported, describe_norm
from saccade.layers.attention import masks
from saccade.layers.attention.cache import AttentionState, DynamicCache, KeyValue, LayerCache
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.multihead import CrossAttention, PositionalAttention, SelfAttention
from saccade.layers.attention.scores import get_score_name
from saccade.layers.attention.static_cache import StaticSizes, StaticState
from saccade.layers.auxiliary import Aux, report_routing
from saccade.layers.blocks.experts import GateOutput, Routing, apply_feedforward
from saccade.layers.blocks.fused_step import take_fused_step
from saccade.layers.blocks.residual import Residual, add_and_normalize
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, split_mask
from saccade.layers.regions import region

RunBlock = Callable[..., tuple[Tensor, Tensor | None, GateOutput | None]]  # a block and the inputs of its forward pass


class Block(nn.Module):
    """Self-attention, optional cross-attention to memory and optional feed-forward network, each with a residual.

    Non-autoregressive writers may have positional attention in between.
    """

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
        self.residuals: Any = nn.ModuleList(residuals)  # one per sublayer, in order
        # Positional attention after self-attention and its residual: of non-autoregressive writers only.
        self.positional: PositionalAttention | None = None
        self.positional_residual: Residual | None = None

    def add_positional(self, attention: PositionalAttention, residual: Residual) -> None:
        """Add positional attention between self-attention and cross-attention (Gu et al. 2018, figure 2)."""
        self.positional, self.positional_residual = attention, residual

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
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None, GateOutput | None]:
        """Hidden states and residual stream after the block, and the gate output of its experts if it has any.

        Whole sequences attend to the memory `states`. While decoding, `cache` has the previous positions, and `memory`
        the keys and values of memory, which are computed once.
        """
        first, *others = self.residuals
        hidden, residual = first.begin_sublayer(hidden, residual)
        hidden = self.self(hidden, mask=mask, packing=packing, cache=cache)
        hidden, residual = first.end_sublayer(hidden, residual)

        if self.positional is not None and self.positional_residual is not None:
            hidden, residual = self.positional_residual.begin_sublayer(hidden, residual)
            hidden = self.positional(hidden, mask=mask, packing=packing)
            hidden, residual = self.positional_residual.end_sublayer(hidden, residual)

        if self.cross is not None:
            if memory is None and states is not None:
                memory = self.cross.project_memory(states)
            hidden, residual = others[0].begin_sublayer(hidden, residual)
            hidden = self.cross(hidden, memory=memory, mask=memory_mask, packing=packing)
            hidden, residual = others[0].end_sublayer(hidden, residual)

        gate_output = None
        if self.feedforward is not None:
            hidden, residual = others[-1].begin_sublayer(hidden, residual)
            hidden, gate_output = apply_feedforward(self.feedforward, hidden)
            hidden, residual = others[-1].end_sublayer(hidden, residual)
        return hidden, residual, gate_output

    def run(self, function: RunBlock, *inputs: Any) -> tuple[Tensor, Tensor | None, GateOutput | None]:
        """Return function(self, *inputs); a sharded block has its parameters gathered around this call."""
        return function(self, *inputs)

    @property
    def attentions(self) -> list[SelfAttention | PositionalAttention | CrossAttention]:
        return [part for part in (self.self, self.positional, self.cross) if part is not None]

    @property
    def tensor_plan(self) -> TensorPlan:
        names = ("self", "positional", "cross", "feedforward")
        residuals = [(f"residuals.{number}", residual) for number, residual in enumerate(self.residuals)]
        if self.positional_residual is not None:
            residuals.append(("positional_residual", self.positional_residual))
        skips = tuple(f"{path}.skip" for path, residual in residuals if residual.skip is not None)
        return TensorPlan(
            sublayers=tuple(name for name in names if getattr(self, name) is not None),
            norms=tuple(f"{path}.norm" for path, _ in residuals),
            dropouts=(*(f"{path}.dropout" for path, _ in residuals), *skips),
        )

    @property
    def tensor_problem(self) -> str:
        """Why the block cannot be split over processes; empty if it can."""
        if getattr(self.feedforward, "experts_per_token", None) is not None:
            return "experts are not split"
        for part in self.attentions:
            if part.heads.score is not None:
                return f"attention score {get_score_name(part.heads.score)} is not split"
            if isinstance(part.heads.out, nn.Identity):
                return 'heads read a slice of the input each (head_projection = "split"), which is not split'
        return ""

    @property
    def repeated_passes(self) -> bool:
        """Whether `repeated_passes.py` can run it: plain dot products, and the feed-forward network declares it."""
        plain = self.self.heads.term is None and all(part.heads.is_dot_product for part in self.attentions)
        return plain and getattr(self.feedforward, "repeated_passes", False)

    def describe(self, window: int | None) -> BlockWeights:
        """The weights for the kernels of a decoding step."""
        feedforward: Any = self.feedforward
        if feedforward is None:
            raise Unsupported("it has no feed-forward network")
        if self.positional is not None or self.self.excludes_self:
            raise Unsupported("it attends by position, or not to itself, as writers do that predict all tokens at once")
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


def checkpoint_block(
    block: Block, *inputs: Tensor | Mask | Packing | None
) -> tuple[Tensor, Tensor | None, GateOutput | None]:
    """`Block.forward` with activation checkpointing: activations are recomputed in the backward pass."""
    return checkpoint(Block.forward, block, *inputs, use_reentrant=False)


PLAIN_BLOCK, CHECKPOINTED_BLOCK = region(Block.forward), region(checkpoint_block)


class TransformerStack(nn.Module):
    """A sequence of blocks; `causal` for a writer, with a final `norm` if the blocks are pre-norm."""

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
        autocast_residual: bool = False,
    ) -> None:
        """`window` is the radius of restricted self-attention, for all blocks or for each.

        With `autocast_residual`, the residual stream has the dtype of autocast instead of float32.
        """
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # Any: ModuleList does not know the type of its items
        self.windows = list(window) if isinstance(window, Sequence) else [window] * len(blocks)
        self.norm = norm if norm is not None else nn.Identity()
        self.dim, self.causal, self.recompute = dim, causal, recompute
        self.runs_hooks = False  # whether blocks have hooks that gather their parameters, see train/distributed
        self._described: tuple[nn.Module | None, StackWeights] | None = None  # see `describe_step`
        self.autocast_residual = autocast_residual
        problems = (part.heads.score_problem for block in blocks for part in block.attentions)
        self.score_problem = next(filter(None, problems), "")  # why torch.compile and CUDA graphs cannot hold a score

    @functools.cached_property
    def product_problem(self) -> str:
        """Why decoding kernels do not fit: a score is no dot product, or values have a width of their own; else empty.

        Both stay as they were built.
        """
        heads = [part.heads for block in self.blocks for part in block.attentions]
        others = [get_score_name(part.score) for part in heads if not part.is_dot_product]
        if any(part.has_own_value_width for part in heads):
            return "values have another width than keys (value_dim)"
        return f"attention score {others[0]} is not a dot product" if others else ""

    @functools.cached_property
    def tensor_problem(self) -> str:
        """Why the stack cannot be split over processes; empty if it can."""
        return next(filter(None, (block.tensor_problem for block in self.blocks)), "")

    @property
    def tensor_plan(self) -> TensorPlan:
        return TensorPlan(is_stack=True, norms=("norm",))

    @property
    def shard_units(self) -> list[nn.Module]:
        """The blocks whose parameters can be gathered one block at a time: those that share none with another."""
        blocks = list(dict.fromkeys(self.blocks))
        owners = Counter(id(parameter) for block in blocks for parameter in block.parameters())
        return [block for block in blocks if all(owners[id(parameter)] == 1 for parameter in block.parameters())]

    @property
    def capabilities(self) -> Capabilities:
        """All, except where stochastic depth skips whole rows, which packed sequences share, or for other scores.

        Decoding steps on static buffers and in C need dot products, CUDA graphs scores with static shapes.
        """
        product = self.product_problem
        repeats = not self.causal and not any(self.windows) and all(block.repeated_passes for block in self.blocks)
        skips = any(residual.skip is not None for block in self.blocks for residual in block.residuals)
        reasons = {
            "packed_rows": "stack skips whole rows of a batch (drop_path)" if skips else self.score_problem,
            "static_shapes": self.score_problem,
            "static_step": product or self.score_problem,
            "fused_cpu_step": product,
            "tensor_parallel": self.tensor_problem,
        }
        return Capabilities(
            **{name: not reason for name, reason in reasons.items()},
            repeated_passes=repeats,
            reasons={name: reason for name, reason in reasons.items() if reason},
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
        if self.autocast_residual and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if state is not None:
            x, state = self._step(x, state)
            return x, mask, state, {}
        packing, padding = split_mask(mask)
        # Padding is on the right, so causal self-attention needs no padding mask: no real position sees it.
        real = None if self.causal else padding
        if packing is not None and segments is not None:
            segments = packing.unpack(segments[..., None, None])[..., 0, 0]
        states, memory_mask = (None, None) if memory is None else (memory.states, memory.mask)
        region_of_block = CHECKPOINTED_BLOCK if self.recompute and self.training else PLAIN_BLOCK
        run_block = region_of_block.select(not self.score_problem)
        routed_mask = padding if packing is None else packing.keep
        routing: list[Routing] = []
        hidden, residual = x, None
        for block, window in zip(self.blocks, self.windows, strict=True):
            allowed = self.build_mask(real, window, segments)
            inputs = hidden, residual, allowed, packing, states, memory_mask
            hidden, residual, gate_output = (
                block.run(run_block, *inputs) if self.runs_hooks else run_block(block, *inputs)
            )
            if gate_output is not None:
                routing.append(Routing(block.feedforward, gate_output, routed_mask))
        hidden, _ = add_and_normalize(hidden, residual, self.norm, self.blocks[-1].residuals[-1].dropout)
        return hidden, mask, None, report_routing(routing)

    def _step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        n = x.shape[1]
        length = state.max_length + n
        if length > state.capacity:
            raise ValueError(f"the state has capacity {state.capacity}, got {length} positions; start with more")
        if (y := take_fused_step(self, self.blocks[0].feedforward, x, state)) is not None:
            return self.norm(y), state.advance(n)
        positions = state.get_positions(n)
        caches = [DynamicCache(layer, positions, length, state.is_uniform) for layer in state.self_caches]
        # One new position in rows of equal length may attend to the whole cache, without a mask.
        attend_all = n == 1 and state.is_uniform
        y = self.step_blocks(x, caches, state.cross_caches, state.memory_mask, attend_all=attend_all)
        return y, state.advance(n)

    def step_blocks(
        self,
        hidden: Float[Tensor, "B n D"],
        caches: Sequence[LayerCache],
        memory: Sequence[KeyValue],
        memory_mask: Bool[Tensor, "N S"] | None,
        *,
        attend_all: bool = False,
    ) -> Float[Tensor, "B n D"]:
        """Decode the next positions of each row, given a cache per block and the keys and values of memory, if any.

        `attend_all`: they may attend to every cached position, unless a block has a window.
        """
        residual = None
        for i, (block, window) in enumerate(zip(self.blocks, self.windows, strict=True)):
            mask = None if attend_all and window is None else self.build_mask(None, window)
            keys_values = memory[i] if memory else None
            hidden, residual, _ = block(
                hidden, residual, mask, memory_mask=memory_mask, cache=caches[i], memory=keys_values
            )
        return add_and_normalize(hidden, residual, self.norm, self.blocks[-1].residuals[-1].dropout)[0]

    def build_mask(
        self, keep: Bool[Tensor, "B T"] | None, window: int | None, segments: Int[Tensor, "B T"] | None = None
    ) -> Mask | None:
        """The self-attention mask of a block with this window; None if everything may be attended."""
        parts: list[Mask] = [masks.causal()] if self.causal else []
        if keep is not None:
            parts.append(masks.padding(keep))
        if window is not None:
            parts.append(masks.window(window))
        if segments is not None:
            parts.append(masks.segments(segments, segments))
        return reduce(and_, parts) if parts else None

    # ---- decoding on preallocated buffers for CUDA graphs: capability `static_step`

    def start_static(self, sizes: StaticSizes) -> StaticState:
        """Allocate buffers for decoding on the device of the weights."""
        first = next(self.parameters())
        own = [block.self.allocate_cache(1, 1, like=first).keys.shape[2:] for block in self.blocks]
        cross = [block.cross.memory.shape for block in self.blocks if block.cross is not None]
        return StaticState.allocate(
            [(heads, head_dim) for heads, head_dim in own],
            [(heads, head_dim) for heads, _, head_dim in cross],  # as many as query heads, also with kv_heads
            sizes=sizes,
            like=first,
        )

    def project_memory(self, states: Float[Tensor, "B S M"]) -> list[KeyValue]:
        """The keys and values of memory for each block with cross-attention."""
        return [block.cross.project_memory(states) for block in self.blocks if block.cross is not None]

    def step_static(self, x: Float[Tensor, "R 1 D"], state: StaticState) -> Float[Tensor, "R 1 D"]:
        """Decode one position of every row; the caller advances `lengths`. Reference for `kernels/triton/step.py`."""
        memory = [
            KeyValue(layer.keys[state.memory_rows], layer.values[state.memory_rows]) for layer in state.cross_caches
        ]
        memory_mask = state.memory_mask[state.memory_rows] if memory else None
        return self.step_blocks(x, state.get_layer_caches(), memory, memory_mask)

    # ---- weights for kernels

    def describe_step(self) -> StackWeights:
        """The weights for the kernels of a decoding step; raises `Unsupported` where these cannot express the stack.

        Weights that are packed for a CPU are constant, so their description is cached.
        """
        first = self.blocks[0].feedforward  # replaced when weights are packed
        if self._described is not None and self._described[0] is first:
            return self._described[1]
        orders = {residual.pre_norm for block in self.blocks for residual in block.residuals}
        if len(orders) > 1:
            raise Unsupported("some of its blocks are pre-norm, others post-norm")
        blocks = tuple(block.describe(window) for block, window in zip(self.blocks, self.windows, strict=True))
        weights = StackWeights(blocks, describe_norm(self.norm), self.dim, orders.pop())
        if blocks[0].feedforward.up.native is not None:
            self._described = first, weights
        return weights

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> AttentionState:
        """An empty state for up to `capacity` positions, with the keys and values of memory, computed once."""
        projected = () if memory is None else tuple(block.cross.project_memory(memory.states) for block in self.blocks)
        # Has the dtype and device of keys and values; where all weights are packed, these are float32 on a CPU.
        like = projected[0].keys if projected else next(self.parameters(), torch.empty(0))
        mask, origins = None if memory is None else memory.padding, None
        if like.device.type == "cpu":  # no synchronization
            fused = bool(projected) and step_attention.can_use_kernel(projected[0].keys)
            projected = tuple(layer.to_head_major() if fused else layer.to_feature_major() for layer in projected)
            mask = None if mask is None or mask.all() else mask
            origins = torch.zeros(rows, capacity, dtype=torch.long)
        return AttentionState(
            self_caches=tuple(block.self.allocate_cache(rows, capacity, like=like) for block in self.blocks),
            cross_caches=projected,
            memory_mask=mask,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
            max_length=0,
            is_uniform=True,
            origins=origins,
        )
