"""Builds a model from a recipe: one function for each kind of reader and writer.

Stacks are built in stacks.py, embeddings in embeddings.py, readers of pictures and sound in media.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.config import schema
from saccade.config.protocols import Stack
from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.model.build.allocation import AllocationGuard
from saccade.model.build.embeddings import (
    build_embedding,
    build_token_table,
    get_embedding_width,
    get_token_width,
)
from saccade.model.build.media import build_frame_reader, build_joined_reader, build_picture_reader
from saccade.model.build.options import Options, build_custom
from saccade.model.build.recurrent import should_copy_states
from saccade.model.build.stacks import build_reader_stack, build_writer_stack, get_input_dim
from saccade.model.build.transformer import complete_parallel_blocks
from saccade.model.model import Model
from saccade.model.readers.second_pass import SecondPass
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.ctc import CtcHead
from saccade.model.writers.fertility import FertilityWriter
from saccade.model.writers.fill import FillWriter
from saccade.model.writers.labels import LabelWriter, TagWriter
from saccade.model.writers.masked import MaskedWriter, StatesWriter
from saccade.model.writers.patches import PatchWriter
from saccade.model.writers.permuted import PermutedWriter
from saccade.model.writers.tokens import TokenWriter


def build(recipe: Recipe, *, source_size: int, target_size: int) -> Model:
    """Build a model with newly initialized weights for vocabularies of these sizes.

    A custom reader is called with the source vocabulary size, a custom writer with the target vocabulary size and the
    width of memory, and a custom writer stack with the width of memory. That width is 0 where there is no reader.
    """
    for part in (*recipe.reader.embedding_tables, *recipe.writer.embedding_tables):
        if conflict := part.positions.find_length_conflict(recipe.data.max_length):
            raise SaccadeError(conflict)
    options = Options(recipe.train, copies_states=should_copy_states(recipe))
    with AllocationGuard():
        reader = build_reader(recipe.reader, source_size, options)
        return build_model_with_writer(WriterContext(recipe, reader, target_size, options))


class WriterContext(NamedTuple):
    """What a writer is built from: the recipe, the reader that is already built, and the size of the output."""

    recipe: Recipe
    reader: Any  # None in a language model
    output_size: int  # number of tokens or labels
    options: Options

    @property
    def memory_dim(self) -> int | None:
        return None if self.reader is None else int(self.reader.dim)


# ---- readers


def build_reader(table: Any, size: int, options: Options) -> Any:
    """Build the reader of a recipe's table, which may be of a custom kind; None for kind "none"."""
    if table.kind not in READERS:
        return build_custom(table) if table.medium else build_custom(table, size)
    return READERS[table.kind](table, size, options)


def build_token_reader(table: schema.TokenReader, size: int, options: Options) -> TokenReader:
    stack = build_reader_stack(table, options, causal=table.causal)
    width = get_input_dim(stack)
    embedding = build_embedding(table, build_token_table(table, size, width), width)
    second_pass = None
    if table.second_pass is not None:
        second_pass = build_second_pass(table.second_pass, embedding.tokens, memory_dim=stack.dim, options=options)
    return TokenReader(
        embedding,
        stack,
        uses_segments=table.positions.uses_segments,
        concat_embeddings=table.concat_embedding,
        embedding_width=width,
        second_pass=second_pass,
    )


def build_second_pass(
    table: schema.SecondPass, tokens: nn.Embedding, *, memory_dim: int, options: Options
) -> SecondPass:
    """Build a causal stack over the same sequence that attends to the first pass and shares its token embedding."""
    stack = build_writer_stack(table, options, memory_dim=memory_dim)
    if tokens.embedding_dim != get_token_width(table, stack.dim):
        raise SaccadeError(
            f"reader.second_pass shares the reader's token embedding of width {tokens.embedding_dim}, but needs width "
            f"{get_token_width(table, stack.dim)}; set the same stack.dim and positions.combine, and no "
            "reader.embedding_dim"
        )
    return SecondPass(build_embedding(table, tokens, stack.dim), stack)


def build_question_reader(table: schema.JoinedReader, size: int, options: Options) -> Any:
    """Build a reader of pictures and of questions about them."""
    build_text_reader = partial(build_token_reader, size=size, options=options._replace(copies_states=False))
    return build_joined_reader(table, build_text_reader, options)


def build_no_reader(table: schema.NoReader, size: int, options: Options) -> None:
    """Return None: without a reader the writer is a language model."""


