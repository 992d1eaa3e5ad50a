"""Residual layers that can be computed backwards, so that nothing between them is kept (Gomez et al. 2017; Kitaev et
al. 2020, section 3).

y1 = x1 + F(x2), y2 = x2 + G(y1); from which x2 = y2 - G(y1) and x1 = y1 - F(x2). However many layers there are, the
backward pass needs the outputs of the last one, the random state of each, and the few integers by which F chose.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from saccade.layers.attention.cache import AttentionState, KeyValue
from saccade.layers.auxiliary import Aux
from saccade.layers.dropout import Dropout
from saccade.layers.record import recording


class ReversibleBlock(nn.Module):
    """F is attention and G is feed-forward, each after its own norm.

    `attention(x, mask=..., kept=...)` gives its sum and what it chose, and chooses the same again when that is given
    back. G treats each position alone; with `chunk`, so many at a time (Kitaev et al. 2020, equation 10).
    """

    def __init__(
        self,
        attention: nn.Module,
        feedforward: nn.Module,
        *,
        norms: Sequence[nn.Module],
        dropout: float = 0.0,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.attention: Any = attention  # with `step`, where it is to write, which the type of modules cannot say
        self.feedforward = feedforward
        self.norms = nn.ModuleList(norms)  # that of attention, that of feed-forward
        self.dropout, self.chunk = Dropout(dropout), chunk

    def forward(
        self, x1: Float[Tensor, "B T D"], x2: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
        """The plain layers, for which autograd keeps what it needs."""
        y1 = x1 + self.mix(x2, mask)[0]
        return y1, x2 + self.change(y1)

    def step(
        self,
        x1: Float[Tensor, "B n D"],
        x2: Float[Tensor, "B n D"],
        cache: KeyValue,
        *,
        at: Int[Tensor, "b n"],
        seen: int,
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D"]]:
        """The same for the next n positions of each row."""
        y1 = x1 + self.dropout(self.attention.step(self.norms[0](x2), cache, at=at, seen=seen))
        return y1, x2 + self.change(y1)

    def mix(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None, kept: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """F, and what it chose."""
        y, kept = self.attention(self.norms[0](x), mask=mask, kept=kept)
        return self.dropout(y), kept

    def change(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """G"""
        return torch.cat([self.change_piece(piece) for piece in self.pieces(x)], 1)

    def change_piece(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B t D"]:
        return self.dropout(self.feedforward(self.norms[1](x)))

    def pieces(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, ...]:
        return (x,) if self.chunk is None else x.split(self.chunk, 1)


class ReversibleStack(nn.Module):
    """Both halves begin as the input and stand side by side in the output, which is twice as wide."""

    operation = "attention"  # for counts of parameters by operation

    def __init__(self, blocks: Sequence[ReversibleBlock], *, dim: int, norm: nn.Module | None = None) -> None:
        """`norm` is one of 2 `dim` features."""
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # of ReversibleBlock, which ModuleList's type cannot say
        self.norm = norm if norm is not None else nn.Identity()
        self.entry, self.dim = dim, 2 * dim

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: None = None,
        state: AttentionState | None = None,
    ) -> tuple[Float[Tensor, "B T two_D"], Bool[Tensor, "B T"] | None, AttentionState | None, Aux]:
        """Whole texts, or the next positions of what a state stands for; there is no memory to attend to."""
        x1 = x2 = x
        if state is not None:
            at, seen = state.positions(x.shape[1]), state.longest + x.shape[1]
            if seen > state.capacity:
                raise ValueError(f"the state has room for {state.capacity} positions, got {seen}; start with more")
            for block, cache in zip(self.blocks, state.own, strict=True):
                x1, x2 = block.step(x1, x2, cache, at=at, seen=seen)
            state = state.advance(x.shape[1])
        elif torch.is_grad_enabled() and not recording():
            x1, x2 = reversible(list(self.blocks), x1, x2, mask)
        else:
            for block in self.blocks:
                x1, x2 = block(x1, x2, mask)
        return self.norm(torch.cat((x1, x2), -1)), mask, state, {}

    def start(self, memory: None, *, rows: int, capacity: int) -> AttentionState:
        """An empty state with room for `capacity` positions."""
        like = next(self.parameters())
        shapes = [block.attention.project.shape for block in self.blocks]
        return AttentionState(
            own=tuple(KeyValue.empty(rows, capacity, heads, width, like=like) for heads, _, width in shapes),
            memory=(),
            memory_mask=None,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
            longest=0,
            even=True,
            origins=torch.zeros(rows, capacity, dtype=torch.long) if like.device.type == "cpu" else None,
        )


def reversible(
    blocks: Sequence[ReversibleBlock],
    x1: Float[Tensor, "B T D"],
    x2: Float[Tensor, "B T D"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
    """The blocks one after the other, of which the backward pass computes everything but the outputs once more."""
    # Each parameter once, though blocks may share it: autograd adds up what it is told for each.
    parameters = {id(p): p for block in blocks for p in block.parameters() if p.requires_grad}
    return _Reversible.apply(blocks, mask, x1, x2, *parameters.values())


class _Moment(NamedTuple):
    """The random numbers that come next."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def now(cls, x: Tensor) -> "_Moment":
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None)

    @contextmanager
    def again(self, x: Tensor) -> Iterator[None]:
        """Draws inside are those that were drawn then; what is drawn afterwards knows nothing of it."""
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, x.device)
            yield


