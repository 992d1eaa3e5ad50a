"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): self-attention, cross-attention, positional attention.

The projection weights of queries, keys and values are stored head by head, so that heads can be split over devices.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import TensorPlan, get_score_capabilities
from saccade.errors import SaccadeError
from saccade.kernels.cpu import step_attention
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import AttentionWeights, HeadLinear, LinearWeights, Unsupported, describe_linear
from saccade.layers.attention import backends, masks
from saccade.layers.attention.cache import KeyValue, LayerCache
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.positions import Rotary, ScoreTerm, Sinusoidal
from saccade.layers.attention.scores import Score, explain_not_static, get_score_name, score_projected
from saccade.layers.packing import Packing, split_mask
from saccade.layers.record import is_recording, record_weights

Form = Literal["paper", "full", "split"] | int | tuple[int, int]


def get_head_dim(dim: int, *, heads: int, form: Form) -> int:
    if isinstance(form, int | tuple):
        return form if isinstance(form, int) else form[0]
    if dim % heads:
        raise SaccadeError(f"the width must be a multiple of the heads, got dim = {dim} and heads = {heads}")
    return dim if form == "full" else dim // heads


class HeadProjection(nn.Module):
    """Projects x to `parts` vectors per head (such as query, key and value) in one matrix product.

    `form`: "paper" projects the whole input to D/H features per head, "full" to D features per head, "split" gives each
    head its own slice of the input, as in the lectures; an integer projects the whole input to that many features, and
    a pair of integers to so many of queries and keys (d_k) and of values (d_v).
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
        # Xavier initialization of each of the `parts` matrices on its own, although they are stored together.
        fan_out = head_dim if self.split else heads * head_dim
        bound = math.sqrt(6 / (fan_in + fan_out))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B N H E"], ...]:
        weight, bias = self.weight, self.bias
        if bias is not None and self._can_fuse_backward(x):
            from saccade.kernels.triton.projection import project_qkv

            return project_qkv(x, weight, bias)
        if self.split:
            y = torch.einsum("bnhi,hpei->bnhpe", x.unflatten(-1, (self.shape[0], -1)), weight)
            y = y if bias is None else y + bias.to(y.dtype)
        else:
            flat = None if bias is None else bias.flatten()
            y = F.linear(x, weight.flatten(0, 2), flat).unflatten(-1, weight.shape[:3])
        return y.unbind(-2)

    def describe(self) -> LinearWeights:
        """The weights for the kernels of a decoding step, with outputs ordered by head, then by part."""
        if self.split:
            raise Unsupported("each head has its own slice of the input")
        return LinearWeights(self.weight, self.bias)

    def _can_fuse_backward(self, x: Tensor) -> bool:
        """Whether one GPU kernel can stack the gradients of query, key and value and sum them for the bias."""
        is_qkv = not self.split and self.shape[1] == 3
        return is_qkv and backends.HAS_TRITON and x.is_cuda and x.dtype != torch.float64 and torch.is_grad_enabled()


class _AttentionHeads(nn.Module):
    """The part that self-attention and cross-attention share: attention per head, dropout, output projection."""

    kernels: Any = backends  # implementations of attention, by the names of that module

    def __init__(
        self, dim: int, *, heads: int, form: Form, bias: bool, scale: bool, dropout: float, term: ScoreTerm | None
    ) -> None:
        super().__init__()
        self.head_dim = get_head_dim(dim, heads=heads, form=form)
        self.value_dim = form[1] if isinstance(form, tuple) else self.head_dim
        self.scale = 1 / math.sqrt(self.head_dim) if scale else 1.0
        self.dropout = dropout
        self.term = term
        self.score: Any = None  # None: the dot product times `scale`
        self.is_dot_product, self.projects_query, self.projects_keys = True, False, False
        self.score_problem = ""  # why torch.compile and CUDA graphs cannot hold the score
        self.out: nn.Module = nn.Identity()
        if form != "split":
            self.out = nn.Linear(heads * self.value_dim, dim, bias=bias)
            nn.init.xavier_uniform_(self.out.weight)
            if bias:
                nn.init.zeros_(self.out.bias)

    def set_score(self, score: Score) -> None:
        """Use a score in place of the scaled dot product: one of scores.py, or what a user brings."""
        declared = get_score_capabilities(score)
        self.score, self.scale = score, 1.0
        self.is_dot_product = self.projects_query = declared.dot_product
        self.projects_keys = declared.dot_product or declared.projected_keys
        self.score_problem = explain_not_static(score)

    @property
    def tensor_plan(self) -> TensorPlan:
        axes = {} if self.term is None else {f"term.{name}": axis for name, axis in self.term.head_axes.items()}
        return TensorPlan(rows=("out",), attends=True, head_axes=axes)

    @property
    def has_own_value_width(self) -> bool:
        """Whether values have another width than queries and keys, which kernels of our own do not support."""
        return self.value_dim != self.head_dim

    @property
    def is_plain(self) -> bool:
        """Whether fused kernels may be used: a dot product without a term, and weights are not being recorded."""
        return self.is_dot_product and self.term is None and not is_recording()

    def project_query(self, query: Float[Tensor, "B Q H E"]) -> Float[Tensor, "B Q H E"]:
        """Queries whose dot product with the projected keys is the score, where the score is a dot product."""
        if not self.projects_query:
            return query
        return self._check_width(self.score.project_query(query.transpose(1, 2)).transpose(1, 2))

    def project_keys(self, key: Float[Tensor, "B K H E"]) -> Float[Tensor, "B K H Ek"]:
        """Keys as they are cached: projected by the score, where it declares that, once for all decoding steps."""
        if not self.projects_keys:
            return key
        projected = self.score.project_keys(key.transpose(1, 2)).transpose(1, 2)
        return self._check_width(projected) if self.is_dot_product else projected

    def _check_width(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise SaccadeError(
                f"the attention score {get_score_name(self.score)} declares dot_product: its queries and keys must "
                f"keep the width {self.head_dim} of a head, got {x.shape[-1]}; declare projected_keys instead"
            )
        return x

    def forward(
        self,
        layer: nn.Module,
        query: Float[Tensor, "B Q H E"],
        key: Float[Tensor, "B K G Ek"],
        value: Float[Tensor, "B K G Ev"],
        *,
        mask: Mask | None,
        q_pos: Int[Tensor, "b Q"] | None = None,
        k_pos: Int[Tensor, "c K"] | None = None,
        packings: tuple[Packing, Packing] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Attend with all heads, concatenate and project; `layer` is the module whose name recorded weights get.

        Positions default to 0, 1, 2 ... With `packings`, sequence i of the packed queries attends to sequence i of the
        packed keys, as far as `mask` allows.
        """
        key, value = repeat_heads(query, key), repeat_heads(query, value)
        dropout = self.dropout if self.training else 0.0
        if packings is not None:
            structured = mask is None or mask.is_causal
            fits = self.is_plain and not dropout and not self.has_own_value_width
            if fits and structured and backends.supports_packed(query, packings):
                y = backends.packed_attention(
                    query[0], key[0], value[0], packings=packings, causal=mask is not None, scale=self.scale
                )
                return self.out(y.flatten(1)[None])
            queries, keys = packings
            query, key, value = queries.unpack(query), keys.unpack(key), keys.unpack(value)
            if mask is None or not mask.hides_future():  # causal queries never see the padding at the end
                real = masks.padding(keys.get_padded_mask())
                mask = real if mask is None else mask & real
        q_pos = masks.make_positions(query.shape[1], query.device) if q_pos is None else q_pos
        k_pos = masks.make_positions(key.shape[1], key.device) if k_pos is None else k_pos
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        if not self.is_plain:
            y = self._attend_explicitly(layer, q, k, v, mask=mask, q_pos=q_pos, k_pos=k_pos, dropout=dropout)
        elif (band := backends.get_window_band(mask)) and q.shape[2] == k.shape[2]:
            y = self.kernels.window_attention(q, k, v, scale=self.scale, band=band, dropout=dropout)
        else:
            y = self.kernels.sdpa_attention(
                q, k, v, scale=self.scale, mask=mask, q_pos=q_pos, k_pos=k_pos, dropout=dropout
            )
        y = y.transpose(1, 2).flatten(2)
        return self.out(y if packings is None else packings[0].pack(y))

    def describe(self, project: HeadLinear, *, rotary_base: float | None = None) -> AttentionWeights:
        """The weights for the kernels of a decoding step."""
        if self.term is not None:
            raise Unsupported("a term is added to its attention scores")
        if self.has_own_value_width:
            raise Unsupported("its values have another width than its keys (value_dim)")
        if self.score is not None:
            raise Unsupported(f"its attention score is {get_score_name(self.score)}, not a scaled dot product")
        out, (heads, _, head_dim) = describe_linear(self.out), project.shape
        return AttentionWeights(project.describe(), out, heads, head_dim, self.scale, rotary_base)

    def _attend_explicitly(
        self,
        layer: nn.Module,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K Ek"],
        v: Float[Tensor, "B H K Ev"],
        *,
        mask: Mask | None,
        q_pos: Int[Tensor, "b Q"],
        k_pos: Int[Tensor, "c K"],
        dropout: float,
    ) -> Float[Tensor, "B H Q Ev"]:
        """Attention with a score that is no dot product, with a score term, or with weights that are recorded."""
        allowed = None if mask is None else mask.to_dense(q_pos, k_pos)[:, None]
        term = None
        if self.term is not None:
            segments = [] if mask is None else mask.get_segment_differences()
            term = self.term(q * self.scale, q_pos, k_pos, *segments)
            q = self.term.shift_query(q, self.scale)
        score = None if self.is_dot_product else partial(score_projected, self.score)
        y, weights = self.kernels.explicit_attention(
            q, k, v, scale=self.scale, allowed=allowed, score=score, score_term=term, dropout=dropout
        )
        if is_recording():
            record_weights(layer, weights)
        return y