READERS: dict[str, Callable[[Any, int, Options], Any]] = {
    "none": build_no_reader,
    "tokens": build_token_reader,
    "patches": build_picture_reader,
    "grid": build_picture_reader,
    "timm": build_picture_reader,
    "frames": build_frame_reader,
    "joined": build_question_reader,
}


# ---- writers; each function returns the whole model


def build_model_with_writer(context: WriterContext) -> Model:
    table = context.recipe.writer
    if table.is_custom:
        return Model(context.reader, build_custom(table, context.output_size, context.memory_dim or 0))
    if table.kind in WRITERS:
        return WRITERS[table.kind](table, context)
    model: Model = table.build_model(context)
    return model


def build_writer(table: schema.TokenWriter, *, size: int, train: schema.Train | None = None) -> TokenWriter:
    """Build a decoder without cross-attention: a language model over `size` tokens."""
    options = Options(train or schema.Train())
    stack = build_writer_stack(table, options, memory_dim=None)
    return assemble_token_writer(table, build_token_table(table, size, get_input_dim(stack)), stack)


def build_token_model(
    table: schema.TokenWriter, context: WriterContext, make_writer: Callable[..., TokenWriter] = TokenWriter
) -> Model:
    """Build a decoder; `make_writer` is called with the arguments of `TokenWriter`."""
    stack = build_writer_stack(table, context.options, memory_dim=context.memory_dim)
    tokens = choose_token_table(table, stack, context)
    ctc = CtcHead(context.reader.dim, size=context.output_size) if table.ctc else None
    return Model(context.reader, assemble_token_writer(table, tokens, stack, make_writer), ctc=ctc)


def assemble_token_writer(
    table: schema.TokenWriter,
    tokens: nn.Embedding,
    stack: Stack,
    make_writer: Callable[..., TokenWriter] = TokenWriter,
) -> TokenWriter:
    """Build embedding and output layer around a stack."""
    embedding = build_embedding(table, tokens, get_input_dim(stack))
    output = build_output(table, tokens, stack.dim)
    if table.output_bias:
        output.bias = nn.Parameter(torch.zeros(tokens.num_embeddings), requires_grad=False)
    scale = stack.dim**-0.5 if table.output_scale else 1.0
    return make_writer(embedding, stack, output=output, output_scale=scale)


def build_fill_model(table: schema.FillWriter, context: WriterContext) -> Model:
    """Build a non-autoregressive model, whose writer predicts all tokens at once."""
    stack = build_writer_stack(table, context.options, memory_dim=context.memory_dim, causal=False)
    tokens = choose_token_table(table, stack, context)
    if table.copy_source and context.reader.dim != stack.dim:
        raise SaccadeError(
            f"writer.copy_source = true adds the reader's states to the writer's inputs, but the reader has width "
            f"{context.reader.dim} and the writer {stack.dim}; set the same stack.dim, or writer.copy_source = false"
        )
    embedding = build_embedding(table, tokens, stack.dim)
    writer = FillWriter(
        embedding, stack, output=build_output(table, tokens, stack.dim),
        memory_dim=context.reader.dim, max_length_difference=table.max_length_difference, copy_source=table.copy_source,
    )  # fmt: skip
    return Model(context.reader, writer)


def build_fertility_model(table: schema.FertilityWriter, context: WriterContext) -> Model:
    """Build a non-autoregressive model whose writer reads copies of the source tokens (Gu et al. 2018)."""
    stack = build_writer_stack(table, context.options, memory_dim=context.memory_dim, causal=False)
    tokens: nn.Embedding = context.reader.embedding.tokens
    if tokens.embedding_dim != stack.dim:
        raise SaccadeError(
            f'writer.kind = "fertility" reads token vectors of the reader, of width {tokens.embedding_dim}, but the '
            f"writer has width {stack.dim}; set the same stack.dim"
        )
    complete_parallel_blocks(stack, table.stack, attend_self=table.attend_self, positional=table.positional_attention)
    if table.tie == "all":
        tokens = choose_token_table(table, stack, context)
        output = tie_output(tokens)
    else:
        output = nn.Linear(stack.dim, context.output_size, bias=False)
        nn.init.normal_(output.weight, std=stack.dim**-0.5)
    writer = FertilityWriter(
        build_embedding(table, tokens, stack.dim), stack, output=output,
        memory_dim=context.reader.dim, max_fertility=table.max_fertility,
    )  # fmt: skip
    return Model(context.reader, writer)


def build_label_model(table: schema.LabelWriter | schema.NumberWriter, context: WriterContext) -> Model:
    writer = LabelWriter(context.reader.dim, size=context.output_size, pooling=table.pooling, **get_head_options(table))
    return Model(context.reader, writer)


