"""Reversible residual layers, whose activations are recomputed from their outputs in the backward pass (Gomez et al.
2017; Kitaev et al. 2020, section 3).

y1 = x1 + F(x2), y2 = x2 + G(y1), from which x2 = y2 - G(y1) and x1 = y1 - F(x2). For any number of layers the backward
pass needs only the outputs of the last one, and of each layer the random state and the hash buckets of F.
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
from saccade.layers.record import is_recording


class ReversibleBlock(nn.Module):
    """A reversible layer: F is attention and G the feed-forward network, each after its own norm.

    `attention(x, mask=..., choices=...)` returns its output and its random choices (hash buckets); when these are
    passed in, it makes the same choices again. With `chunk`, G processes that many positions at a time (Kitaev et al.
    2020, equation 10).
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
        self.attention: Any = attention  # Any: has a method `step` if it is used in a writer
        self.feedforward = feedforward
        self.norms = nn.ModuleList(norms)  # of attention and of the feed-forward network
        self.dropout, self.chunk = Dropout(dropout), chunk

    def forward(
        self, x1: Float[Tensor, "B T D"], x2: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
        """The plain forward pass, for which autograd stores activations."""
        y1 = x1 + self.apply_attention(x2, mask)[0]
        return y1, x2 + self.apply_feedforward(y1)

    def step(
        self,
        x1: Float[Tensor, "B n D"],
        x2: Float[Tensor, "B n D"],
        cache: KeyValue,
        *,
        positions: Int[Tensor, "b n"],
        length: int,
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D"]]:
        """Decode the next n positions of each row, at `positions`; the cache then has `length` positions."""
        y1 = x1 + self.dropout(self.attention.step(self.norms[0](x2), cache, positions=positions, length=length))
        return y1, x2 + self.apply_feedforward(y1)

    def apply_attention(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None, choices: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """F(x), and its choices."""
        y, choices = self.attention(self.norms[0](x), mask=mask, choices=choices)
        return self.dropout(y), choices

    def apply_feedforward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """G(x)"""
        return torch.cat([self.apply_feedforward_to_chunk(chunk) for chunk in self.split_chunks(x)], 1)

    def apply_feedforward_to_chunk(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B t D"]:
        return self.dropout(self.feedforward(self.norms[1](x)))

    def split_chunks(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, ...]:
        return (x,) if self.chunk is None else x.split(self.chunk, 1)


class ReversibleStack(nn.Module):
    """Reversible blocks; both halves x1 and x2 start as the input, and are concatenated to an output of width 2 D."""

    operation = "attention"  # for counts of parameters by operation

    def __init__(self, blocks: Sequence[ReversibleBlock], *, dim: int, norm: nn.Module | None = None) -> None:
        """`norm` has 2 `dim` features."""
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # Any: ModuleList does not know the type of its items
        self.norm = norm if norm is not None else nn.Identity()
        self.input_dim, self.dim = dim, 2 * dim

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: None = None,
        state: AttentionState | None = None,
    ) -> tuple[Float[Tensor, "B T two_D"], Bool[Tensor, "B T"] | None, AttentionState | None, Aux]:
        """Hidden states of whole sequences, or with a state those of the next positions; no cross-attention."""
        x1 = x2 = x
        if state is not None:
            positions, length = state.get_positions(x.shape[1]), state.max_length + x.shape[1]
            if length > state.capacity:
                raise ValueError(f"the state has capacity {state.capacity}, got {length} positions; start with more")
            for block, cache in zip(self.blocks, state.self_caches, strict=True):
                x1, x2 = block.step(x1, x2, cache, positions=positions, length=length)
            state = state.advance(x.shape[1])
        elif torch.is_grad_enabled() and not is_recording():
            x1, x2 = run_reversible(list(self.blocks), x1, x2, mask)
        else:
            for block in self.blocks:
                x1, x2 = block(x1, x2, mask)
        return self.norm(torch.cat((x1, x2), -1)), mask, state, {}

    def start(self, memory: None, *, rows: int, capacity: int) -> AttentionState:
        """An empty state for up to `capacity` positions."""
        like = next(self.parameters())
        shapes = [block.attention.project.shape for block in self.blocks]
        return AttentionState(
            self_caches=tuple(KeyValue.allocate(rows, capacity, heads, width, like=like) for heads, _, width in shapes),
            cross_caches=(),
            memory_mask=None,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
            max_length=0,
            is_uniform=True,
            origins=torch.zeros(rows, capacity, dtype=torch.long) if like.device.type == "cpu" else None,
        )


def run_reversible(
    blocks: Sequence[ReversibleBlock],
    x1: Float[Tensor, "B T D"],
    x2: Float[Tensor, "B T D"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
    """Apply the blocks; the backward pass recomputes all activations from the outputs."""
    # Each parameter once, although blocks may share it: autograd adds up the gradients of repeated inputs.
    parameters = {id(p): p for block in blocks for p in block.parameters() if p.requires_grad}
    return _Reversible.apply(blocks, mask, x1, x2, *parameters.values())


class _RngState(NamedTuple):
    """The states of the random number generators of the CPU and of the device."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def capture(cls, x: Tensor) -> "_RngState":
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None)

    @contextmanager
    def restore(self, x: Tensor) -> Iterator[None]:
        """Inside, random numbers repeat from the captured state; afterwards the generators continue unaffected."""
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, x.device)
            yield


class _BlockTrace(NamedTuple):
    """What one block needs for recomputation: the random states before F and G, and the number of choices of F."""

    attention_rng: _RngState
    feedforward_rng: _RngState
    num_choices: int


class _GradientSums:
    """Sums of the gradients of all parameters."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def backpropagate(
        self, function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """function(x), and the gradient of x given the gradient of function(x); adds up those of the parameters."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = function(x)
        grad_x, *grads = torch.autograd.grad(y, (x, *parameters), grad.to(y.dtype), allow_unused=True)
        for parameter, one in zip(parameters, grads, strict=True):
            if one is not None:
                previous = self.sums.get(id(parameter))
                self.sums[id(parameter)] = one if previous is None else previous + one
        return y.detach(), grad_x


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[ReversibleBlock], mask: Tensor | None, x1: Tensor, x2: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        device = x1.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        traces: list[_BlockTrace] = []
        all_choices: list[Tensor] = []
        with _autocast(ctx):
            for block in blocks:
                attention_rng = _RngState.capture(x1)
                attended, choices = block.apply_attention(x2, mask)
                x1 = x1 + attended
                traces.append(_BlockTrace(attention_rng, _RngState.capture(x1), len(choices)))
                all_choices += choices
                x2 = x2 + block.apply_feedforward(x1)
        ctx.blocks, ctx.mask, ctx.traces, ctx.parameters = blocks, mask, traces, parameters
        ctx.save_for_backward(x1, x2, *all_choices)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad1: Tensor, grad2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, *all_choices = ctx.saved_tensors
        gradients = _GradientSums()
        for block, trace in zip(reversed(ctx.blocks), reversed(ctx.traces), strict=True):
            choices = tuple(all_choices[len(all_choices) - trace.num_choices :])
            del all_choices[len(all_choices) - trace.num_choices :]
            with _autocast(ctx):
                y1, y2, grad1, grad2 = _invert_block(block, trace, choices, ctx.mask, (y1, y2, grad1, grad2), gradients)
        return None, None, grad1, grad2, *(gradients.sums.get(id(p)) for p in ctx.parameters)


def _autocast(ctx: Any) -> torch.autocast:
    """Autocast as in the forward pass, without its cache: copies of weights made without a graph would be reused."""
    device, dtype, enabled = ctx.autocast
    return torch.autocast(device, dtype, enabled, cache_enabled=False)


def _invert_block(
    block: ReversibleBlock,
    trace: _BlockTrace,
    choices: tuple[Tensor, ...],
    mask: Tensor | None,
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    gradients: _GradientSums,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The inputs of a block and their gradients, given its outputs and their gradients."""
    y1, y2, grad1, grad2 = outputs
    parameters = [p for p in block.parameters() if p.requires_grad]
    with trace.feedforward_rng.restore(y1):
        both = zip(block.split_chunks(y1), block.split_chunks(grad2), strict=True)
        results = [
            gradients.backpropagate(block.apply_feedforward_to_chunk, chunk, grad, parameters) for chunk, grad in both
        ]
    x2 = y2 - torch.cat([y for y, _ in results], 1)
    grad1 = grad1 + torch.cat([back for _, back in results], 1)
    del results, y2
    with trace.attention_rng.restore(y1):
        attended, back = gradients.backpropagate(
            lambda x: block.apply_attention(x, mask, choices)[0], x2, grad1, parameters
        )
    return y1 - attended, x2, grad1, grad2 + back
