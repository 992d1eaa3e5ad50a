"""What an encoder has beside its stack: segments and a width of their own at the input, heads at the end."""

from typing import Any

import torch
from torch import nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.config.stacks import EPSILON
from saccade.errors import SaccadeError
from saccade.model.writers.labels import LabelWriter, TagWriter
from saccade.model.writers.masked import MaskedWriter, StatesWriter
from saccade.model.writers.patches import PatchWriter
from saccade.model.writers.permuted import PermutedWriter


def build_encoder_writer(recipe: schema.Recipe, reader: Any, *, size: int) -> Any:
    """The head over the states of a reader."""
    writer = recipe.writer
    if isinstance(writer, schema.StatesWriter):
        return StatesWriter(reader.dim, pool=writer.pool)
    if isinstance(writer, schema.PatchWriter):
        assert isinstance(recipe.reader, schema.PatchReader), "the recipe was checked"
        return PatchWriter(reader.dim, patch=recipe.reader.patch)
    assert isinstance(writer, schema.MaskedWriter | schema.PermutedWriter), "nothing else is a writer of an encoder"
    output = output_of(recipe, writer, reader, size=size)
    if isinstance(writer, schema.PermutedWriter):
        return PermutedWriter(output, dim=reader.dim)
    return MaskedWriter(
        reader.dim, output, activation=writer.activation,
        epsilon=norm_epsilon(recipe.reader), pairs=writer.pairs, dropout=writer.dropout,
    )  # fmt: skip


def output_of(
    recipe: schema.Recipe, writer: schema.MaskedWriter | schema.PermutedWriter, reader: Any, *, size: int
) -> nn.Linear:
    """The output matrix, which is the reader's embedding where it is tied, and its bias."""
    if writer.tie == "none":
        width = embedding_width(recipe.reader, reader.dim)
        output = nn.Linear(width, size)
        nn.init.normal_(output.weight, std=width**-0.5)
    elif isinstance(recipe.reader, Custom):
        raise SaccadeError(
            f'writer.tie = "all" needs a reader of kind "tokens", got "{recipe.reader.kind}"; set writer.tie = "none"'
        )
    else:
        tokens: nn.Embedding = reader.embedding.tokens
        output = nn.Linear(tokens.embedding_dim, size, bias=False, device="meta")  # no numbers of its own
        output.weight = tokens.weight
    output.bias = nn.Parameter(torch.zeros(size))
    return output


def embedding_width(part: Any, dim: int) -> int:
    """Of tokens and positions together, before anything makes them as wide as the stack."""
    return (part.embedding_dim if isinstance(part, schema.TokenReader) else None) or dim


def build_segments(part: Any, width: int) -> nn.Embedding | None:
    if not isinstance(part, schema.TokenReader) or not part.segments:
        return None
    table = nn.Embedding(part.segments, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def relates_segments(part: Any) -> bool:
    """Whether attention asks which tokens belong to one segment."""
    return isinstance(part.positions, schema.TransformerXL) and part.positions.segments


def build_projection(part: Any, dim: int) -> nn.Linear | None:
    """From the width of the embedding to that of the stack, where the two are told apart."""
    if not isinstance(part, schema.TokenReader) or part.embedding_dim is None:
        return None
    project = nn.Linear(part.embedding_dim, dim)
    nn.init.xavier_uniform_(project.weight)
    nn.init.zeros_(project.bias)
    return project


def norm_epsilon(part: Any) -> float:
    """What the norms of a stack have, for those around it."""
    stack = None if isinstance(part, Custom) else part.stack
    return (stack.norm_epsilon if isinstance(stack, schema.TransformerStack) else None) or EPSILON["layer"]


# ---- Heads over what was read, from their settings.


def build_head(writer: schema.Head, dim: int, *, size: int) -> LabelWriter | TagWriter:
    """What makes `size` numbers of states: for each text, or for each token."""
    settings = writer.model_dump(include={"hidden", "activation", "dropout", "bias"})
    if isinstance(writer, schema.LabelWriter | schema.NumberWriter):
        return LabelWriter(dim, size=size, pooling=writer.pooling, **settings)
    return TagWriter(dim, size=size, **settings)
