"""Attention with several heads, inside one sequence and from one sequence to another.

Queries, keys and values of one head stand together in the projection's rows, so that heads can be split over devices.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.kernels.cpu import step_attention
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import AttentionWeights, HeadProduct, LinearWeights, Unsupported, describe_linear
from saccade.layers.attention import backends as kernels
from saccade.layers.attention import masks
from saccade.layers.attention.cache import KeyValue, LayerCache
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.positions import Rotary, ScoreTerm
from saccade.layers.packing import Packing, split_mask
from saccade.layers.record import keep, recording

Form = Literal["paper", "full", "split"] | int


def width_of_head(dim: int, *, heads: int, form: Form) -> int:
    if isinstance(form, int):
        return form
    if dim % heads:
        raise SaccadeError(f"the width must be a multiple of the heads, got dim = {dim} and heads = {heads}")
    return dim if form == "full" else dim // heads


class HeadProjection(nn.Module):
    """x -> `parts` vectors for each head, in one product.

    Three forms stand in the lectures: "paper" projects the whole input to D/H for each head, "full" to D for each head,
    "split" gives each head its own part of the input. A number is a form too: the whole input, to that width.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, parts: int, form: Form, bias: bool) -> None:
        super().__init__()
        if form == "split" and dim % heads:
            raise SaccadeError(
                f"{heads} heads cannot split a width of {dim}; give reader and writer widths they divide"
            )
        self.shape, self.split = (heads, parts, head_dim), form == "split"
        fan_in = dim // heads if self.split else dim
        self.weight = nn.Parameter(torch.empty(heads, parts, head_dim, fan_in))
        self.bias = nn.Parameter(torch.zeros(heads, parts, head_dim)) if bias else None
        # Xavier's bound for each of the `parts` matrices alone, as if they were not stored together.
        fan_out = head_dim if self.split else heads * head_dim
        bound = math.sqrt(6 / (fan_in + fan_out))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B N H E"], ...]:
        weight, bias = self.weight, self.bias
        if bias is not None and self._fuses(x):
            from saccade.kernels.triton.projection import projected

            return projected(x, weight, bias)
        if self.split:
            y = torch.einsum("bnhi,hpei->bnhpe", x.unflatten(-1, (self.shape[0], -1)), weight)
            y = y if bias is None else y + bias.to(y.dtype)
        else:
            flat = None if bias is None else bias.flatten()
            y = nn.functional.linear(x, weight.flatten(0, 2), flat).unflatten(-1, self.shape)
        return y.unbind(-2)

    def describe(self) -> LinearWeights:
        """Its weights for the kernels of a decoding step: outputs head by head, in each head part by part."""
        if self.split:
            raise Unsupported("each head has its own part of the input")
        return LinearWeights(self.weight, self.bias)

    def _fuses(self, x: Tensor) -> bool:
        """Whether gradients can be stacked and summed by one kernel: of queries, keys and values, on a GPU."""
        known = not self.split and self.shape[1] == 3
        return known and kernels.TRITON and x.is_cuda and x.dtype != torch.float64 and torch.is_grad_enabled()