def build_tag_model(table: schema.TagWriter, context: WriterContext) -> Model:
    return Model(context.reader, TagWriter(context.reader.dim, size=context.output_size, **get_head_options(table)))


def get_head_options(table: schema.Head) -> dict[str, Any]:
    return {"hidden": table.hidden_dim, **table.model_dump(include={"activation", "dropout", "bias"})}


def build_masked_model(table: schema.MaskedWriter, context: WriterContext) -> Model:
    output = build_encoder_output(table, context)
    writer = MaskedWriter(
        context.reader.dim, output, activation=table.activation,
        epsilon=context.recipe.reader.embedding_eps, pairs=table.pairs, dropout=table.dropout,
    )  # fmt: skip
    return Model(context.reader, writer)


def build_permuted_model(table: schema.PermutedWriter, context: WriterContext) -> Model:
    return Model(context.reader, PermutedWriter(build_encoder_output(table, context), dim=context.reader.dim))


def build_states_model(table: schema.StatesWriter, context: WriterContext) -> Model:
    return Model(context.reader, StatesWriter(context.reader.dim, pool=table.pooler))


def build_patch_model(table: schema.PatchWriter, context: WriterContext) -> Model:
    reader: Any = context.recipe.reader  # a PatchReader: the recipe was checked
    return Model(context.reader, PatchWriter(context.reader.dim, patch=reader.patch_size))


WRITERS: dict[str, Callable[[Any, WriterContext], Model]] = {
    "tokens": build_token_model,
    "fill": build_fill_model,
    "fertility": build_fertility_model,
    "label": build_label_model,
    "number": build_label_model,
    "tags": build_tag_model,
    "masked": build_masked_model,
    "permuted": build_permuted_model,
    "states": build_states_model,
    "patches": build_patch_model,
}


# ---- embedding and output matrices, which reader and writer may share


def choose_token_table(
    table: schema.TokenWriter | schema.FillWriter | schema.FertilityWriter, stack: Stack, context: WriterContext
) -> nn.Embedding:
    """Return the writer's token embedding: its own, or the reader's where `tie` shares them."""
    if table.tie not in ("all", "input"):
        return build_token_table(table, context.output_size, get_input_dim(stack))
    if context.recipe.reader.kind not in READERS:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs a reader of kind "tokens", got "{context.recipe.reader.kind}"; '
            'set writer.tie = "output"'
        )
    tokens: nn.Embedding = context.reader.embedding.tokens
    if not context.recipe.tokenizer.shared or tokens.num_embeddings != context.output_size:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs one vocabulary, got {tokens.num_embeddings} source and '
            f'{context.output_size} target tokens; set tokenizer.shared = true or writer.tie = "output"'
        )
    if tokens.embedding_dim != get_token_width(table, get_input_dim(stack)):
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs a reader and a writer of the same width, got {tokens.embedding_dim} and '
            f'{get_input_dim(stack)}; set the same stack.dim and positions.combine, or writer.tie = "output"'
        )
    return tokens


def build_output(table: schema.TokenWriter | schema.FillWriter, tokens: nn.Embedding, dim: int) -> nn.Linear:
    """Build the layer from hidden states to logits; its matrix is the writer's token embedding where `tie` says so."""
    if table.tie in ("none", "input"):
        output = nn.Linear(dim, tokens.num_embeddings, bias=False)
        nn.init.normal_(output.weight, std=dim**-0.5)
        return output
    if tokens.embedding_dim != dim:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs token vectors of the width of the stack, got {tokens.embedding_dim} and '
            f'{dim} since positions are concatenated; set writer.tie = "none"'
        )
    return tie_output(tokens)


def build_encoder_output(table: schema.MaskedWriter | schema.PermutedWriter, context: WriterContext) -> nn.Linear:
    """Build the output layer over a reader's states, with bias; its matrix is the reader's token embedding if tied."""
    if table.tie == "none":
        width = get_embedding_width(context.recipe.reader, context.reader.dim)
        output = nn.Linear(width, context.output_size)
        nn.init.normal_(output.weight, std=width**-0.5)
    elif context.recipe.reader.kind not in READERS:
        raise SaccadeError(
            f'writer.tie = "all" needs a reader of kind "tokens", got "{context.recipe.reader.kind}"; '
            'set writer.tie = "none"'
        )
    else:
        output = tie_output(context.reader.embedding.tokens)
    output.bias = nn.Parameter(torch.zeros(context.output_size))
    return output


def tie_output(tokens: nn.Embedding) -> nn.Linear:
    output = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")  # no weights of its own
    output.weight = tokens.weight
    return output
