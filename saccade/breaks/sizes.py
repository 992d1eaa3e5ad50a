"""Breaks of how models are built and of how `saccade plan` counts them."""

from __future__ import annotations

from typing import Any

from torch import nn

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Learned, Sinusoidal
from saccade.layers.blocks.feedforward import FeedForward
from saccade.model.build import embeddings, transformer
from saccade.model.build import model as build_model
from saccade.model.writers import labels
from saccade.plan import counts, flops
from saccade.plan.estimate import TrainingTime

# ---- models


@break_code("no-positions", "Positional encodings are zero: learned, sinusoidal, and those of relative positions.")
def drop_positions(patch: Patch) -> None:
    for kind in Learned, Sinusoidal:
        patch.replace(kind.forward, lambda original, self, positions: 0 * original(self, positions))


@break_code(
    "inverted-feed-forward-bias", "Feed-forward networks have biases if they should not, and none if they should."
)
def invert_bias(patch: Patch) -> None:
    def init(original: Any, self: FeedForward, dim: int, *, bias: bool = True, **settings: Any) -> None:
        original(self, dim, bias=not bias, **settings)

    patch.replace(FeedForward.__init__, init)


@break_code("narrow-feed-forward", "Feed-forward networks are half as wide as the recipe says.")
def halve_feedforward(patch: Patch) -> None:
    def init(original: Any, self: FeedForward, dim: int, *, hidden_dim: int, **settings: Any) -> None:
        original(self, dim, hidden_dim=hidden_dim // 2, **settings)

    patch.replace(FeedForward.__init__, init)


@break_code("untied-output", "The output matrix is one of its own instead of the token embedding.")
def untie_output(patch: Patch) -> None:
    def build(original: Any, tokens: nn.Embedding) -> nn.Linear:
        output: nn.Linear = original(tokens)
        output.weight = nn.Parameter(tokens.weight.detach().clone())
        return output

    patch.replace(build_model.tie_output, build)


@break_code("memory-not-read", "Cross-attention gets zeros in place of the encoder's states.")
def hide_memory(patch: Patch) -> None:
    patch.replace(CrossAttention.project_memory, lambda original, self, states: original(self, 0 * states))


@break_code("single-head", "Self-attention has one head of the whole width.")
def merge_heads(patch: Patch) -> None:
    def init(original: Any, self: SelfAttention, dim: int, *, heads: Any, **settings: Any) -> None:
        original(self, dim, heads=1, **settings)

    patch.replace(SelfAttention.__init__, init)


@break_code("one-layer-more", "A Transformer stack has one layer more than the recipe says.")
def add_layer(patch: Patch) -> None:
    def build(original: Any, s: Any, *args: Any, **settings: Any) -> nn.Module:
        stack: nn.Module = original(s.model_copy(update={"layers": s.layers + 1}), *args, **settings)
        return stack

    patch.replace(transformer.build_transformer, build)


@break_code("no-segment-vectors", "The embedding has no segment vectors.")
def drop_segments(patch: Patch) -> None:
    def build(original: Any, *args: Any) -> nn.Module:
        embedding = original(*args)
        embedding.segments = None
        return embedding

    patch.replace(embeddings.build_embedding, build)


@break_code("pooler-of-the-mean", "The states of a sequence are pooled by their mean, whatever pooling is asked for.")
def pool_mean(patch: Patch) -> None:
    patch.replace(labels.pool_states, lambda original, memory, pooling: original(memory, "mean"))


@break_code("shared-relative-keys", "All layers share the matrix that makes keys of relative positions.")
def share_relative_keys(patch: Patch) -> None:
    def build(original: Any, settings: Any, s: Any, *, causal: bool) -> list[Any]:
        return [original(settings, s, causal=causal)[0]] * int(s.layers)

    patch.replace(transformer.build_score_terms, build)


@break_code("window-settings-ignored", "Layers with a window attend to all positions.")
def drop_windows(patch: Patch) -> None:
    patch.replace(transformer.get_window_sizes, lambda original, s: None)


# ---- counts of `saccade plan`


@break_code("scores-not-counted", "FLOPs of attention scores and weighted sums are left out.")
def drop_scores(patch: Patch) -> None:
    patch.replace(flops.count_scores, lambda original, *args, **settings: 0)


@break_code("output-not-counted", "FLOPs of the output matrix are left out where it is tied to the embedding.")
def drop_output(patch: Patch) -> None:
    def count(original: Any, model: nn.Module, *, is_source: bool) -> float:
        head = (use for use in counts.iterate_uses(model) if use.part == "head" and use.is_source == is_source)
        return float(original(model, is_source=is_source) - sum(use.share * use.parameter.numel() for use in head))

    patch.replace(counts.count_active, count)


@break_code("free-backward-pass", "FLOPs of training are those of the forward pass.")
def drop_backward(patch: Patch) -> None:
    patch.replace(flops.Flops.get_training, lambda original, self, *, recompute=False: self.mean)


@break_code("one-gpu", "The speed of several GPUs is that of one.")
def use_one_gpu(patch: Patch) -> None:
    fget: Any = TrainingTime.tokens_per_second.fget  # type: ignore[attr-defined]
    patch.replace(fget, lambda original, self: original(self) / self.gpus)


@break_code("price-of-one-gpu", "The price is that of one GPU, however many there are.")
def pay_one_gpu(patch: Patch) -> None:
    fget: Any = TrainingTime.dollars.fget  # type: ignore[attr-defined]
    patch.replace(fget, lambda original, self: original(self) / self.gpus)
