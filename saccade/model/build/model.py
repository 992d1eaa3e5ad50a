"""The one place where a recipe meets classes."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizer import END, PAD
from saccade.data.worlds.sights import eye_of
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.attention.positions import Axial
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.model.build.convolution import build_convolution
from saccade.model.build.heads import (
    build_encoder_writer,
    build_head,
    build_projection,
    build_segments,
    embedding_width,
    norm_epsilon,
    relates_segments,
)
from saccade.model.build.media import build_joined, build_media_reader
from saccade.model.build.recurrent import build_recurrent, hands_over
from saccade.model.build.transformer import build_transformer
from saccade.model.model import Model
from saccade.model.readers.again import Again
from saccade.model.readers.tokens import Embedding, TokenReader
from saccade.model.writers.actions import ActionWriter
from saccade.model.writers.ctc import CtcHead
from saccade.model.writers.fill import FillWriter
from saccade.model.writers.tokens import TokenWriter
from saccade.model.writers.values import ValuesWriter

Kinds = Mapping[str, Any]
Writing = schema.TokenWriter | schema.FillWriter
Part = schema.TokenReader | schema.Again | Writing
STARTING = (schema.TokenWriter, schema.Again)  # what reads something before the first token
AT_INPUT = (schema.Sinusoidal, schema.Learned)


def build(recipe: Recipe, *, source_size: int, target_size: int, kinds: Kinds | None = None) -> Model:
    """A model with fresh weights for vocabularies of these sizes.

    A user's own reader is called with the vocabulary's size, a user's own writer also with the width of memory, and a
    user's own stack of a writer with the width of memory alone. Where nothing is read, that width is 0.
    """
    kinds = kinds or {}
    reader, writer = recipe.reader, recipe.writer
    asks = reader.ask if isinstance(reader, schema.JoinedReader) else reader
    for part in (asks, asks.again if isinstance(asks, schema.TokenReader) else None, writer):
        check_positions(part, recipe.data.max_length)
    cells = hands_over(recipe)
    if isinstance(reader, schema.NoReader):
        return Model(None, join_alone(recipe, size=target_size, kinds=kinds))
    if isinstance(reader, Custom):
        read = kinds[reader.kind](source_size, **reader.settings())
    elif isinstance(reader, schema.JoinedReader):
        ask = partial(build_token_reader, size=source_size, train=recipe.train, kinds=kinds, cells=False)
        read = build_joined(reader, ask, train=recipe.train, kinds=kinds)
    elif isinstance(reader, schema.MediaReader):
        read = build_media_reader(reader, train=recipe.train, kinds=kinds)
    else:
        read = build_token_reader(reader, size=source_size, train=recipe.train, kinds=kinds, cells=cells)
    if isinstance(writer, Custom):
        return Model(read, kinds[writer.kind](target_size, read.dim, **writer.settings()))
    if isinstance(writer, schema.Head):
        return Model(read, build_head(writer, read.dim, size=target_size))
    if isinstance(writer, schema.MaskedWriter | schema.PermutedWriter | schema.StatesWriter | schema.PatchWriter):
        return Model(read, build_encoder_writer(recipe, read, size=target_size))
    if isinstance(writer, schema.ValuesWriter):
        recurrence: Any = build_recurrent(writer.stack, memory_dim=read.dim, recompute=recipe.train.recompute)
        return Model(read, ValuesWriter(recurrence, size=target_size))
    causal = isinstance(writer, schema.TokenWriter)
    stack = build_stack(writer, memory_dim=read.dim, causal=causal, train=recipe.train, kinds=kinds)
    if writer.tie in ("all", "input"):
        tokens = shared_table(recipe, writer, read, size=target_size, dim=stack.dim)
    else:
        tokens = token_table(writer, target_size, stack.dim)
    if isinstance(writer, schema.FillWriter):
        return Model(read, join_fill_writer(writer, tokens, stack, kinds, memory_dim=read.dim))
    ctc = CtcHead(read.dim, size=target_size) if writer.ctc else None
    return Model(read, join_writer(writer, tokens, stack, kinds), ctc=ctc)


def build_token_reader(
    reader: schema.TokenReader, *, size: int, train: schema.Train, kinds: Kinds, cells: bool
) -> TokenReader:
    stack = build_stack(reader, causal=reader.causal, train=train, kinds=kinds, cells=cells)
    embedding = build_embedding(reader, token_table(reader, size, entry(stack)), entry(stack), kinds)
    again = None
    if reader.again is not None:
        again = build_again(reader.again, embedding.tokens, memory_dim=stack.dim, train=train, kinds=kinds)
    return TokenReader(
        embedding, stack, relates=relates_segments(reader), levels=reader.levels, width=entry(stack), again=again
    )  # fmt: skip


def build_again(
    again: schema.Again, tokens: nn.Embedding, *, memory_dim: int, train: schema.Train, kinds: Kinds
) -> Again:
    """What reads a text a second time, with the vectors of tokens of the first."""
    stack = build_stack(again, memory_dim=memory_dim, causal=True, train=train, kinds=kinds)
    if tokens.embedding_dim != token_width(again, stack.dim):
        raise SaccadeError(
            f"reader.again reads with the reader's vectors of tokens, which are {tokens.embedding_dim} wide, but needs "
            f"{token_width(again, stack.dim)}; set the same stack.dim and positions.how, and no reader.embedding_dim"
        )
    return Again(build_embedding(again, tokens, stack.dim, kinds), stack)


def join_alone(recipe: Recipe, *, size: int, kinds: Kinds) -> Any:
    """What writes where nothing is read."""
    writer = recipe.writer
    if isinstance(writer, Custom):
        return kinds[writer.kind](size, 0, **writer.settings())
    assert isinstance(writer, schema.TokenWriter), "the recipe was checked"
    return build_writer(writer, size=size, train=recipe.train, kinds=kinds)


def build_writer(
    writer: schema.TokenWriter, *, size: int, train: schema.Train | None = None, kinds: Kinds | None = None
) -> TokenWriter:
    """A writer that reads nothing but what it wrote: a language model."""
    stack = build_stack(writer, causal=True, train=train or schema.Train(), kinds=kinds or {})
    return join_writer(writer, token_table(writer, size, entry(stack)), stack, kinds or {})


def join_writer(writer: schema.TokenWriter, tokens: nn.Embedding, stack: Any, kinds: Kinds) -> TokenWriter:
    """Embedding, stack and head together."""
    embedding = build_embedding(writer, tokens, entry(stack), kinds)
    output = output_table(writer, tokens, stack.dim)
    if writer.output_bias:
        output.bias = nn.Parameter(torch.zeros(tokens.num_embeddings), requires_grad=False)
    scale = stack.dim**-0.5 if writer.output_scale else 1.0
    if isinstance(writer, schema.ActionWriter):
        sights = eye_of(writer).size
        return ActionWriter(embedding, stack, output=output, output_scale=scale, sights=sights, blind=writer.blind)
    return TokenWriter(embedding, stack, output=output, output_scale=scale)


def join_fill_writer(
    writer: schema.FillWriter, tokens: nn.Embedding, stack: Any, kinds: Kinds, *, memory_dim: int
) -> FillWriter:
    """The same for a writer that fills in all tokens at once."""
    if writer.copy_source and memory_dim != stack.dim:
        raise SaccadeError(
            f"writer.copy_source = true adds what was read to what is written, but the reader is {memory_dim} wide and "
            f"the writer {stack.dim}; set the same stack.dim, or writer.copy_source = false"
        )
    embedding = build_embedding(writer, tokens, stack.dim, kinds)
    return FillWriter(
        embedding, stack, output=output_table(writer, tokens, stack.dim),
        memory_dim=memory_dim, reach=writer.reach, copy_source=writer.copy_source,
    )  # fmt: skip


def entry(stack: Any) -> int:
    """The width of what goes into a stack, where that is another one than of what comes out."""
    return int(stack.entry if isinstance(stack, ReversibleStack) else stack.dim)


def check_positions(part: Any, longest: int) -> None:
    """A table of learned positions must have one for every token of the longest text."""
    where = part.positions if isinstance(part, Part) else None
    if isinstance(where, schema.Learned) and where.length < longest:
        raise SaccadeError(
            f"positions.length must be at least data.max_length = {longest}, got {where.length}; "
            "set one of them to the other"
        )
    if isinstance(where, schema.Axial) and math.prod(where.shape) < longest:
        rows, columns = where.shape
        raise SaccadeError(
            f"positions.shape must have at least data.max_length = {longest} places, got {rows} x {columns} = "
            f"{rows * columns}; raise one of them, or lower data.max_length"
        )


def shared_table(recipe: Recipe, writer: Writing, reader: Any, *, size: int, dim: int) -> nn.Embedding:
    """The reader's token embedding, which the writer uses too where all three are tied."""
    if isinstance(recipe.reader, Custom):
        raise SaccadeError(
            f'writer.tie = "{writer.tie}" needs a reader of kind "tokens", got "{recipe.reader.kind}"; '
            'set writer.tie = "output"'
        )
    tokens: nn.Embedding = reader.embedding.tokens
    if not recipe.tokenizer.shared or tokens.num_embeddings != size:
        raise SaccadeError(
            f'writer.tie = "{writer.tie}" needs one vocabulary, got {tokens.num_embeddings} source and {size} target '
            'pieces; set tokenizer.shared = true or writer.tie = "output"'
        )
    if tokens.embedding_dim != token_width(writer, dim):
        raise SaccadeError(
            f'writer.tie = "{writer.tie}" needs reader and writer of one width, got {tokens.embedding_dim} and {dim}; '
            'set the same stack.dim and positions.how, or writer.tie = "output"'
        )
    return tokens


