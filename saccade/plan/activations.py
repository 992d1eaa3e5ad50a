"""Count the bytes per token that a Transformer saves for the backward pass.

The formulas are for training as `saccade train` does it on a GPU: packed sequences, fused attention, fused norms and
activations. D is the model width, W the width of all heads together, F the feed-forward width, H the number of heads,
M the width of the memory, n the bytes of a matmul input (2 in bfloat16), w the bytes of a value of the residual stream
(4, or 2 with `train.residual_precision = "bf16"`). A layer saves for each of its tokens

    self-attention      n D (input) + 3 n W (queries, keys, values) + n W (output) + 4 H (log-sum-exp, long sequences)
    cross-attention     n D + n W + n W; and for each source token 2 n W (keys, values) + n M (memory in the matmul
                        dtype, cast in every layer if the residual stream has more bytes)
    feed-forward        n D + n F (relu saves its output), 2 n F (gelu, silu), 4 n F (gated)
    each norm           w D (its input) + 8 (mean and scale in float32)

Dropout inside a layer saves only a seed; dropout of the embedding saves a mask of D bytes. With `recompute`, a layer
saves only its input, and one layer at a time has all its activations in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from torch import nn

from saccade.layers.attention.backends import MAX_SHORT_KERNEL_LENGTH
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.model.model import Model
from saccade.model.readers.second_pass import SecondPass
from saccade.model.readers.tokens import Embedding
from saccade.plan.counts import get_transformer_stack, is_head

FLOAT32_BYTES = 4  # bytes of float32
NORM_STATISTICS_BYTES = 8  # mean and scale of a norm, in float32
EXPERT_CAPACITY_FACTOR = 2  # rows that the buffers of experts have, per row that they use


class BytesPerToken(NamedTuple):
    """Bytes per source token and per target token."""

    source: float = 0.0
    target: float = 0.0

    def __add__(self, other: Any) -> BytesPerToken:
        return BytesPerToken(self.source + other.source, self.target + other.target)

    def get_total(self, source: float, target: float) -> float:
        """Return the bytes of this many tokens."""
        return source * self.source + target * self.target


class TrainingSetup(NamedTuple):
    """The training settings that decide how much is saved."""

    matmul_bytes: int = 2  # bytes of a matmul input
    residual_bytes: int = 4  # bytes of a value of the residual stream
    length: int = 32  # tokens of a sequence
    recompute: bool = False


def count_saved(model: Model, setup: TrainingSetup) -> BytesPerToken | None:
    """Count the bytes of reader and writer together; None if one of them is not a Transformer."""
    total = BytesPerToken()
    for part, is_reader in ((model.reader, True), (model.writer, False)):
        if part is None:
            continue
        if is_head(part) and model.reader is not None:
            total += BytesPerToken(setup.residual_bytes * model.reader.dim, 0)  # the reader's output
            total += BytesPerToken() if is_reader else count_head(model, setup)
            continue
        stack = get_transformer_stack(part)
        if stack is None:
            return None
        total += count_stack(stack, setup, is_reader=is_reader)
        first = count_embedding(part.embedding, stack.dim)
        total += (
            BytesPerToken(first, 0) + count_second_reading(part.again, setup) if is_reader else BytesPerToken(0, first)
        )
    return total


def count_head(model: Model, setup: TrainingSetup) -> BytesPerToken:
    """Count a head over the reader's states; its queries may pass through the reader's layers too (XLNet).

    For each predicted token: its state, also in the matmul dtype, and the inputs of activation and norm (float32).
    """
    head, dim = model.writer, model.reader.dim
    queries = count_stack(model.reader.stack, setup, is_reader=False) if head.queries_reader else BytesPerToken()
    if not head.hidden_width:
        return queries
    layer = (setup.matmul_bytes + FLOAT32_BYTES) * head.hidden_width + NORM_STATISTICS_BYTES
    return queries + BytesPerToken(0, (setup.residual_bytes + setup.matmul_bytes) * dim + layer)


def count_second_reading(second_reading: SecondPass | None, setup: TrainingSetup) -> BytesPerToken:
    """Count the second pass of a reader, a decoder whose target tokens are the source tokens."""
    if second_reading is None:
        return BytesPerToken()
    stack = count_stack(cast(TransformerStack, second_reading.stack), setup, is_reader=False)
    return BytesPerToken(stack.source + stack.target + count_embedding(second_reading.embedding, second_reading.dim), 0)


def count_embedding(embedding: Embedding | None, dim: int) -> float:
    """Count the mask of dropout and the input of the norm of an embedding."""
    if embedding is None:
        return 0
    return dim * bool(embedding.dropout.p) + (
        0 if embedding.norm is None else FLOAT32_BYTES * dim + NORM_STATISTICS_BYTES
    )


def count_stack(stack: TransformerStack, setup: TrainingSetup, *, is_reader: bool) -> BytesPerToken:
    pre = stack.blocks[0].residuals[0].pre_norm
    layers = [count_block(block, stack.dim, setup, is_reader=is_reader) for block in stack.blocks]
    if setup.recompute:
        # The block's input; with pre-norm also the deferred add. The memory in the matmul dtype is recomputed.
        inputs = stack.dim * (setup.residual_bytes + (setup.matmul_bytes if pre else 0))
        largest = max(layers, key=lambda layer: layer.source + layer.target)
        layers = [BytesPerToken(inputs, 0) if is_reader else BytesPerToken(0, inputs)] * len(layers) + [largest]
    total = sum(layers, BytesPerToken())
    if pre:  # the final norm
        last = stack.dim * setup.residual_bytes + NORM_STATISTICS_BYTES
        total += BytesPerToken(last, 0) if is_reader else BytesPerToken(0, last)
    memory = next((block.cross.memory.weight.shape[-1] for block in stack.blocks if block.cross is not None), 0)
    return total + BytesPerToken(0 if copies_memory(stack, setup) else memory * setup.matmul_bytes, 0)


def copies_memory(stack: TransformerStack, setup: TrainingSetup) -> bool:
    """Whether each layer casts the memory to the matmul dtype; a reader with a final norm casts it once."""
    return setup.residual_bytes > setup.matmul_bytes and not stack.blocks[0].residuals[0].pre_norm


def count_block(block: Block, dim: int, setup: TrainingSetup, *, is_reader: bool) -> BytesPerToken:
    own = count_self_attention(block.self, dim, setup) + count_norms(block, dim, setup)
    if block.positional is not None:  # queries and keys are the same for all rows
        own += setup.matmul_bytes * (dim + 2 * block.positional.width) + setup.residual_bytes * dim
    if block.feedforward is not None:
        own += count_feedforward(block.feedforward, dim, setup, copies_input=not block.residuals[0].pre_norm)
    if is_reader:
        return BytesPerToken(own, 0)
    if block.cross is None:
        return BytesPerToken(0, own)
    return BytesPerToken(0, own) + count_cross_attention(
        block.cross, dim, setup, copies_input=not block.residuals[0].pre_norm
    )


def count_self_attention(attention: SelfAttention, dim: int, setup: TrainingSetup) -> float:
    width, head_dim = attention.width, attention.heads.head_dim
    numbers = dim + 4 * width  # input, queries, keys, values, output
    if attention.rotary is not None:
        # Sines and cosines, for queries and for keys. The rotated tensors are saved beside the unrotated projection,
        # except with grouped queries: then queries, keys and values are copies, and the projection is freed.
        numbers += 2 * head_dim + (2 * width if attention.queries_per_kv_head == 1 else 0)
    heads = attention.project.shape[0] * attention.queries_per_kv_head
    return setup.matmul_bytes * numbers + count_attention_weights(attention.heads, heads, setup)


def count_attention_weights(shared: Any, heads: int, setup: TrainingSetup) -> float:
    """Count the attention weights: all of them if a bias is added to the scores, else only the log-sum-exp.

    A score with a hidden layer also saves that of each pair of query and key.
    """
    if not shared.is_dot_product:
        return heads * setup.length * (4 + setup.matmul_bytes * (1 + shared.score.hidden_dim))
    if shared.term is not None:
        return heads * setup.length * (4 + setup.matmul_bytes)
    return 4 * heads if setup.length > MAX_SHORT_KERNEL_LENGTH else 0


def count_cross_attention(
    attention: CrossAttention, dim: int, setup: TrainingSetup, *, copies_input: bool
) -> BytesPerToken:
    heads, width, memory = attention.query.shape[0], attention.width, attention.memory.weight.shape[-1]
    copy = memory if copies_input and setup.residual_bytes > setup.matmul_bytes else 0
    weights = count_attention_weights(attention.heads, heads, setup)
    return BytesPerToken(setup.matmul_bytes * (copy + 2 * width), setup.matmul_bytes * (dim + 2 * width) + weights)


def count_norms(block: Block, dim: int, setup: TrainingSetup) -> float:
    """Count the input of each norm; a sublayer without norm saves only the mask of dropout."""
    return sum(
        setup.residual_bytes * dim + NORM_STATISTICS_BYTES
        if not isinstance(residual.norm, nn.Identity)
        else dim * bool(residual.dropout.p)
        for residual in block.residuals
    )


def count_feedforward(network: Any, dim: int, setup: TrainingSetup, *, copies_input: bool) -> float:
    """Count a feed-forward network; `copies_input`: each of its matmuls casts the input separately."""
    hidden, times = network.hidden_dim, count_saved_vectors(network.activation) + 2 * network.is_gated
    inputs = dim * (2 if network.is_gated and copies_input and setup.residual_bytes > setup.matmul_bytes else 1)
    masks = hidden * (1 + setup.matmul_bytes) if network.dropout.p else 0
    inside: float = setup.matmul_bytes * (inputs + times * hidden) + masks
    if network.experts_per_token is None:
        return inside
    # and the output, for its gate
    return network.experts_per_token * (EXPERT_CAPACITY_FACTOR * inside + setup.matmul_bytes * dim)


def count_saved_vectors(activation: str) -> int:
    """Return the saved vectors of the hidden width: the output, and also the input if the gradient needs it."""
    return 1 if activation in ("relu", "sigmoid") else 2