class _Trace(NamedTuple):
    """What one block needs to do the same again: the random state before F and before G, and how much F kept."""

    before_mix: _Moment
    before_change: _Moment
    kept: int


class _Gradients:
    """Sums of the gradients of all parameters."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def pull(
        self, part: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """part(x), and the gradient that comes back to x when `grad` comes back to part(x)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = part(x)
        back, *found = torch.autograd.grad(y, (x, *parameters), grad.to(y.dtype), allow_unused=True)
        for parameter, one in zip(parameters, found, strict=True):
            if one is not None:
                held = self.sums.get(id(parameter))
                self.sums[id(parameter)] = one if held is None else held + one
        return y.detach(), back


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[ReversibleBlock], mask: Tensor | None, x1: Tensor, x2: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        kind = x1.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        traces: list[_Trace] = []
        chosen: list[Tensor] = []
        with _autocast(ctx):
            for block in blocks:
                before_mix = _Moment.now(x1)
                more, kept = block.mix(x2, mask)
                x1 = x1 + more
                traces.append(_Trace(before_mix, _Moment.now(x1), len(kept)))
                chosen += kept
                x2 = x2 + block.change(x1)
        ctx.blocks, ctx.mask, ctx.traces, ctx.parameters = blocks, mask, traces, parameters
        ctx.save_for_backward(x1, x2, *chosen)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad1: Tensor, grad2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, *chosen = ctx.saved_tensors
        gradients = _Gradients()
        for block, trace in zip(reversed(ctx.blocks), reversed(ctx.traces), strict=True):
            kept = tuple(chosen[len(chosen) - trace.kept :])
            del chosen[len(chosen) - trace.kept :]
            with _autocast(ctx):
                y1, y2, grad1, grad2 = _undone(block, trace, kept, ctx.mask, (y1, y2, grad1, grad2), gradients)
        return None, None, grad1, grad2, *(gradients.sums.get(id(p)) for p in ctx.parameters)


def _autocast(ctx: Any) -> torch.autocast:
    """As in the forward pass; without its cache, whose copies of weights made without a graph would be used later."""
    kind, dtype, enabled = ctx.autocast
    return torch.autocast(kind, dtype, enabled, cache_enabled=False)


def _undone(
    block: ReversibleBlock,
    trace: _Trace,
    kept: tuple[Tensor, ...],
    mask: Tensor | None,
    after: tuple[Tensor, Tensor, Tensor, Tensor],
    gradients: _Gradients,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The inputs of a block and their gradients, from its outputs and theirs."""
    y1, y2, grad1, grad2 = after
    parameters = [p for p in block.parameters() if p.requires_grad]
    with trace.before_change.again(y1):
        both = zip(block.pieces(y1), block.pieces(grad2), strict=True)
        pulled = [gradients.pull(block.change_piece, piece, grad, parameters) for piece, grad in both]
    x2 = y2 - torch.cat([y for y, _ in pulled], 1)
    grad1 = grad1 + torch.cat([back for _, back in pulled], 1)
    del pulled, y2
    with trace.before_mix.again(y1):
        more, back = gradients.pull(lambda x: block.mix(x, mask, kept)[0], x2, grad1, parameters)
    return y1 - more, x2, grad1, grad2 + back
