"""Estimate the GPU memory of training and of decoding.

The peak occurs at one of two moments: when the loss is computed, with all activations saved for the backward pass, or
at the end of the backward pass, when these are freed and all gradients exist. With gradient accumulation, gradients
exist at both moments.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from saccade.config.schema import Recipe
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.losses.cross_entropy import (
    GPU_CHUNK_BYTES,
    GPU_MEMORY_DIVISOR,
    VOCABULARY_ALIGNMENT,
    get_chunk_rows,
)
from saccade.model.model import Model
from saccade.plan.activations import FLOAT32_BYTES, BytesPerToken, TrainingSetup, count_saved
from saccade.plan.counts import (
    count_matmul_parameters,
    count_parameters,
    count_trainable,
    get_predicted_share,
    get_transformer_stack,
)
from saccade.plan.hardware import Gpu
from saccade.train.batches.pack import get_size_step, round_up
from saccade.train.machine import MEMORY_MARGIN
from saccade.train.objectives.masked import count_target_slots
from saccade.train.objectives.terms import BIAS_COLUMNS

WORKSPACE_BYTES = 64 * 2**20  # cuBLAS workspaces of two streams
COMPILE_FACTOR = 1.15  # saved bytes with torch.compile over those without, as measured in two runs (8.4 and 25.1 GB)
BATCH_STEP = 64  # tokens: granularity of the largest batch


@dataclass(frozen=True)
class FixedMemory:
    """Bytes that do not depend on the batch; parameters, gradients and Adam's two moments are float32."""

    weights: int
    gradients: int
    optimizer: int
    average: int  # the exponential moving average, if used
    matmul_copies: int  # bfloat16 copies of the matrices, from the forward to the backward pass

    @property
    def persistent(self) -> int:
        """The bytes that are in use between two steps, without the gradients."""
        return self.weights + self.optimizer + self.average


@dataclass(frozen=True)
class LossMemory:
    """Bytes while the loss is computed in chunks of tokens."""

    piece: int  # logits of one chunk
    hidden: int  # the last states, also in the matmul dtype, and their gradients
    matrix: int  # the output matrix in the matmul dtype, and its gradient in float32

    @property
    def total(self) -> int:
        return self.piece + self.hidden + self.matrix


