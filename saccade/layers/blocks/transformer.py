"""The Transformer block and stack (Vaswani et al. 2017, section 3.1): the same family serves reader and writer."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saccade.config.protocols import Capabilities
from saccade.kernels.cpu import step_attention
from saccade.kernels.weights import BlockWeights, StackWeights, Unsupported, describe_norm
from saccade.layers.attention import masks
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.static_cache import FixedState, StaticSizes
from saccade.layers.blocks.experts import Choice, routed, tell
from saccade.layers.blocks.fused_step import take_fused_step
from saccade.layers.blocks.residual import Late, entered, normalised, settled
from saccade.layers.dropout import Dropout, DropRows
from saccade.layers.memory import AttentionState, KeyValue, Memory
from saccade.layers.packing import Packing
from saccade.layers.regions import region


class Residual(nn.Module):
    """A sublayer with its residual and normalisation.

    Post-norm is LayerNorm(x + f(x)), as in the paper; pre-norm is x + f(LayerNorm(x)), more stable when deep. Where
    nothing `adds`, the sublayer stands alone: LayerNorm(f(x)) or f(LayerNorm(x)). With `skip`, this share of the rows
    of a batch passes by the sublayer in training (stochastic depth).
    """

    def __init__(
        self, norm: nn.Module, *, order: Literal["post", "pre"], dropout: float, adds: bool = True, skip: float = 0.0
    ) -> None:
        super().__init__()
        self.norm, self.pre, self.adds = norm, order == "pre", adds
        self.dropout = Dropout(dropout)
        self.skip = DropRows(skip) if skip else None

    def forward(self, x: Tensor | Late, sublayer: Callable[[Tensor], Tensor]) -> Tensor | Late:
        if self.skip is not None:
            whole, skip = sublayer, self.skip
            return self._around(x, lambda y: skip(whole(y)))
        return self._around(x, sublayer)

    def _around(self, x: Tensor | Late, sublayer: Callable[[Tensor], Tensor]) -> Tensor | Late:
        if not self.adds:
            x = settled(x, self.dropout)
            return self.dropout(sublayer(self.norm(x))) if self.pre else self.norm(self.dropout(sublayer(x)))
        if self.pre or isinstance(x, Late):
            total, normal = entered(x, self.norm, self.dropout)
            return Late(total, sublayer(normal))
        return normalised(x, self.norm, plus=sublayer(x), dropout=self.dropout)


class Block(nn.Module):
    """Self-attention, attention to memory and feed-forward where there are any; each with its residual."""

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
        x: Tensor | Late,
        attention: Callable[[Tensor], Tensor],
        memory: KeyValue | None = None,
        memory_mask: Bool[Tensor, "N S"] | Packing | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "B T D"]:
        """`attention` is self-attention over a whole text or over the next positions."""
        return self.settled(self.along(x, attention, memory, memory_mask, packing)[0])

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

    def settled(self, x: Tensor | Late) -> Float[Tensor, "B T D"]:
        return settled(x, self.residuals[-1].dropout)

    def along(
        self,
        x: Tensor | Late,
        attention: Callable[[Tensor], Tensor],
        memory: KeyValue | None,
        memory_mask: Bool[Tensor, "N S"] | Packing | None,
        packing: Packing | None,
    ) -> tuple[Tensor | Late, Choice | None]:
        """The same, but the last sum may be left to the next block; and which experts were chosen, if there are any."""
        first, *others = self.residuals
        x = first(x, attention)
        if self.cross is not None:
            cross = self.cross
            x = others[0](x, lambda y: cross(y, memory, mask=memory_mask, packing=packing))
        if self.feedforward is None:
            return x, None
        feedforward, choice = self.feedforward, None

        def through(y: Tensor) -> Tensor:
            nonlocal choice
            y, choice = routed(feedforward, y)
            return y

        return others[-1](x, through), choice


def over_text(
    block: Block,
    x: Tensor | Late,
    allowed: Mask | None,
    packing: Packing | None,
    states: Tensor | None,
    keep: Tensor | Packing | None,
) -> tuple[Tensor | Late, Choice | None]:
    """One block over all positions at once, attending to memory's `states` where there are any."""
    seen = None if states is None or block.cross is None else block.cross.keys_values(states)
    return block.along(x, lambda y: block.self(y, mask=allowed, packing=packing), seen, keep, packing)


def over_text_twice(*given: Any) -> tuple[Tensor | Late, Choice | None]:
    """The same, but nothing inside is kept for the backward pass: it is computed once more."""
    return checkpoint(over_text, *given, use_reentrant=False)


