"""The one place where a recipe meets classes: each kind of reader and writer has one function that builds it.

Stacks are built in stacks.py, embeddings in embeddings.py, readers of pictures and sound in media.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.config import schema
from saccade.config.protocols import Stack
from saccade.config.schema import Recipe
from saccade.data.worlds.sights import eye_of
from saccade.errors import SaccadeError
from saccade.model.build.embeddings import (
    build_embedding,
    build_token_table,
    get_embedding_width,
    get_token_width,
)
from saccade.model.build.media import build_frame_reader, build_joined_reader, build_picture_reader
from saccade.model.build.options import Options
from saccade.model.build.recurrent import build_recurrent_writer, check_copied_states
from saccade.model.build.stacks import build_reader_stack, build_writer_stack, get_input_dim
from saccade.model.model import Model
from saccade.model.readers.again import Again
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.actions import ActionWriter
from saccade.model.writers.ctc import CtcHead
from saccade.model.writers.fill import FillWriter
from saccade.model.writers.labels import LabelWriter, TagWriter
from saccade.model.writers.masked import MaskedWriter, StatesWriter
from saccade.model.writers.patches import PatchWriter
from saccade.model.writers.permuted import PermutedWriter
from saccade.model.writers.tokens import TokenWriter
from saccade.model.writers.values import ValuesWriter

Kinds = Mapping[str, Any]


def build(recipe: Recipe, *, source_size: int, target_size: int, kinds: Kinds | None = None) -> Model:
    """A model with fresh weights for vocabularies of these sizes.

    A user's own reader is called with the vocabulary's size, a user's own writer also with the width of memory, and a
    user's own stack of a writer with the width of memory alone. Where nothing is read, that width is 0.
    """
    for part in (*recipe.reader.embedded_parts, *recipe.writer.embedded_parts):
        if misfit := part.positions.find_misfit(recipe.data.max_length):
            raise SaccadeError(misfit)
    options = Options(recipe.train, kinds or {}, copies_states=check_copied_states(recipe))
    reader = build_reader(recipe.reader, source_size, options)
    return build_around(Half(recipe, reader, target_size, options))


class Half(NamedTuple):
    """A model that has its reader already: what a writer is built from, which has `size` tokens, labels or actions."""

    recipe: Recipe
    reader: Any  # None where nothing is read
    size: int
    options: Options

    @property
    def memory_dim(self) -> int | None:
        return None if self.reader is None else int(self.reader.dim)


# ---- readers


def build_reader(table: Any, size: int, options: Options) -> Any:
    """The reader of a table, a user's own included; None where nothing is read."""
    if table.kind not in READERS:
        return options.build_own(table, size)
    return READERS[table.kind](table, size, options)


def build_token_reader(table: schema.TokenReader, size: int, options: Options) -> TokenReader:
    stack = build_reader_stack(table, options, causal=table.causal)
    width = get_input_dim(stack)
    embedding = build_embedding(table, build_token_table(table, size, width), width, options.kinds)
    again = None
    if table.again is not None:
        again = build_second_pass(table.again, embedding.tokens, memory_dim=stack.dim, options=options)
    return TokenReader(
        embedding, stack, relates=table.positions.uses_segments, levels=table.levels, width=width, again=again
    )  # fmt: skip


def build_second_pass(table: schema.Again, tokens: nn.Embedding, *, memory_dim: int, options: Options) -> Again:
    """A causal stack over the same sequence that attends to the first pass and shares its token vectors."""
    stack = build_writer_stack(table, options, memory_dim=memory_dim)
    if tokens.embedding_dim != get_token_width(table, stack.dim):
        raise SaccadeError(
            f"reader.again reads with the reader's vectors of tokens, which are {tokens.embedding_dim} wide, but needs "
            f"{get_token_width(table, stack.dim)}; set the same stack.dim and positions.how, and no "
            "reader.embedding_dim"
        )
    return Again(build_embedding(table, tokens, stack.dim, options.kinds), stack)


def build_question_reader(table: schema.JoinedReader, size: int, options: Options) -> Any:
    """A reader of pictures and of questions about them."""
    ask = partial(build_token_reader, size=size, options=options._replace(copies_states=False))
    return build_joined_reader(table, ask, options)