class Memory:
    """The memory of training one recipe on one kind of GPU."""

    def __init__(self, recipe: Recipe, model: Model, gpu: Gpu, *, length: int) -> None:
        train = recipe.train
        self.model, self.gpu, self.is_compiled = model, gpu, train.compile
        self.accumulates = train.accumulate > 1
        matmul = FLOAT32_BYTES if train.precision == "fp32" else 2
        residual = matmul if train.residual_precision == "bf16" else FLOAT32_BYTES
        self.setup = TrainingSetup(
            matmul_bytes=matmul, residual_bytes=residual, length=length, recompute=train.recompute
        )
        self.predicted_share = get_predicted_share(recipe, model)
        self.target_ratio = recipe.task.get_target_ratio(recipe)
        self.forward_passes = max(objective.forward_passes for objective in recipe.objectives)
        gradients = FLOAT32_BYTES * count_trainable(model)
        self.fixed = FixedMemory(
            weights=FLOAT32_BYTES * count_parameters(model),
            gradients=gradients,
            optimizer=2 * gradients,
            average=FLOAT32_BYTES * count_parameters(model) if train.ema else 0,
            matmul_copies=matmul * count_matmul_parameters(model) if matmul < FLOAT32_BYTES else 0,
        )

    def get_activations(self, *, recompute: bool | None = None) -> BytesPerToken | None:
        """Return the saved bytes per token; None for stacks that are not Transformers."""
        setup = self.setup if recompute is None else self.setup._replace(recompute=recompute)
        found = count_saved(self.model, setup)
        factor = (COMPILE_FACTOR if self.is_compiled else 1.0) * self.forward_passes
        return found and BytesPerToken(factor * found.source, factor * found.target)

    def get_loss(self, tokens: int) -> LossMemory:
        """Return the memory of the loss of this many target tokens."""
        vocabulary, dim = get_output_shape(self.model)
        if not vocabulary:
            return LossMemory(0, 0, 0)
        width = -(-vocabulary // VOCABULARY_ALIGNMENT) * VOCABULARY_ALIGNMENT
        row = self.forward_passes * width * self.setup.matmul_bytes
        rows = get_chunk_rows(
            tokens, row_bytes=row, chunk_bytes=min(GPU_CHUNK_BYTES, int(self.gpu.memory / GPU_MEMORY_DIVISOR))
        )
        bias = self.model.writer.output.bias
        # The loss joins matrix and bias in one tensor.
        joined = 0 if bias is None else FLOAT32_BYTES * vocabulary * (dim + BIAS_COLUMNS)
        stack = get_transformer_stack(self.model.writer)
        pre = stack is not None and stack.blocks[0].residuals[0].pre_norm
        states = self.setup.matmul_bytes if pre else self.setup.residual_bytes
        cast = 0 if states == self.setup.matmul_bytes else self.setup.matmul_bytes
        return LossMemory(
            piece=min(rows, tokens) * row,
            hidden=self.forward_passes * tokens * dim * (2 * states + cast),  # states and gradients
            matrix=width * dim * (FLOAT32_BYTES + self.setup.matmul_bytes) + joined,
        )

    def get_peak(self, source: int, target: int, *, recompute: bool | None = None) -> float | None:
        """Return the peak memory for a batch of this many source and target tokens."""
        each = self.get_activations(recompute=recompute)
        if each is None:
            return None
        at_loss = each.get_total(source, target) + self.fixed.matmul_copies + self.get_loss(target).total
        at_loss += self.fixed.gradients if self.accumulates else 0  # of earlier micro-batches
        vocabulary, dim = get_output_shape(self.model)
        at_end = self.fixed.gradients + 2 * FLOAT32_BYTES * vocabulary * dim  # a tied matrix gets two gradients
        return self.fixed.persistent + max(at_loss, at_end) + WORKSPACE_BYTES

    def get_batch_peak(self, batch_tokens: int, *, recompute: bool | None = None) -> float | None:
        """Return the peak memory of a full batch, whose size is rounded up as in training."""
        row = round_up(batch_tokens, get_size_step(batch_tokens))
        return self.get_peak(
            0 if self.model.reader is None else row, self.count_target_tokens(row), recompute=recompute
        )

    def count_target_tokens(self, tokens: int) -> int:
        """Return the tokens that pass through the writer in a batch of `tokens` source tokens."""
        return (
            math.ceil(self.target_ratio * tokens)
            if self.predicted_share is None
            else count_target_slots(tokens, self.predicted_share)
        )

    def find_largest_batch(self, *, recompute: bool | None = None) -> int | None:
        """Return the largest `train.batch_tokens` that fits with a margin for fragmentation; 0 if none fits."""
        room = self.fixed.persistent + MEMORY_MARGIN * (self.gpu.memory - self.fixed.persistent)
        if self.get_batch_peak(BATCH_STEP, recompute=recompute) is None:
            return None
        low, high = 0, 1
        while (self.get_batch_peak(high * BATCH_STEP, recompute=recompute) or 0) <= room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = (self.get_batch_peak(middle * BATCH_STEP, recompute=recompute) or 0) <= room
            low, high = (middle, high) if fits else (low, middle)
        return low * BATCH_STEP

    def get_cache(self) -> BytesPerToken | None:
        """Return the bytes of the key-value cache per token; None for other stacks, which have a fixed-size state."""
        stack = get_transformer_stack(self.model.writer)
        return None if stack is None else count_cache(stack, self.setup.matmul_bytes)

    def as_dict(self, batch_tokens: int) -> dict[str, Any]:
        each, without, cache = self.get_activations(), self.get_activations(recompute=True), self.get_cache()
        return {
            **{("narrow" if key == "matmul_copies" else key): size for key, size in asdict(self.fixed).items()},
            "activations_per_token": each and each._asdict(),
            "activations_per_token_with_recompute": without and without._asdict(),
            "loss": asdict(self.get_loss(self.count_target_tokens(batch_tokens))),
            "cache_per_token": cache and cache._asdict(),
            "peak": self.get_batch_peak(batch_tokens),
            "peak_with_recompute": self.get_batch_peak(batch_tokens, recompute=True),
            "largest_batch_tokens": self.find_largest_batch(),
            "largest_batch_tokens_with_recompute": self.find_largest_batch(recompute=True),
        }


def get_output_shape(model: Model) -> tuple[int, int]:
    """Return the shape of the output matrix; (0, 0) for a writer without one."""
    output = model.writer.output
    return (0, 0) if output is None else (output.out_features, output.in_features)


def count_cache(stack: TransformerStack, value_bytes: int) -> BytesPerToken:
    """Count keys and values of all layers: of target tokens, and of source tokens in layers with cross-attention."""
    own = across = 0
    for block in stack.blocks:
        heads, shared = block.self.project.shape[0], block.self.heads
        width = heads * (shared.head_dim + shared.value_dim)
        own += width
        across += width if block.cross is not None else 0
    return BytesPerToken(value_bytes * across, value_bytes * own)