class _Heads(nn.Module):
    """What self-attention and cross-attention share: kernels, dropout, the output projection."""

    def __init__(
        self, dim: int, *, heads: int, form: Form, bias: bool, scale: bool, dropout: float, term: ScoreTerm | None
    ) -> None:
        super().__init__()
        self.head_dim = width_of_head(dim, heads=heads, form=form)
        self.scale = 1 / math.sqrt(self.head_dim) if scale else 1.0
        self.dropout = dropout
        self.term = term
        self.out: nn.Module = nn.Identity()
        if form != "split":
            self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)
            nn.init.xavier_uniform_(self.out.weight)
            if bias:
                nn.init.zeros_(self.out.bias)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is added to the scores and nobody looks at the weights."""
        return self.term is None and not recording()

    def forward(
        self,
        owner: nn.Module,
        query: Float[Tensor, "B Q H E"],
        key: Float[Tensor, "B K G E"],
        value: Float[Tensor, "B K G E"],
        *,
        mask: Mask | None,
        q_pos: Int[Tensor, "b Q"] | None = None,
        k_pos: Int[Tensor, "c K"] | None = None,
        packs: tuple[Packing, Packing] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Attention of all heads, joined; `owner` is the layer under whose address the weights are recorded.

        Positions are 0, 1, 2 ... where none are given. With `packs`, rows are packed: sequence i of the queries attends
        to sequence i of the keys, as far as `mask` allows.
        """
        key, value = repeat_heads(query, key), repeat_heads(query, value)
        dropout = self.dropout if self.training else 0.0
        if packs is not None:
            if self.is_plain and not dropout and (mask is None or mask.is_causal) and kernels.packs(query, packs):
                y = kernels.packed(query[0], key[0], value[0], packs=packs, causal=mask is not None, scale=self.scale)
                return self.out(y.flatten(1)[None])
            queries, keys = packs
            query, key, value = queries.unpack(query), keys.unpack(key), keys.unpack(value)
            if mask is None or not mask.looks_back():  # what looks back never sees what stands behind the end
                real = masks.padding(keys.inside())
                mask = real if mask is None else mask & real
        q_pos = masks.positions(query.shape[1], query.device) if q_pos is None else q_pos
        k_pos = masks.positions(key.shape[1], key.device) if k_pos is None else k_pos
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        if not self.is_plain:
            y = self._explicit(owner, q, k, v, mask=mask, q_pos=q_pos, k_pos=k_pos, dropout=dropout)
        elif (band := kernels.window_of(mask)) and q.shape[2] == k.shape[2]:
            y = kernels.windowed(q, k, v, scale=self.scale, band=band, dropout=dropout)
        else:
            y = kernels.fused(q, k, v, scale=self.scale, mask=mask, q_pos=q_pos, k_pos=k_pos, dropout=dropout)
        y = y.transpose(1, 2).flatten(2)
        return self.out(y if packs is None else packs[0].pack(y))

    def describe(self, project: HeadProduct, *, rotary_base: float | None = None) -> AttentionWeights:
        """The weights of this attention for the kernels of a decoding step."""
        if self.term is not None:
            raise Unsupported("a term is added to its attention scores")
        out, (heads, _, head_dim) = describe_linear(self.out), project.shape
        return AttentionWeights(project.describe(), out, heads, head_dim, self.scale, rotary_base)

    def _explicit(
        self,
        owner: nn.Module,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        v: Float[Tensor, "B H K E"],
        *,
        mask: Mask | None,
        q_pos: Int[Tensor, "b Q"],
        k_pos: Int[Tensor, "c K"],
        dropout: float,
    ) -> Float[Tensor, "B H Q E"]:
        """With a score term, or with weights that somebody looks at."""
        allowed, changes = (None, []) if mask is None else (mask.dense(q_pos, k_pos)[:, None], mask.segment_changes())
        term = None
        if self.term is not None:
            term = self.term(q * self.scale, q_pos, k_pos, *changes)
            q = self.term.shift_query(q, self.scale)
        y, weights = kernels.explicit(q, k, v, scale=self.scale, allowed=allowed, term=term, dropout=dropout)
        if recording():
            keep(owner, weights)
        return y


def repeat_heads(query: Float[Tensor, "B Q H E"], shared: Float[Tensor, "B K G E"]) -> Float[Tensor, "B K H E"]:
    """Keys or values for each head of the queries, where several heads share them."""
    times = query.shape[2] // shared.shape[2]
    return shared if times == 1 else shared.repeat_interleave(times, 2)


class Attention(nn.Module):
    """What every attention with several heads can say of its cost."""

    @property
    def width(self) -> int:
        """Features of the queries of all heads together."""
        raise NotImplementedError

    def count_keys(self, length: int) -> int:
        """How many keys a query meets in a sequence of that length."""
        return length