def skip_reader(table: schema.NoReader, size: int, options: Options) -> None:
    """Nothing is read: the writer is a language model."""


READERS: dict[str, Callable[[Any, int, Options], Any]] = {
    "none": skip_reader,
    "tokens": build_token_reader,
    "patches": build_picture_reader,
    "grid": build_picture_reader,
    "timm": build_picture_reader,
    "frames": build_frame_reader,
    "joined": build_question_reader,
}


# ---- writers, each with the reader as a whole model


def build_around(half: Half) -> Model:
    table = half.recipe.writer
    if table.kind not in WRITERS:
        return Model(half.reader, half.options.build_own(table, half.size, half.memory_dim or 0))
    return WRITERS[table.kind](table, half)


def build_writer(
    table: schema.TokenWriter, *, size: int, train: schema.Train | None = None, kinds: Kinds | None = None
) -> TokenWriter:
    """A writer that reads nothing but what it wrote: a language model."""
    options = Options(train or schema.Train(), kinds or {})
    stack = build_writer_stack(table, options, memory_dim=None)
    return build_head(table, build_token_table(table, size, get_input_dim(stack)), stack, options)


def build_token_model(table: schema.TokenWriter, half: Half) -> Model:
    stack = build_writer_stack(table, half.options, memory_dim=half.memory_dim)
    tokens = choose_token_table(table, stack, half)
    ctc = CtcHead(half.reader.dim, size=half.size) if table.ctc else None
    return Model(half.reader, build_head(table, tokens, stack, half.options), ctc=ctc)


def build_head(table: schema.TokenWriter, tokens: nn.Embedding, stack: Stack, options: Options) -> TokenWriter:
    """Embedding, stack and output matrix together."""
    embedding = build_embedding(table, tokens, get_input_dim(stack), options.kinds)
    output = build_output(table, tokens, stack.dim)
    if table.output_bias:
        output.bias = nn.Parameter(torch.zeros(tokens.num_embeddings), requires_grad=False)
    scale = stack.dim**-0.5 if table.output_scale else 1.0
    if table.actions is None:
        return TokenWriter(embedding, stack, output=output, output_scale=scale)
    sights = eye_of(table.actions).size
    return ActionWriter(embedding, stack, output=output, output_scale=scale, sights=sights, blind=table.actions.blind)


def build_fill_model(table: schema.FillWriter, half: Half) -> Model:
    """A writer that predicts all tokens at once."""
    stack = build_writer_stack(table, half.options, memory_dim=half.memory_dim, causal=False)
    tokens = choose_token_table(table, stack, half)
    if table.copy_source and half.reader.dim != stack.dim:
        raise SaccadeError(
            f"writer.copy_source = true adds what was read to what is written, but the reader is {half.reader.dim} "
            f"wide and the writer {stack.dim}; set the same stack.dim, or writer.copy_source = false"
        )
    embedding = build_embedding(table, tokens, stack.dim, half.options.kinds)
    writer = FillWriter(
        embedding, stack, output=build_output(table, tokens, stack.dim),
        memory_dim=half.reader.dim, reach=table.reach, copy_source=table.copy_source,
    )  # fmt: skip
    return Model(half.reader, writer)


def build_label_model(table: schema.LabelWriter | schema.NumberWriter, half: Half) -> Model:
    writer = LabelWriter(half.reader.dim, size=half.size, pooling=table.pooling, **list_head_options(table))
    return Model(half.reader, writer)


def build_tag_model(table: schema.TagWriter, half: Half) -> Model:
    return Model(half.reader, TagWriter(half.reader.dim, size=half.size, **list_head_options(table)))


def list_head_options(table: schema.Head) -> dict[str, Any]:
    return table.model_dump(include={"hidden", "activation", "dropout", "bias"})


def build_masked_model(table: schema.MaskedWriter, half: Half) -> Model:
    output = build_encoder_output(table, half)
    writer = MaskedWriter(
        half.reader.dim, output, activation=table.activation,
        epsilon=half.recipe.reader.embedding_eps, pairs=table.pairs, dropout=table.dropout,
    )  # fmt: skip
    return Model(half.reader, writer)