KEPT, RECOMPUTED = region(over_text), region(over_text_twice)


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
        self._described: tuple[nn.Module | None, StackWeights | None, str] | None = None  # see `describe_step`
        self.narrow = narrow  # whether sums along the blocks are as narrow as autocast makes products

    @property
    def capabilities(self) -> Capabilities:
        """All of them, unless stochastic depth skips rows of a batch, which packed sequences would share."""
        skips = any(residual.skip is not None for block in self.blocks for residual in block.residuals)
        reasons = {"packed_rows": "stack skips whole rows of a batch (drop_path)"} if skips else {}
        return Capabilities(
            packed_rows=not skips, static_shapes=True, static_step=True, fused_cpu_step=True, reasons=reasons
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | Packing | None,
        memory: Memory | None = None,
        state: AttentionState | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, AttentionState | None, dict[str, Tensor]]:
        """`segments`: the number of each position's, where a score term asks for it."""
        last = self.blocks[-1].residuals[-1]
        if self.narrow and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if state is None:
            return entered(self._whole(x, mask, memory, segments), self.norm, last.dropout)[1], mask, None, {}
        x, state = self._step(x, state)
        return self.norm(x), mask, state, {}

    def _whole(
        self, x: Tensor | Late, mask: Tensor | Packing | None, memory: Memory | None, segments: Tensor | None
    ) -> Tensor | Late:
        packing = mask if isinstance(mask, Packing) else None
        # Padding stands on the right, so a causal text needs no padding mask: no real position looks to its right.
        real = None if self.causal or isinstance(mask, Packing) else mask
        if packing is not None and segments is not None:
            segments = packing.unpack(segments[..., None, None])[..., 0, 0]
        states, keep = (None, None) if memory is None else (memory.states, memory.mask)
        over = RECOMPUTED if self.recompute and self.training else KEPT
        for block, window in zip(self.blocks, self.windows, strict=True):
            x, choice = over(block, x, self.structure(real, window, segments), packing, states, keep)
            if choice is not None:
                tell(block.feedforward, choice, mask)
        return x

    def _step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        n = x.shape[1]
        seen = state.longest + n
        if seen > state.capacity:
            raise ValueError(f"the state has room for {state.capacity} positions, got {seen}; start with more")
        if (y := take_fused_step(self, x, state)) is not None:
            return y, state.advance(n)
        at = state.positions(n)
        for i, block in enumerate(self.blocks):
            memory, window = state.memory[i] if state.memory else None, self.windows[i]
            # One new position in rows of one length sees all that is there: no mask, no matrix.
            allowed = None if n == 1 and state.even and window is None else self.structure(None, window)

            def attention(
                y: Tensor, block: Any = block, cache: KeyValue = state.own[i], allowed: Mask | None = allowed
            ) -> Tensor:
                return block.self.step(y, cache, at=at, seen=seen, mask=allowed)

            x = block(x, attention, memory, state.memory_mask)
        return x, state.advance(n)

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
        at = state.lengths[:, None]
        where = masks.positions(state.capacity, x.device)
        lines = state.slots.long().expand(-1, state.capacity)
        new = lines.gather(1, at)
        memories = iter(state.memory)
        for block, cache, window in zip(self.blocks, state.own, self.windows, strict=True):

            def attention(
                y: Tensor, block: Any = block, cache: KeyValue = cache, window: int | None = window
            ) -> Tensor:
                query, key, value = block.self.turned(y, at)
                cache.keys[new, at] = key.to(cache.keys.dtype)
                cache.values[new, at] = value.to(cache.values.dtype)
                keys, values = cache.keys[lines, where], cache.values[lines, where]
                return block.self.heads.mix(
                    block.self, query, keys, values, mask=self.structure(None, window), q_pos=at, k_pos=where
                )

            seen = None
            if block.cross is not None:
                whole = next(memories)
                seen = KeyValue(whole.keys[state.source], whole.values[state.source])
            x = block(x, attention, seen, None if seen is None else state.memory_mask[state.source])
        return self.norm(x)

    # ---- its weights, for kernels

    def describe_step(self) -> StackWeights:
        """Its weights for the kernels of a decoding step; raises `Unsupported` where they cannot express it."""
        first = self.blocks[0].feedforward  # another object once weights were laid out anew
        if self._described is None or self._described[0] is not first:
            self._described = first, *self._describe()
        _, weights, reason = self._described
        if weights is None:
            raise Unsupported(reason)
        return weights

    def _describe(self) -> tuple[StackWeights | None, str]:
        orders = {residual.pre for block in self.blocks for residual in block.residuals}
        if len(orders) > 1:
            return None, "some of its blocks are pre-norm, others post-norm"
        try:
            blocks = tuple(block.describe(window) for block, window in zip(self.blocks, self.windows, strict=True))
            return StackWeights(blocks, describe_norm(self.norm), self.dim, orders.pop()), ""
        except Unsupported as error:
            return None, str(error)

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> AttentionState:
        """An empty state with room for `capacity` positions; memory's keys and values are computed here, once."""
        seen = () if memory is None else tuple(block.cross.keys_values(memory.states) for block in self.blocks)
        heads, _, head_dim = self.blocks[0].self.project.shape
        like = seen[0].keys if seen else next(self.parameters())  # of the type that keys and values will have
        mask, origins = None if memory is None else memory.mask, None
        assert not isinstance(mask, Packing), "what is decoded is not packed"
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