class SelfAttention(Attention):
    """Every position asks every position it may see: Q = X W_Q, K = X W_K, V = X W_V."""

    cpu_layout = CpuLayout(("project", "heads.out"))

    def __init__(
        self,
        dim: int,
        *,
        heads: int | tuple[int, int],
        form: Form = "paper",
        bias: bool = True,
        scale: bool = True,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
        term: ScoreTerm | None = None,
    ) -> None:
        """Two numbers of heads: those of queries, and fewer of keys and values, which several queries then share
        (Ainslie et al. 2023)."""
        super().__init__()
        count, shared = (heads, heads) if isinstance(heads, int) else heads
        self.group = count // shared  # queries that ask the same keys
        self.heads = _Heads(dim, heads=count, form=form, bias=bias, scale=scale, dropout=dropout, term=term)
        self.project = HeadProjection(
            dim, heads=shared, head_dim=self.heads.head_dim, parts=self.group + 2, form=form, bias=bias
        )
        self.rotary = rotary

    @property
    def width(self) -> int:
        shared, _, head_dim = self.project.shape
        return shared * self.group * head_dim

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Mask | None = None,
        packing: Packing | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """All positions of a sequence at once, from position 0 on, or of the sequences packed into one row.

        With a cache, these are the next positions of each row, which also see those before them.
        """
        if packing is not None:
            query, key, value = self.turned(x, packing.positions)
            return self.heads(self, query, key, value, mask=mask, packs=(packing, packing))
        if cache is None:
            at = masks.positions(x.shape[1], x.device)
            query, key, value = self.turned(x, at)
            return self.heads(self, query, key, value, mask=mask, q_pos=at, k_pos=at)
        query, key, value = self.turned(x, cache.positions)
        key, value = (repeat_heads(query, part) for part in cache.update(key, value))
        if mask is None and x.shape[1] == 1 and self.heads.is_plain and step_attention.covers(query):
            y = step_attention.one_query(query, key, value, scale=self.heads.scale)
            return self.heads.out(y.flatten(2))
        return self.heads(self, query, key, value, mask=mask, q_pos=cache.positions)

    def describe(self) -> AttentionWeights:
        if self.group > 1:
            raise Unsupported("several of its queries share keys and values")
        if self.rotary is None:
            return self.heads.describe(self.project)
        if self.rotary.stretch is not None:
            raise Unsupported("its rotary positions are stretched")
        return self.heads.describe(self.project, rotary_base=self.rotary.base)

    def turned(self, x: Float[Tensor, "B T D"], at: Int[Tensor, "b T"]) -> tuple[Float[Tensor, "B T _ E"], ...]:
        """Queries, keys and values, turned by their positions where that is wanted."""
        *queries, key, value = self.project(x)
        query = queries[0] if self.group == 1 else torch.stack(queries, -2).flatten(-3, -2)
        if self.rotary is not None:
            query, key = (self.rotary(part.transpose(1, 2), at).transpose(1, 2) for part in (query, key))
        return query, key, value


class CrossAttention(Attention):
    """Cross-attention: queries from the writer, keys and values from memory."""

    cpu_layout = CpuLayout(("query", "memory", "heads.out"))

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        memory_dim: int,
        form: Form = "paper",
        bias: bool = True,
        scale: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = _Heads(dim, heads=heads, form=form, bias=bias, scale=scale, dropout=dropout, term=None)
        head_dim = self.heads.head_dim
        self.query = HeadProjection(dim, heads=heads, head_dim=head_dim, parts=1, form=form, bias=bias)
        self.memory = HeadProjection(memory_dim, heads=heads, head_dim=head_dim, parts=2, form=form, bias=bias)

    def describe(self) -> AttentionWeights:
        return self.heads.describe(self.query)

    @property
    def width(self) -> int:
        heads, _, head_dim = self.query.shape
        return heads * head_dim

    def keys_values(self, states: Float[Tensor, "B S M"]) -> KeyValue:
        """Computed once for each input, however many words are written."""
        return KeyValue(*self.memory(states))

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: KeyValue,
        *,
        mask: Bool[Tensor, "N S"] | Packing | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "B T D"]:
        (query,) = self.query(x)
        packed, padding = split_mask(mask)
        if packing is not None:
            assert packed is not None, "packed sequences attend to packed memory"
            return self.heads(self, query, memory.keys, memory.values, mask=None, packs=(packing, packed))
        if x.shape[0] > memory.keys.shape[0] or (x.shape[1] == 1 and step_attention.covers(query)):
            return self._step(query, memory, padding)
        real = None if padding is None else masks.padding(padding)
        return self.heads(self, query, memory.keys, memory.values, mask=real)

    def _step(
        self, query: Float[Tensor, "B n H E"], memory: KeyValue, mask: Bool[Tensor, "N S"] | None
    ) -> Float[Tensor, "B n D"]:
        """A step on a CPU, in which rows next to each other may share a row of memory: they ask it together."""
        rows, there = query.shape[0], memory.keys.shape[0]
        if not self.heads.is_plain:  # the weights of each row are to be seen
            each = torch.arange(there).repeat_interleave(rows // there)
            memory = KeyValue(memory.keys[each], memory.values[each])
            real = None if mask is None else masks.padding(mask[each])
            return self.heads(self, query, memory.keys, memory.values, mask=real)
        together = query.reshape(there, -1, *query.shape[2:])
        y = step_attention.few_queries(together, memory.keys, memory.values, scale=self.heads.scale, keep=mask)
        return self.heads.out(y.reshape(rows, query.shape[1], -1))
