"""Builds the readers of sound, of pictures, and of pictures with questions from their tables of a recipe."""

from collections.abc import Callable
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.config.protocols import Stack
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.audio.downsampling import PyramidStack, Stem
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.vision.joining import Concat, Glimpses, Hops, QuestionOnly, WeightedWords, WordsOnly
from saccade.layers.vision.patches import ColorNormalization, ConvPatchEmbedding, PatchEmbedding, ResNetCells
from saccade.model.build.options import Options, build_custom
from saccade.model.build.recurrent import build_recurrent_reader
from saccade.model.build.stacks import get_input_dim
from saccade.model.build.timm import build_backbone
from saccade.model.build.transformer import build_transformer
from saccade.model.readers.media import FrameReader, JoinedReader, PictureReader
from saccade.model.readers.tokens import TokenReader

# ---- sound


def build_frame_reader(reader: schema.FrameReader, size: int, options: Options) -> FrameReader:
    """Build stem, positions and stack of an audio encoder; a custom stack is called with its settings alone."""
    settings = reader.stack
    if settings.kind in FRAME_STACKS:
        stack = FRAME_STACKS[settings.kind](settings, options._replace(copies_states=False))
    else:
        stack = build_custom(settings)
    stem = Stem(reader.sound.mel_bands, stack.dim, strides=reader.strides, kernel=reader.kernel)
    position_table = None
    if reader.positions == "sinusoidal":  # as in Whisper
        position_table = positions.Sinusoidal(stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return FrameReader(stem, stack, positions=position_table, dropout=reader.dropout)


def build_pyramid(s: Any, options: Options) -> PyramidStack:
    return PyramidStack(s.dim, cell=s.cell, layers=s.layers, dropout=s.dropout)


def build_plain_transformer(s: schema.TransformerStack, options: Options) -> Any:
    """Build a bidirectional Transformer without positions of its own: the input has them already."""
    return build_transformer(s, schema.NoPositions(), memory_dim=None, causal=False, train=options.train)


FRAME_STACKS: dict[str, Callable[[Any, Options], Any]] = {
    "transformer": build_plain_transformer,
    "recurrent": build_recurrent_reader,
    "pyramid": build_pyramid,
}


# ---- pictures


def build_picture_reader(reader: schema.CellReader, size: int, options: Options) -> PictureReader:
    stack = build_feature_stack(reader.stack, options)
    features, dim = FEATURE_EXTRACTORS[reader.kind](reader, stack)
    return PictureReader(
        features, stack, dim=dim, grid=reader.grid, dropout=reader.dropout,
        positions=build_picture_positions(reader.positions, dim, length=reader.states),
        class_token=reader.has_class_token,
        columns=build_column_stack(reader.column_layers, dim),
    )  # fmt: skip


def build_timm_features(reader: schema.TimmReader, stack: Stack | None) -> tuple[nn.Module, int]:
    return build_backbone(reader), reader.dim


def build_grid_features(reader: schema.GridReader, stack: Stack | None) -> tuple[nn.Module, int]:
    features = ResNetCells(
        reader.channels,
        depth=reader.depth,
        height_only_stages=reader.height_only_levels,
        attention=reader.attention_levels,
    )
    return features, reader.channels[-1]


def build_patch_features(reader: schema.PatchReader, stack: Stack) -> tuple[nn.Module, int]:
    dim, patch, colors = int(stack.dim), reader.patch_size, ColorNormalization(reader.mean, reader.std)
    normalization = None if set(colors.mean + colors.std) == {0.5} else colors  # None: values from -1 to 1
    if reader.stem:
        return ConvPatchEmbedding(dim, patch=patch, channels=reader.stem, normalization=normalization), dim
    return PatchEmbedding(dim, patch=patch, normalization=normalization), dim


# How a picture becomes feature vectors: each function returns the module and their width
FEATURE_EXTRACTORS: dict[str, Callable[[Any, Any], tuple[nn.Module, int]]] = {
    "timm": build_timm_features,
    "grid": build_grid_features,
    "patches": build_patch_features,
}


def build_feature_stack(settings: Any, options: Options) -> Any:
    """Build the stack over the feature vectors of a picture; None where the recipe has none."""
    if settings is None:
        return None
    if settings.kind != "transformer":
        return build_custom(settings)
    return build_plain_transformer(settings, options)


def build_column_stack(layers: int, dim: int) -> RecurrentStack | None:
    """Build the LSTM over the columns of a feature map; None for 0 layers."""
    return RecurrentStack(dim, cell="lstm", layers=layers).discard_cell_states() if layers else None


def build_picture_positions(kind: str, dim: int, *, length: int) -> nn.Module | None:
    if kind == "none":
        return None
    return positions.Sinusoidal(dim) if kind == "sinusoidal" else positions.Learned(dim, max_length=length)


# ---- pictures with questions


def build_joined_reader(
    reader: schema.JoinedReader, build_question_reader: Callable[[schema.TokenReader], TokenReader], options: Options
) -> JoinedReader:
    """Build the reader of pictures, the reader of questions and the module that joins their memories.

    A custom join is called with the widths of both memories.
    """
    questions = build_question_reader(reader.question)
    if reader.join.kind == "question":
        return JoinedReader(None, questions, QuestionOnly(questions.dim), grid=reader.image.grid)
    pictures = build_picture_reader(reader.image, 0, options)
    if reader.join.kind in JOIN_BUILDERS:
        join = JOIN_BUILDERS[reader.join.kind](reader.join, pictures.dim, questions, options)
    else:
        join = build_custom(reader.join, pictures.dim, questions.dim)
    return JoinedReader(pictures, questions, join, grid=pictures.grid, picture_dropout=reader.image_dropout)


def build_glimpses(
    join: schema.GlimpsesJoin, picture_dim: int, question_reader: TokenReader, options: Options
) -> Glimpses:
    return Glimpses(
        picture_dim, question_reader.dim, hidden_dim=join.hidden_dim, glimpses=join.glimpses, dropout=join.dropout
    )


def build_hops(join: schema.HopsJoin, picture_dim: int, question_reader: TokenReader, options: Options) -> Hops:
    token_dim, words = get_input_dim(question_reader.stack), None
    if join.question_length is not None:
        question_reader.stack, words = WordsOnly(token_dim), WeightedWords(join.dim, length=join.question_length)
    return Hops(
        picture_dim, token_dim, question_reader.dim, dim=join.dim, hops=join.hops, words=words, dropout=join.dropout
    )


def build_concat(join: schema.ConcatJoin, picture_dim: int, question_reader: TokenReader, options: Options) -> Concat:
    stack = build_feature_stack(join.stack, options)
    if stack is not None and stack.dim != join.dim:
        raise SaccadeError(
            f"reader.join.stack.dim must be that of the join, {join.dim}, got {stack.dim}; set one to the other"
        )
    return Concat(picture_dim, question_reader.dim, dim=join.dim, stack=stack)


JOIN_BUILDERS: dict[str, Callable[[Any, int, TokenReader, Options], nn.Module]] = {
    "glimpses": build_glimpses,
    "hops": build_hops,
    "concat": build_concat,
}