def output_table(writer: Writing, tokens: nn.Embedding, dim: int) -> nn.Linear:
    """The matrix that turns states into logits: the writer's embedding where it is tied."""
    if writer.tie in ("none", "input"):
        output = nn.Linear(dim, tokens.num_embeddings, bias=False)
        nn.init.normal_(output.weight, std=dim**-0.5)
        return output
    if tokens.embedding_dim != dim:
        raise SaccadeError(
            f'writer.tie = "{writer.tie}" needs token vectors as wide as the stack, got {tokens.embedding_dim} and '
            f'{dim} since positions are concatenated; set writer.tie = "none"'
        )
    output = nn.Linear(dim, tokens.num_embeddings, bias=False, device="meta")  # no numbers of its own
    output.weight = tokens.weight
    return output


def token_width(part: Part, dim: int) -> int:
    """Concatenated positions take half of the width."""
    width = embedding_width(part, dim)
    if isinstance(part.positions, AT_INPUT) and part.positions.how == "concat":
        return width // 2
    return width


def token_table(part: Part, size: int, dim: int) -> nn.Embedding:
    width = token_width(part, dim)
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def build_embedding(part: Part, tokens: nn.Embedding, dim: int, kinds: Kinds) -> Embedding:
    both = embedding_width(part, dim)
    concat = tokens.embedding_dim != both
    width = both - tokens.embedding_dim if concat else both
    where: nn.Module | None = None
    match part.positions:
        case schema.Sinusoidal() as s:
            where = positions.Sinusoidal(width, layout=s.layout, frequencies=s.frequencies)
        case schema.Learned() as s:
            where = positions.Learned(width, length=s.length)
        case schema.Axial() as s:
            where = Axial(width, shape=s.shape, first=s.first or width // 4)
        case Custom() as s:
            where = kinds[s.kind](width, **s.settings())
    if isinstance(part, schema.FillWriter):
        return Embedding(tokens, positions=where, concat=concat, scale=part.scale, dropout=part.dropout)
    norm = nn.LayerNorm(both, eps=norm_epsilon(part)) if part.embedding_norm else None
    start = {"own": None, "pad": PAD, "end": END}[part.start] if isinstance(part, STARTING) else None
    return Embedding(
        tokens, positions=where, concat=concat, scale=part.scale, norm=norm, dropout=part.dropout, start=start,
        more=(build_segments(part, both), build_projection(part, dim)),
    )  # fmt: skip


def build_stack(
    part: Part,
    *,
    memory_dim: int | None = None,
    causal: bool = False,
    train: schema.Train,
    kinds: Kinds,
    cells: bool = True,
) -> Any:
    """The stack of a reader or, with `memory_dim`, of a writer that attends to memory.

    `cells`: whether the last cell states of a recurrent reader are handed over.
    """
    settings = part.stack
    if isinstance(settings, Custom):
        width = () if memory_dim is None and not causal else (memory_dim or 0,)
        return kinds[settings.kind](*width, **settings.settings())
    if isinstance(settings, schema.ConvolutionStack):
        check_at_input(part)
        return build_convolution(settings, memory_dim=memory_dim, causal=causal, recompute=train.recompute)
    if isinstance(settings, schema.RecurrentReading | schema.RecurrentWriting):
        check_at_input(part)
        return build_recurrent(settings, memory_dim=memory_dim, recompute=train.recompute, cells=cells)
    return build_transformer(settings, part.positions, memory_dim=memory_dim, causal=causal, train=train)


def check_at_input(part: Part) -> None:
    """Only a Transformer has queries and keys inside on which positions could act."""
    kind = part.positions.kind
    if not isinstance(part.positions, (*AT_INPUT, schema.Axial, schema.NoPositions, Custom)):
        raise SaccadeError(
            f'positions.kind = "{kind}" acts inside self-attention, which a {part.stack.kind} stack does not have; '
            'use "sinusoidal", "learned" or "none"'
        )
