"""Breaks of what makes GPT, BERT, RoBERTa, ALBERT, XLNet, Reformer and T5 themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.data.batching import segments
from saccade.data.batching.spans import TARGET, CorruptedSpans
from saccade.layers.attention import lsh, two_stream
from saccade.layers.attention.positions import Bucketed
from saccade.layers.blocks import residual, reversible
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.build import transformer
from saccade.model.readers import tokens
from saccade.model.readers.tokens import Embedding
from saccade.model.writers import labels
from saccade.train.objectives import masked
from saccade.train.objectives.masked import MaskedTokens

# ---- embeddings and blocks


@break_code("embedding-without-positions", "Input embeddings leave positions out.")
def drop_positions(patch: Patch) -> None:
    def forward(original: Any, self: Embedding, *given: Any) -> Tensor:
        positions, self.positions = self.positions, None
        try:
            y: Tensor = original(self, *given)
            return y
        finally:
            self.positions = positions

    patch.replace(Embedding.forward, forward)


@break_code("segments-ignored", "All tokens belong to the first segment.")
def ignore_segments(patch: Patch) -> None:
    patch.replace(tokens.get_segment_ids, lambda original, *given: 0 * original(*given))


@break_code("sublayers-without-norm", "Pre-norm sublayers, and the end of their stack, are not normalized.")
def drop_norms(patch: Patch) -> None:
    def add(original: Any, *given: Any) -> tuple[Tensor, Tensor]:
        total = original(*given)[1]
        return total, total

    patch.replace(residual.add_and_normalize, add)


@break_code("windows-ignored", "Layers with a window attend to everything that comes before.")
def ignore_windows(patch: Patch) -> None:
    def build(original: Any, self: TransformerStack, keep: Any, window: Any, *rest: Any) -> Any:
        return original(self, keep, None, *rest)

    patch.replace(TransformerStack.build_mask, build)


@break_code("layers-not-shared", "Layers that should share their weights have weights of their own.")
def separate_layers(patch: Patch) -> None:
    def build(original: Any, settings: Any, *rest: Any, **more: Any) -> Any:
        return original(settings.model_copy(update={"share_layers": False}), *rest, **more)

    patch.replace(transformer.build_transformer, build)


@break_code("one-bucket-for-all-distances", "Relative positions of T5 have one bucket for all distances.")
def use_one_bucket(patch: Patch) -> None:
    patch.replace(Bucketed.get_bucket, lambda original, self, distances: 0 * original(self, distances))


# ---- masked words, sentence pairs, spans


@break_code("masked-words-stay", "The encoder reads the words that it has to predict.")
def keep_words(patch: Patch) -> None:
    def mask(original: Any, given: Any, *rest: Any) -> MaskedTokens:
        return MaskedTokens(given.ids, original(given, *rest).is_target)

    patch.replace(masked.mask_tokens, mask)


@break_code("all-masked-words-become-masks", "All predicted words become masks: none stays or becomes another word.")
def mask_all(patch: Patch) -> None:
    def mask(original: Any, given: Any, noise: Any, masking: Any) -> Any:
        return original(given, noise, masking._replace(mask_replace_prob=1.0, random_replace_prob=0.0))

    patch.replace(masked.mask_tokens, mask)


@break_code("masks-never-change", "A text is masked in the same way each time, whatever `dynamic_masking` says.")
def mask_once(patch: Patch) -> None:
    patch.replace(masked.sample_noise, lambda original, given, generator: masked.hash_noise(given))


@break_code("sentence-pairs-by-the-mean", "The head for sentence pairs gets the mean of the states, not the first.")
def pool_the_mean(patch: Patch) -> None:
    patch.replace(labels.pool_states, lambda original, memory, pooling: original(memory, "mean"))


@break_code("second-sentence-never-replaced", "Negative sentence pairs of BERT keep their second segment.")
def keep_second_sentence(patch: Patch) -> None:
    patch.replace(
        segments._replace_second_segments, lambda original, own, others, chosen: original(own, others, chosen & False)
    )


@break_code("sentences-never-swapped", "Negative sentence pairs of ALBERT keep their order.")
def keep_order(patch: Patch) -> None:
    patch.replace(segments._swap_segments, lambda original, own, swap: original(own, swap & False))


@break_code("one-sentinel-for-all-spans", "All corrupted spans of T5 have the same sentinel.")
def use_one_sentinel(patch: Patch) -> None:
    def sample(original: Any, *given: Any) -> tuple[np.ndarray, np.ndarray]:
        runs, sentinels = original(*given)
        return runs, np.minimum(sentinels, 0)

    patch.replace(CorruptedSpans._sample_spans, sample)


@break_code("targets-with-other-spans", "The targets of T5 are other spans than those that are missing in the source.")
def sample_other_spans(patch: Patch) -> None:
    def gather(original: Any, self: CorruptedSpans, rows: np.ndarray, *, side: int, variant: int = 0) -> Any:
        before, self.seed_key = self.seed_key, (self.seed_key[0], self.seed_key[1] + (side == TARGET))
        try:
            return original(self, rows, side=side, variant=variant)
        finally:
            self.seed_key = before

    patch.replace(CorruptedSpans.gather, gather)


# ---- XLNet


@break_code("permutation-by-position", "The factorization order of XLNet is always from left to right.")
def ignore_order(patch: Patch) -> None:
    def build(original: Any, order: Tensor) -> Tensor:
        found: Tensor = original(torch.where(order < 0, order, torch.arange(order.shape[1])))
        return found

    patch.replace(two_stream.build_permutation_mask, build)


@break_code("queries-see-their-own-word", "The query stream of XLNet sees the word that it predicts.")
def reveal_words(patch: Patch) -> None:
    def build(original: Any, order: Tensor) -> Tensor:
        found: Tensor = original(order) | torch.eye(order.shape[1], dtype=torch.bool)
        return found

    patch.replace(two_stream.build_permutation_mask, build)


@break_code("no-memory-of-the-segment-before", "The memory of the segment before is all zeros.")
def forget_memory(patch: Patch) -> None:
    def run(original: Any, *given: Any, memory: Any = (), **rest: Any) -> Any:
        return original(*given, memory=tuple(0 * part for part in memory), **rest)

    patch.replace(two_stream.run_two_streams, run)


# ---- Reformer


@break_code("random-hash-buckets", "Hash buckets of LSH attention do not depend on the vectors.")
def hash_randomly(patch: Patch) -> None:
    def compute(original: Any, qk: Tensor, rotations: Tensor, factors: Any) -> Tensor:
        found: Tensor = original(torch.randn_like(qk), rotations, factors)
        return found

    patch.replace(lsh.hash_vectors, compute)


@break_code("hashed-keys-keep-their-length", "Keys of LSH attention are queries that are not normalized.")
def keep_lengths(patch: Patch) -> None:
    patch.replace(lsh.normalize_keys, lambda original, x: x)


@break_code(
    "reversible-layers-not-reversed", "The backward pass takes the outputs of reversible layers for their inputs."
)
def keep_outputs(patch: Patch) -> None:
    def invert(original: Any, block: Any, trace: Any, choices: Any, mask: Any, outputs: Any, gradients: Any) -> Any:
        found = original(block, trace, choices, mask, outputs, gradients)
        return *outputs[:2], *found[2:]

    patch.replace(reversible._invert_block, invert)
