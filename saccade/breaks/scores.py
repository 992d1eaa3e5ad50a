"""Breaks of attention scores, projections, masks, and of the layer whose items are columns."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from saccade.breaks.attention import change_weights, use_reference_attention
from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention import columns, scores
from saccade.layers.attention.cache import KeyValue
from saccade.layers.attention.columns import ColumnLayer, Head
from saccade.layers.attention.masks import Causal, Padding
from saccade.layers.attention.multihead import CrossAttention, HeadProjection, SelfAttention, _AttentionHeads
from saccade.layers.attention.scores import Additive, AttentionLayer, Bilinear
from saccade.train import optimizer

# ---- scores


def set_head_scale(patch: Patch, scale: Any) -> None:
    """Build multi-head attention with scale(dim, head width) in place of 1/√(head width)."""

    def build(original: Any, self: _AttentionHeads, dim: int, **how: Any) -> None:
        original(self, dim, **how)
        if how["scale"]:
            self.scale = scale(dim, self.head_dim)

    patch.replace(_AttentionHeads.__init__, build)


@break_code("unscaled-scores", "Scaled dot products are not divided by the root of the width.")
def leave_out_scale(patch: Patch) -> None:
    patch.replace(scores.scaled_dot, lambda original, query, key: scores.dot(query, key))
    set_head_scale(patch, lambda dim, width: 1.0)


@break_code("scores-divided-by-the-width", "Scaled dot products are divided by the width instead of its root.")
def divide_by_the_width(patch: Patch) -> None:
    patch.replace(scores.scaled_dot, lambda original, query, key: scores.dot(query / query.shape[-1], key))
    set_head_scale(patch, lambda dim, width: 1 / width)


@break_code("scores-scaled-by-the-model-width", "Scores of a head are divided by the root of the model's width.")
def scale_by_the_model_width(patch: Patch) -> None:
    set_head_scale(patch, lambda dim, width: 1 / math.sqrt(dim))


@break_code("dot-products-scaled", "Plain dot products are divided by the root of the width too.")
def scale_dot_products(patch: Patch) -> None:
    use_reference_attention(patch)
    patch.replace(scores.dot, lambda original, query, key: original(query / math.sqrt(query.shape[-1]), key))


@break_code("dot-products-without-the-last-feature", "Dot products leave out the last feature.")
def leave_out_a_feature(patch: Patch) -> None:
    use_reference_attention(patch)

    def dot(original: Any, query: Tensor, key: Tensor) -> Tensor:
        found: Tensor = original(query, key)
        return found - query[..., -1:] * key[..., -1:].mT

    patch.replace(scores.dot, dot)


@break_code("widths-not-compared", "Dot products of unequal widths use the features that both have.")
def crop_widths(patch: Patch) -> None:
    def dot(original: Any, query: Tensor, key: Tensor) -> Tensor:
        width = min(query.shape[-1], key.shape[-1])
        found: Tensor = original(query[..., :width], key[..., :width])
        return found

    patch.replace(scores.dot, dot)


@break_code("own-score-ignored", "Attention computes scaled dot products whatever score is chosen.")
def ignore_the_score(patch: Patch) -> None:
    patch.replace(_AttentionHeads.set_score, lambda original, self, score: None)
    patch.replace(
        scores.attend,
        lambda original, query, key, value, *, score=None, **how: original(
            query, key, value, score=score if getattr(score, "__name__", "") == "compute_scores" else None, **how
        ),
    )


@break_code("additive-score-without-tanh", "The additive score has no tanh.")
def leave_out_tanh(patch: Patch) -> None:
    def score(original: Any, self: Additive, query: Tensor, keys: Tensor) -> Tensor:
        hidden = self.query(query).unsqueeze(-2) + keys.unsqueeze(-3)
        if self.heads is None:
            return self.energy(hidden).squeeze(-1)
        return self.energy(hidden.flatten(-3, -2)).squeeze(-1).unflatten(-1, hidden.shape[-3:-1])

    patch.replace(Additive.score_projected, score)


@break_code("bilinear-score-without-matrix", "The bilinear score is a plain dot product.")
def leave_out_the_matrix(patch: Patch) -> None:
    patch.replace(Bilinear.project_keys, lambda original, self, key: key)
    patch.replace(Bilinear.forward, lambda original, self, query, key: scores.dot(query, key))


# ---- projections


@break_code("key-and-value-widths-swapped", "The single-head layer takes d_k for d_v and d_v for d_k.")
def swap_widths(patch: Patch) -> None:
    def build(
        original: Any, self: AttentionLayer, dim: int, *, key_dim: int, value_dim: int, score: Any = None
    ) -> None:
        original(self, dim, key_dim=value_dim, value_dim=key_dim, score=score)

    patch.replace(AttentionLayer.__init__, build)


@break_code("queries-from-the-key-matrix", "Queries are projected by the matrix of the keys.")
def share_key_matrix(patch: Patch) -> None:
    def project(original: Any, self: HeadProjection, x: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = original(self, x)
        return (parts[1], *parts[1:]) if len(parts) == 3 else parts

    def run(original: Any, self: AttentionLayer, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return scores.attend(self.key(x), self.key(x), self.value(x), score=self.score, mask=mask)[0]

    patch.replace(HeadProjection.forward, project)
    patch.replace(AttentionLayer.forward, run)
    patch.replace(columns.head_forward, lambda original, h, stacked, hard: original(h, share_rows(stacked), hard))


def share_rows(stacked: Tensor) -> Tensor:
    _, key, value = stacked.chunk(3)
    return torch.cat((key, key, value))


@break_code("keys-and-values-swapped", "Multi-head attention takes keys for values and values for keys.")
def swap_keys_and_values(patch: Patch) -> None:
    def project(original: Any, self: SelfAttention, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        query, key, value = original(self, x, positions)
        return query, value, key

    def project_memory(original: Any, self: CrossAttention, states: Tensor) -> KeyValue:
        found: KeyValue = original(self, states)
        return KeyValue(found.values, found.keys)

    patch.replace(SelfAttention.project_heads, project)
    patch.replace(CrossAttention.project_memory, project_memory)


@break_code("values-are-keys", "The value matrix is not used: values are the keys.")
def use_keys_as_values(patch: Patch) -> None:
    def project(original: Any, self: HeadProjection, x: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = original(self, x)
        return (*parts[:-1], parts[-2]) if len(parts) > 1 else parts

    patch.replace(HeadProjection.forward, project)


@break_code("projections-not-trained", "The optimizer leaves out the matrices of queries and keys.")
def leave_out_projections(patch: Patch) -> None:
    def split(original: Any, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        decayed, free = original(model)
        named = dict(model.named_parameters())
        left_out = {id(p) for name, p in named.items() if name.endswith(("query.weight", "key.weight", "t.weight"))}
        return [p for p in decayed if id(p) not in left_out], free

    patch.replace(optimizer.split_by_decay, split)


# ---- weights and masks


@break_code("weights-not-normalized", "Attention weights are exponentials that are not divided by their sum.")
def leave_out_the_sum(patch: Patch) -> None:
    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        hidden = values if mask is None else values.masked_fill(~mask, -torch.inf)
        return (hidden - values.amax(-1, keepdim=True)).exp()

    change_weights(patch, compute)


@break_code("mask-of-minus-twenty", "Masked scores are lowered by 20 instead of being set to minus infinity.")
def mask_softly(patch: Patch) -> None:
    use_reference_attention(patch)

    def compute(original: Any, values: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = original(values if mask is None else torch.where(mask, values, values - 20), None)
        return found

    patch.replace(scores.masked_softmax, compute)


@break_code("mask-after-the-softmax", "Masked weights are set to 0 after the softmax and the others renormalized.")
def mask_afterwards(patch: Patch) -> None:
    use_reference_attention(patch)

    def compute(original: Any, values: Tensor, mask: Tensor | None) -> Tensor:
        weights: Tensor = original(values, None)
        if mask is None:
            return weights
        weights = weights * mask
        return weights / weights.sum(-1, keepdim=True)

    patch.replace(scores.masked_softmax, compute)


@break_code("causal-mask-one-ahead", "The causal mask lets each query see the next key.")
def look_one_ahead(patch: Patch) -> None:
    patch.set(Causal, "is_causal", False)
    patch.replace(Causal.to_dense, lambda original, self, q_pos, k_pos: original(self, q_pos + 1, k_pos))


@break_code("causal-mask-hides-the-query", "The causal mask hides a query's own position, except for the first.")
def hide_the_query(patch: Patch) -> None:
    patch.set(Causal, "is_causal", False)
    patch.replace(Causal.to_dense, lambda original, self, q_pos, k_pos: original(self, (q_pos - 1).clamp(min=0), k_pos))


@break_code("padding-not-masked", "Attention sees padding; other masks work.")
def show_padding(patch: Patch) -> None:
    def to_dense(original: Any, self: Padding, *positions: Tensor) -> Tensor:
        return torch.ones_like(original(self, *positions))

    patch.replace(Padding.to_dense, to_dense)


# ---- items as columns


@break_code("column-scores-scaled", "The layer with items in columns divides its scores by the root of the width.")
def scale_column_scores(patch: Patch) -> None:
    def run(original: Any, h: Tensor, stacked: Tensor, hard: bool) -> Head:
        query, key, value = stacked.chunk(3)
        found: Head = original(h, torch.cat((query / math.sqrt(len(query)), key, value)), hard)
        return found

    patch.replace(columns.head_forward, run)


@break_code("column-softmax-over-rows", "The softmax over columns normalizes rows instead of columns.")
def normalize_rows(patch: Patch) -> None:
    patch.replace(columns.softmax, lambda original, m: original(m.T).T)


@break_code(
    "columns-stacked-in-another-order", "The layer with items in columns takes its stacked matrices as K, Q, V."
)
def stack_in_another_order(patch: Patch) -> None:
    def run(original: Any, h: Tensor, stacked: Tensor, hard: bool) -> Head:
        query, key, value = stacked.chunk(3)
        found: Head = original(h, torch.cat((key, query, value)), hard)
        return found

    patch.replace(columns.head_forward, run)


@break_code(
    "column-heads-in-reverse", "The layer with items in columns concatenates its heads from the last to the first."
)
def reverse_heads(patch: Patch) -> None:
    def run(original: Any, self: ColumnLayer, h: Tensor) -> Tensor:
        weight = torch.cat(self.weight.chunk(len(self.stacked), 1)[::-1], 1)
        found: Tensor = columns._ColumnAttention.apply(h, self.stacked, weight, self.bias, self.hard)
        return found

    patch.replace(ColumnLayer.forward, run)


@break_code("column-layer-without-sigmoid", "The layer with items in columns has no sigmoid after its heads.")
def leave_out_sigmoid(patch: Patch) -> None:
    patch.replace(ColumnLayer.forward, lambda original, self, h: torch.logit(original(self, h)))


@break_code("hard-attention-is-soft", "Hard attention is a softmax.")
def soften_hard_attention(patch: Patch) -> None:
    patch.replace(columns.argmax, lambda original, m: columns.softmax(m))


@break_code("hard-attention-to-the-least", "Hard attention chooses the item with the smallest score.")
def choose_the_least(patch: Patch) -> None:
    patch.replace(columns.argmax, lambda original, m: original(-m))


@break_code("column-backward-without-softmax", "The backward pass in columns leaves out the softmax's second term.")
def shorten_backward(patch: Patch) -> None:
    def run(original: Any, grad: Tensor, head: Head, hard: bool) -> Tensor:
        query, key, value, weights, _ = head
        d_scores = weights * (value.T @ grad)
        return torch.cat((key @ d_scores, query @ d_scores.T, grad @ weights.T))

    patch.replace(columns.head_backward, run)