def repeat_heads(query: Float[Tensor, "B Q H _"], shared: Float[Tensor, "B K G E"]) -> Float[Tensor, "B K H E"]:
    """Repeat keys or values that several query heads share, so that each query head has its own."""
    times = query.shape[2] // shared.shape[2]
    return shared if times == 1 else shared.repeat_interleave(times, 2)


class Attention(nn.Module):
    """Base class of multi-head attention: what `saccade plan` needs to count its cost."""

    @property
    def width(self) -> int:
        """Features of the queries, over all heads."""
        raise NotImplementedError

    def count_keys(self, length: int) -> int:
        """Keys that each query is compared with in a sequence of that length."""
        return length


class SelfAttention(Attention):
    """Multi-head self-attention: Q = X W_Q, K = X W_K, V = X W_V, softmax(f_att(Q, K)) V for each head.

    f_att is Q K^T / sqrt(E), unless `heads.set_score` sets another one.
    """

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
        """`heads` as a pair: query heads, and fewer key-value heads that they share (grouped-query attention, Ainslie
        et al. 2023)."""
        super().__init__()
        count, shared = (heads, heads) if isinstance(heads, int) else heads
        self.queries_per_kv_head = count // shared  # query heads that share one key-value head
        self.heads = _AttentionHeads(dim, heads=count, form=form, bias=bias, scale=scale, dropout=dropout, term=term)
        own = self.heads.has_own_value_width
        parts = self.queries_per_kv_head + (1 if own else 2)
        self.project = HeadProjection(
            dim, heads=shared, head_dim=self.heads.head_dim, parts=parts, form=form, bias=bias
        )
        self.value: HeadProjection | None = None  # None: `project` gives values too
        if own:
            self.value = HeadProjection(dim, heads=shared, head_dim=self.heads.value_dim, parts=1, form=form, bias=bias)
            self.cpu_layout = CpuLayout(("project", "value", "heads.out"))
        self.rotary = rotary
        self.excludes_self = False  # whether each position attends to the others only, never to itself

    @property
    def tensor_plan(self) -> TensorPlan:
        shared, own = self.project.shape[0], () if self.value is None else ("value",)
        size = "heads" if self.queries_per_kv_head == 1 else "kv_heads"
        return TensorPlan(heads=("project", *own), sizes={size: shared})

    @property
    def width(self) -> int:
        return self.project.shape[0] * self.queries_per_kv_head * (self.heads.head_dim + self.heads.value_dim) // 2

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Mask | None = None,
        packing: Packing | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Process whole sequences, padded or packed into one row (`packing`), from position 0 on.

        With a cache, x holds the next positions of each row, which also attend to the cached ones.
        """
        if self.excludes_self:
            mask = masks.others() if mask is None else mask & masks.others()
        if packing is not None:
            query, key, value = self.project_heads(x, packing.positions)
            return self.heads(self, query, key, value, mask=mask, packings=(packing, packing))
        if cache is None:
            positions = masks.make_positions(x.shape[1], x.device)
            query, key, value = self.project_heads(x, positions)
            return self.heads(self, query, key, value, mask=mask, q_pos=positions, k_pos=positions)
        query, key, value = self.project_heads(x, cache.positions)
        key, value = (repeat_heads(query, part) for part in cache.update(key, value))
        plain = self.heads.is_plain and not self.heads.has_own_value_width
        if mask is None and x.shape[1] == 1 and plain and step_attention.supports(query):
            y = step_attention.attend_one_query(query, key, value, scale=self.heads.scale)
            return self.heads.out(y.flatten(2))
        return self.heads(self, query, key, value, mask=mask, q_pos=cache.positions)

    def describe(self) -> AttentionWeights:
        if self.queries_per_kv_head > 1:
            raise Unsupported("several of its query heads share keys and values")
        if self.rotary is None:
            return self.heads.describe(self.project)
        if self.rotary.scaling is not None:
            raise Unsupported("its rotary positions are scaled")
        return self.heads.describe(self.project, rotary_base=self.rotary.base)

    def project_heads(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "b T"]
    ) -> tuple[Float[Tensor, "B T _ _"], ...]:
        """Queries, keys and values (B, T, heads, width), with rotary positions applied if there are any."""
        *queries, key, value = self.project(x) if self.value is None else self.project(x) + self.value(x)
        query = queries[0] if self.queries_per_kv_head == 1 else torch.stack(queries, -2).flatten(-3, -2)
        if self.rotary is not None:
            query, key = (self.rotary(part.transpose(1, 2), positions).transpose(1, 2) for part in (query, key))
        if not self.heads.projects_keys:
            return query, key, value
        key, value = repeat_heads(query, key), repeat_heads(query, value)  # each query head has its own parameters
        return self.heads.project_query(query), self.heads.project_keys(key), value

    def allocate_cache(self, rows: int, length: int, *, like: Tensor) -> KeyValue:
        """Empty buffers for the keys and values of `length` positions."""
        heads, _, head_dim = self.project.shape
        if not self.heads.projects_keys:
            return KeyValue.allocate(rows, length, heads, self.heads.value_dim, like=like, key_dim=head_dim)
        heads *= self.queries_per_kv_head
        key_dim = self.heads.project_keys(like.new_zeros(1, 1, heads, head_dim)).shape[-1]
        return KeyValue.allocate(rows, length, heads, self.heads.value_dim, like=like, key_dim=key_dim)


class PositionalAttention(Attention):
    """Multi-head attention by position alone (Gu et al. 2018, section 3.2).

    Queries and keys are projections of the sinusoidal encodings of the positions, values those of the hidden states.
    """

    cpu_layout = CpuLayout(("position", "value", "heads.out"))

    def __init__(self, dim: int, *, heads: int, form: Form = "paper", bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = _AttentionHeads(dim, heads=heads, form=form, bias=bias, scale=True, dropout=dropout, term=None)
        self.encoding = Sinusoidal(dim)
        head_dim = self.heads.head_dim
        self.position = HeadProjection(dim, heads=heads, head_dim=head_dim, parts=2, form=form, bias=bias)
        self.value = HeadProjection(dim, heads=heads, head_dim=self.heads.value_dim, parts=1, form=form, bias=bias)

    @property
    def tensor_plan(self) -> TensorPlan:
        return TensorPlan(heads=("position", "value"), sizes={"heads": self.value.shape[0]})

    @property
    def width(self) -> int:
        return self.value.shape[0] * (self.heads.head_dim + self.heads.value_dim) // 2

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Mask | None = None, packing: Packing | None = None
    ) -> Float[Tensor, "B T D"]:
        """Process whole sequences, padded or packed into one row (`packing`), from position 0 on."""
        if packing is not None:
            query, key, value = self.project_heads(x, packing.positions)
            return self.heads(self, query, key, value, mask=mask, packings=(packing, packing))
        query, key, value = self.project_heads(x, masks.make_positions(x.shape[1], x.device))
        return self.heads(self, query, key, value, mask=mask)

    def project_heads(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "1 T"]
    ) -> tuple[Float[Tensor, "B T H _"], ...]:
        """Queries and keys of the positions, the same in all rows, and values of x."""
        query, key = (part.expand(len(x), -1, -1, -1) for part in self.position(self.encoding(positions).to(x.dtype)))
        (value,) = self.value(x)
        return query, key, value


class CrossAttention(Attention):
    """Multi-head cross-attention: queries from the writer, keys and values from memory."""

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
        self.heads = _AttentionHeads(dim, heads=heads, form=form, bias=bias, scale=scale, dropout=dropout, term=None)
        head_dim = self.heads.head_dim
        self.query = HeadProjection(dim, heads=heads, head_dim=head_dim, parts=1, form=form, bias=bias)
        own = self.heads.has_own_value_width
        parts = 1 if own else 2
        self.memory = HeadProjection(memory_dim, heads=heads, head_dim=head_dim, parts=parts, form=form, bias=bias)
        self.value: HeadProjection | None = None  # None: `memory` gives values too
        if own:
            self.value = HeadProjection(
                memory_dim, heads=heads, head_dim=self.heads.value_dim, parts=1, form=form, bias=bias
            )
            self.cpu_layout = CpuLayout(("query", "memory", "value", "heads.out"))

    @property
    def tensor_plan(self) -> TensorPlan:
        own = () if self.value is None else ("value",)
        return TensorPlan(heads=("query", "memory", *own), sizes={"heads": self.query.shape[0]})

    def describe(self) -> AttentionWeights:
        return self.heads.describe(self.query)

    @property
    def width(self) -> int:
        return self.query.shape[0] * (self.heads.head_dim + self.heads.value_dim) // 2

    def project_memory(self, states: Float[Tensor, "B S M"]) -> KeyValue:
        """Keys and values of memory, computed once per input and reused by all decoding steps."""
        keys, values = self.memory(states) if self.value is None else self.memory(states) + self.value(states)
        return KeyValue(self.heads.project_keys(keys), values)

    def project_query(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H E"]:
        (query,) = self.query(x)
        return self.heads.project_query(query)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: KeyValue,
        *,
        mask: Bool[Tensor, "N S"] | Packing | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "B T D"]:
        query = self.project_query(x)
        packed, padding = split_mask(mask)
        if packing is not None:
            assert packed is not None, "packed sequences need packed memory"
            return self.heads(self, query, memory.keys, memory.values, mask=None, packings=(packing, packed))
        if x.shape[0] > memory.keys.shape[0] or (x.shape[1] == 1 and step_attention.supports(query)):
            return self._attend_to_shared_memory(query, memory, padding)
        real = None if padding is None else masks.padding(padding)
        return self.heads(self, query, memory.keys, memory.values, mask=real)

    def _attend_to_shared_memory(
        self, query: Float[Tensor, "B n H E"], memory: KeyValue, mask: Bool[Tensor, "N S"] | None
    ) -> Float[Tensor, "B n D"]:
        """A decoding step on a CPU: consecutive rows (beams) may share a row of memory and attend to it together."""
        rows, memory_rows = query.shape[0], memory.keys.shape[0]
        if not self.heads.is_plain or self.heads.has_own_value_width:  # each row has weights of its own
            each = torch.arange(memory_rows).repeat_interleave(rows // memory_rows)
            memory = KeyValue(memory.keys[each], memory.values[each])
            real = None if mask is None else masks.padding(mask[each])
            return self.heads(self, query, memory.keys, memory.values, mask=real)
        grouped = query.reshape(memory_rows, -1, *query.shape[2:])
        y = step_attention.attend_few_queries(grouped, memory.keys, memory.values, scale=self.heads.scale, keep=mask)
        return self.heads.out(y.reshape(rows, query.shape[1], -1))