def build_permuted_model(table: schema.PermutedWriter, half: Half) -> Model:
    return Model(half.reader, PermutedWriter(build_encoder_output(table, half), dim=half.reader.dim))


def build_states_model(table: schema.StatesWriter, half: Half) -> Model:
    return Model(half.reader, StatesWriter(half.reader.dim, pool=table.pool))


def build_patch_model(table: schema.PatchWriter, half: Half) -> Model:
    reader: Any = half.recipe.reader  # a PatchReader: the recipe was checked
    return Model(half.reader, PatchWriter(half.reader.dim, patch=reader.patch))


def build_value_model(table: schema.ValuesWriter, half: Half) -> Model:
    recurrence: Any = build_recurrent_writer(table.stack, half.options, memory_dim=half.reader.dim)
    return Model(half.reader, ValuesWriter(recurrence, size=half.size))


WRITERS: dict[str, Callable[[Any, Half], Model]] = {
    "tokens": build_token_model,
    "actions": build_token_model,
    "fill": build_fill_model,
    "label": build_label_model,
    "number": build_label_model,
    "tags": build_tag_model,
    "masked": build_masked_model,
    "permuted": build_permuted_model,
    "states": build_states_model,
    "patches": build_patch_model,
    "values": build_value_model,
}


# ---- matrices of tokens that reader and writer may share


def choose_token_table(table: schema.TokenWriter | schema.FillWriter, stack: Stack, half: Half) -> nn.Embedding:
    """The writer's token vectors: its own, or the reader's where they are tied."""
    if table.tie not in ("all", "input"):
        return build_token_table(table, half.size, get_input_dim(stack))
    if half.recipe.reader.kind not in READERS:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs a reader of kind "tokens", got "{half.recipe.reader.kind}"; '
            'set writer.tie = "output"'
        )
    tokens: nn.Embedding = half.reader.embedding.tokens
    if not half.recipe.tokenizer.shared or tokens.num_embeddings != half.size:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs one vocabulary, got {tokens.num_embeddings} source and {half.size} '
            'target pieces; set tokenizer.shared = true or writer.tie = "output"'
        )
    if tokens.embedding_dim != get_token_width(table, stack.dim):
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs reader and writer of one width, got {tokens.embedding_dim} and '
            f'{stack.dim}; set the same stack.dim and positions.how, or writer.tie = "output"'
        )
    return tokens


def build_output(table: schema.TokenWriter | schema.FillWriter, tokens: nn.Embedding, dim: int) -> nn.Linear:
    """The matrix from hidden states to logits: the writer's token vectors where it is tied."""
    if table.tie in ("none", "input"):
        output = nn.Linear(dim, tokens.num_embeddings, bias=False)
        nn.init.normal_(output.weight, std=dim**-0.5)
        return output
    if tokens.embedding_dim != dim:
        raise SaccadeError(
            f'writer.tie = "{table.tie}" needs token vectors as wide as the stack, got {tokens.embedding_dim} and '
            f'{dim} since positions are concatenated; set writer.tie = "none"'
        )
    return tie_output(tokens)


def build_encoder_output(table: schema.MaskedWriter | schema.PermutedWriter, half: Half) -> nn.Linear:
    """The output matrix over the states of a reader, which is its token vectors where it is tied, and its bias."""
    if table.tie == "none":
        width = get_embedding_width(half.recipe.reader, half.reader.dim)
        output = nn.Linear(width, half.size)
        nn.init.normal_(output.weight, std=width**-0.5)
    elif half.recipe.reader.kind not in READERS:
        raise SaccadeError(
            f'writer.tie = "all" needs a reader of kind "tokens", got "{half.recipe.reader.kind}"; '
            'set writer.tie = "none"'
        )
    else:
        output = tie_output(half.reader.embedding.tokens)
    output.bias = nn.Parameter(torch.zeros(half.size))
    return output


def tie_output(tokens: nn.Embedding) -> nn.Linear:
    output = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")  # no weights of its own
    output.weight = tokens.weight
    return output
