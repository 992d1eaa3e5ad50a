"""Bytes on the GPU while a model trains, and while it writes.

The most is there at one of two moments: when the loss is computed, with everything kept for the backward pass, or at
the end of the backward pass, when that is gone and all gradients are there. Where several micro-batches make a step,
gradients are there at both.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from saccade.config.schema import Recipe
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.losses.cross_entropy import ALIGNED, PIECE_ON_GPU, SHARE, rows_at_once
from saccade.model.model import Model
from saccade.plan.activations import Kept, Way, kept
from saccade.plan.counts import parameters, products, stack_of, trained, written_share
from saccade.plan.hardware import Gpu
from saccade.train.batches.pack import rounded, step_of
from saccade.train.machine import MARGIN
from saccade.train.objectives.masked import most_hidden
from saccade.train.objectives.terms import COLUMNS

SINGLE = 4  # bytes: weights, gradients and both moments of Adam are float32
WORKSPACE = 64 * 2**20  # of cuBLAS, for two streams
COMPILED = 1.15  # kept tensors with torch.compile over those without; both known runs, 8.4 and 25.1 GB, are so
STEP = 64  # tokens: how exactly the largest batch is told


@dataclass(frozen=True)
class Fixed:
    """Bytes that do not depend on the batch."""

    weights: int
    gradients: int
    optimizer: int
    average: int  # the moving average, where there is one
    narrow: int  # copies of the matrices in bfloat16, which live from the forward to the backward pass

    @property
    def stays(self) -> int:
        """Between two steps too, without the gradients."""
        return self.weights + self.optimizer + self.average


@dataclass(frozen=True)
class Loss:
    """Bytes while the loss is computed: logits of one piece, and gradients that are made with them."""

    piece: int
    hidden: int  # gradients of the last states, and these as products read them
    matrix: int  # the gradient of the output matrix in float32, and the matrix as products read it

    @property
    def total(self) -> int:
        return self.piece + self.hidden + self.matrix


class Memory:
    """The memory of one recipe on one kind of GPU."""

    def __init__(self, recipe: Recipe, model: Model, gpu: Gpu, *, length: int) -> None:
        train = recipe.train
        self.model, self.gpu, self.compiled = model, gpu, train.compile
        self.accumulates = train.accumulate > 1
        narrow = SINGLE if train.precision == "fp32" else 2
        wide = narrow if train.residual == "bf16" else SINGLE
        self.way = Way(narrow=narrow, wide=wide, length=length, recompute=train.recompute)
        self.share, self.beside = written_share(recipe, model), recipe.task.get_target_ratio(recipe)
        self.passes = max(objective.forward_passes for objective in recipe.objectives)
        learned = SINGLE * trained(model)
        self.fixed = Fixed(
            weights=SINGLE * parameters(model),
            gradients=learned,
            optimizer=2 * learned,
            average=SINGLE * parameters(model) if train.ema else 0,
            narrow=narrow * products(model) if narrow < SINGLE else 0,
        )

    def kept(self, *, recompute: bool | None = None) -> Kept | None:
        """For a token of each side; None where that is not known."""
        way = self.way if recompute is None else self.way._replace(recompute=recompute)
        found = kept(self.model, way)
        factor = (COMPILED if self.compiled else 1.0) * self.passes
        return found and Kept(factor * found.source, factor * found.target)

    def loss(self, tokens: int) -> Loss:
        """For so many tokens that are written."""
        vocabulary, dim = head_of(self.model)
        if not vocabulary:
            return Loss(0, 0, 0)
        width = -(-vocabulary // ALIGNED) * ALIGNED
        row = self.passes * width * self.way.narrow
        rows = rows_at_once(tokens, row_bytes=row, room=min(PIECE_ON_GPU, int(self.gpu.memory / SHARE)))
        bias = self.model.writer.output.bias
        joined = 0 if bias is None else SINGLE * vocabulary * (dim + COLUMNS)  # matrix and bias as one
        stack = stack_of(self.model.writer)
        pre = stack is not None and stack.blocks[0].residuals[0].pre
        states = self.way.narrow if pre else self.way.wide
        read = 0 if states == self.way.narrow else self.way.narrow
        return Loss(
            piece=min(rows, tokens) * row,
            hidden=self.passes * tokens * dim * (2 * states + read),  # the states themselves, and their gradients
            matrix=width * dim * (SINGLE + self.way.narrow) + joined,
        )

    def peak(self, source: int, target: int, *, recompute: bool | None = None) -> float | None:
        """The most that is there at once, for a batch of so many tokens."""
        each = self.kept(recompute=recompute)
        if each is None:
            return None
        at_loss = each.of(source, target) + self.fixed.narrow + self.loss(target).total
        at_loss += self.fixed.gradients if self.accumulates else 0  # those of the micro-batches before
        vocabulary, dim = head_of(self.model)
        at_end = self.fixed.gradients + 2 * SINGLE * vocabulary * dim  # a tied matrix gets its gradient in two parts
        return self.fixed.stays + max(at_loss, at_end) + WORKSPACE

    def peak_of_batch(self, batch_tokens: int, *, recompute: bool | None = None) -> float | None:
        """For a full batch, filled up to one of few shapes."""
        row = rounded(batch_tokens, step_of(batch_tokens))
        return self.peak(0 if self.model.reader is None else row, self.written(row), recompute=recompute)

    def written(self, tokens: int) -> int:
        """How many tokens pass the writer in a batch of so many that are read, or of so many where nothing is."""
        return math.ceil(self.beside * tokens) if self.share is None else most_hidden(tokens, self.share)

    def largest_batch(self, *, recompute: bool | None = None) -> int | None:
        """The most `train.batch_tokens` that fit, some memory left over since it breaks into pieces; 0: none."""
        room = self.fixed.stays + MARGIN * (self.gpu.memory - self.fixed.stays)
        if self.peak_of_batch(STEP, recompute=recompute) is None:
            return None
        low, high = 0, 1
        while (self.peak_of_batch(high * STEP, recompute=recompute) or 0) <= room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = (self.peak_of_batch(middle * STEP, recompute=recompute) or 0) <= room
            low, high = (middle, high) if fits else (low, middle)
        return low * STEP

    def cache(self) -> Kept | None:
        """Keys and values of a token in decoding, for one row; None where states are carried instead."""
        stack = stack_of(self.model.writer)
        return None if stack is None else cache_of(stack, self.way.narrow)

    def as_dict(self, batch_tokens: int) -> dict[str, Any]:
        each, without, cache = self.kept(), self.kept(recompute=True), self.cache()
        return {
            **asdict(self.fixed),
            "activations_per_token": each and each._asdict(),
            "activations_per_token_with_recompute": without and without._asdict(),
            "loss": asdict(self.loss(self.written(batch_tokens))),
            "cache_per_token": cache and cache._asdict(),
            "peak": self.peak_of_batch(batch_tokens),
            "peak_with_recompute": self.peak_of_batch(batch_tokens, recompute=True),
            "largest_batch_tokens": self.largest_batch(),
            "largest_batch_tokens_with_recompute": self.largest_batch(recompute=True),
        }


def head_of(model: Model) -> tuple[int, int]:
    """The shape of the output matrix; nothing where a writer has none that the loss could take piece by piece."""
    output = model.writer.output
    return (0, 0) if output is None else (output.out_features, output.in_features)


def cache_of(stack: TransformerStack, size: int) -> Kept:
    """Two vectors in each layer: of what is written, and of what was read where the layer looks at it."""
    own = across = 0
    for block in stack.blocks:
        heads, _, head_dim = block.self.project.shape
        own += 2 * heads * head_dim
        across += 2 * heads * head_dim if block.cross is not None else 0
    return Kept(size * across, size * own)
