"""What a Transformer keeps of a token for the backward pass, in bytes.

For training as `saccade train` does it on a GPU: packed rows, fused attention, norms and activations joined with what
stands around them. Let D be the width, W that of all heads, F that of the feed-forward network, H the heads, n the
bytes of what products read (2 in bfloat16), w those of the sums that run along the layers (4, or 2 where train.residual
is bf16). Then a layer keeps

    self-attention      n D (input) + 3 n W (queries, keys, values) + n W (output) + 4 H (log-sums, long texts only)
    cross-attention     n D + n W + n W, and of each token that is read 2 n W (keys, values) + n M (memory as products
                        read it, made anew in each layer where it is wider than that)
    feed-forward        n D + n F (relu keeps what comes out), 2 n F (gelu, silu), 4 n F (with a gate)
    norm of each        w D (the sum that is normalised) + 8 (mean and scale)

and dropout nothing but a seed. The masks of dropout at the input are 1 D. With `recompute` a layer keeps its input
alone, and one layer at a time is there in full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from saccade.layers.attention.backends import SHORT
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.model.model import Model
from saccade.model.readers.again import Again
from saccade.model.readers.tokens import Embedding
from saccade.plan.counts import is_head, stack_of

SINGLE = 4  # bytes of float32
STATISTICS = 8  # bytes: mean and scale of a norm, in float32
SPARE = 2  # blocks of experts are filled in part: rows that they have room for, over those that they need


class Kept(NamedTuple):
    """Bytes for a token that is read and for one that is written."""

    source: float = 0.0
    target: float = 0.0

    def __add__(self, other: Any) -> Kept:
        return Kept(self.source + other.source, self.target + other.target)

    def of(self, source: float, target: float) -> float:
        """For so many tokens."""
        return source * self.source + target * self.target


class Way(NamedTuple):
    """How training computes."""

    narrow: int = 2  # bytes of a number that products read
    wide: int = 4  # and of one that runs along the layers
    length: int = 32  # tokens of a text
    recompute: bool = False


def kept(model: Model, way: Way) -> Kept | None:
    """Of both sides together; None where one of them is no Transformer."""
    total = Kept()
    for part, is_reader in ((model.reader, True), (model.writer, False)):
        if part is None:
            continue
        if is_head(part) and model.reader is not None:
            total += Kept(way.wide * model.reader.dim, 0)  # the last state of each token that is read
            total += Kept() if is_reader else of_head(model, way)
            continue
        stack = stack_of(part)
        if stack is None:
            return None
        total += of_stack(stack, way, is_reader=is_reader)
        first = of_embedding(part.embedding, stack.dim)
        total += Kept(first, 0) + of_again(part.again, way) if is_reader else Kept(0, first)
    return total


def of_head(model: Model, way: Way) -> Kept:
    """A head over the states of the reader; its queries may pass the reader's layers too.

    Of each hidden token: its state, and this as the product reads it; what goes into the activation, and into the norm
    in float32.
    """
    head, dim = model.writer, model.reader.dim
    queries = of_stack(model.reader.stack, way, is_reader=False) if head.queries_reader else Kept()
    if not head.hidden_width:
        return queries
    layer = (way.narrow + SINGLE) * head.hidden_width + STATISTICS
    return queries + Kept(0, (way.wide + way.narrow) * dim + layer)


def of_again(again: Again | None, way: Way) -> Kept:
    """A second reading, which goes over the tokens that are read as a writer does over its own."""
    if again is None:
        return Kept()
    stack = of_stack(again.stack, way, is_reader=False)
    return Kept(stack.source + stack.target + of_embedding(again.embedding, again.dim), 0)


def of_embedding(embedding: Embedding | None, dim: int) -> float:
    """The mask of dropout, and what a norm of tokens and positions normalises."""
    if embedding is None:
        return 0
    return dim * bool(embedding.dropout.p) + (0 if embedding.norm is None else SINGLE * dim + STATISTICS)


def of_stack(stack: TransformerStack, way: Way, *, is_reader: bool) -> Kept:
    pre = stack.blocks[0].residuals[0].pre
    layers = [of_block(block, stack.dim, way, is_reader=is_reader) for block in stack.blocks]
    if way.recompute:
        # The input; before norms also what is still to be added. Memory as a block read it is made again with it.
        inputs = stack.dim * (way.wide + (way.narrow if pre else 0))
        once = max(layers, key=lambda layer: layer.source + layer.target)
        layers = [Kept(inputs, 0) if is_reader else Kept(0, inputs)] * len(layers) + [once]
    total = sum(layers, Kept())
    if pre:  # the norm at the end
        last = stack.dim * way.wide + STATISTICS
        total += Kept(last, 0) if is_reader else Kept(0, last)
    memory = next((block.cross.memory.weight.shape[-1] for block in stack.blocks if block.cross is not None), 0)
    return total + Kept(0 if copies_memory(stack, way) else memory * way.narrow, 0)


def copies_memory(stack: TransformerStack, way: Way) -> bool:
    """Whether each layer makes a narrow copy of memory; a reader that ends with a norm makes it narrow at once."""
    return way.wide > way.narrow and not stack.blocks[0].residuals[0].pre


def of_block(block: Block, dim: int, way: Way, *, is_reader: bool) -> Kept:
    own = of_self(block.self, dim, way) + of_norms(block, dim, way)
    if block.feedforward is not None:
        own += of_feedforward(block.feedforward, dim, way, copied=not block.residuals[0].pre)
    if is_reader:
        return Kept(own, 0)
    if block.cross is None:
        return Kept(0, own)
    return Kept(0, own) + of_cross(block.cross, dim, way, copied=not block.residuals[0].pre)


def of_self(attention: SelfAttention, dim: int, way: Way) -> float:
    width, head_dim = attention.width, attention.heads.head_dim
    numbers = dim + 4 * width  # queries, keys, values, output
    if attention.rotary is not None:
        # Sines and cosines, for queries and for keys. What was turned is new, and what it was made of stays beside it,
        # but where heads share keys: then all three are new, and nothing holds the product any more.
        numbers += 2 * head_dim + (2 * width if attention.group == 1 else 0)
    return way.narrow * numbers + of_weights(attention.heads, width // head_dim, way)


def of_weights(shared: Any, heads: int, way: Way) -> float:
    """What attention keeps of its weights: all of them where something is added to the scores, else hardly anything."""
    if shared.term is not None:
        return heads * way.length * (4 + way.narrow)
    return 4 * heads if way.length > SHORT else 0


def of_cross(attention: CrossAttention, dim: int, way: Way, *, copied: bool) -> Kept:
    heads, width, memory = attention.query.shape[0], attention.width, attention.memory.weight.shape[-1]
    copy = memory if copied and way.wide > way.narrow else 0
    weights = of_weights(attention.heads, heads, way)
    return Kept(way.narrow * (copy + 2 * width), way.narrow * (dim + 2 * width) + weights)


def of_norms(block: Block, dim: int, way: Way) -> float:
    """One sum for each sublayer; without a norm nothing but dropout's mask."""
    return sum(
        way.wide * dim + STATISTICS if not isinstance(residual.norm, nn.Identity) else dim * bool(residual.dropout.p)
        for residual in block.residuals
    )


def of_feedforward(network: Any, dim: int, way: Way, *, copied: bool) -> float:
    """`copied`: what goes in is made narrow for each product anew."""
    hidden, times = network.hidden, vectors_kept(network.activation) + 2 * network.is_gated
    inputs = dim * (2 if network.is_gated and copied and way.wide > way.narrow else 1)
    masks = hidden * (1 + way.narrow) if network.dropout.p else 0
    inside: float = way.narrow * (inputs + times * hidden) + masks
    if network.experts_per_token is None:
        return inside
    return network.experts_per_token * (SPARE * inside + way.narrow * dim)  # and what comes out, to be weighted


def vectors_kept(activation: str) -> int:
    """Vectors of the hidden width: what came out, and also what went in where the slope does not follow from it."""
    return 1 if activation in ("relu", "sigmoid") else 2
