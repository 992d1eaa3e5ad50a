"""Builds input embeddings from a recipe: token vectors, positions, segments, norm and projection."""

from collections.abc import Callable
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.config.table import StartToken
from saccade.data.tokenization.tokenizer import END, PAD
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.model.build.options import build_custom
from saccade.model.readers.tokens import Embedding

EmbeddedTable = schema.TokenReader | schema.SecondPass | schema.TokenWriter | schema.FillWriter | schema.FertilityWriter
START_IDS = {"own": None, "pad": PAD, "end": END}


def get_embedding_width(table: Any, dim: int) -> int:
    """Width of token and position vectors together, before the projection to the width of the stack."""
    return table.embedding_options.dim or dim


def get_token_width(table: EmbeddedTable, dim: int) -> int:
    """Width of token vectors alone; concatenated positions take the other half."""
    width = get_embedding_width(table, dim)
    return width // 2 if table.positions.is_concatenated else width


def build_token_table(table: EmbeddedTable, size: int, dim: int) -> nn.Embedding:
    return init_table(nn.Embedding(size, get_token_width(table, dim)))


def init_table(table: nn.Embedding) -> nn.Embedding:
    nn.init.normal_(table.weight, std=table.embedding_dim**-0.5)
    return table


def build_embedding(table: EmbeddedTable, tokens: nn.Embedding, dim: int) -> Embedding:
    """Build the input embedding of a stack of width `dim` around a table of token vectors."""
    width, options = get_embedding_width(table, dim), table.embedding_options
    concat = tokens.embedding_dim != width
    position_width = width - tokens.embedding_dim if concat else width
    input_positions = build_input_positions(table.positions, position_width)
    norm = nn.LayerNorm(width, eps=table.stack.embedding_eps) if options.norm else None
    segments = init_table(nn.Embedding(options.segments, width)) if options.segments else None
    return Embedding(
        tokens, positions=input_positions, concat=concat, scale=table.scale_embedding, norm=norm, dropout=table.dropout,
        start=get_start_id(options.start_token, tokens),
        segments_and_projection=(segments, build_projection(options.dim, dim)),
    )  # fmt: skip


def get_start_id(start_token: StartToken, tokens: nn.Embedding) -> int | None:
    """Return the id whose vector the start token uses; None if it has one of its own."""
    if isinstance(start_token, str):
        return START_IDS[start_token]
    if start_token >= tokens.num_embeddings:
        raise SaccadeError(
            f"start_token = {start_token} is not the id of a token; the vocabulary has {tokens.num_embeddings} tokens, "
            "numbered from 0"
        )
    return start_token


def build_projection(width: int | None, dim: int) -> nn.Linear | None:
    """Build the projection from `width`, that of the embedding, to `dim`, that of the stack; None where not needed."""
    if width is None:
        return None
    project = nn.Linear(width, dim)
    nn.init.xavier_uniform_(project.weight)
    nn.init.zeros_(project.bias)
    return project


def build_input_positions(table: Any, width: int) -> nn.Module | None:
    """Build position vectors for the input (added or concatenated); None for kinds that act inside attention."""
    if table.kind in INPUT_POSITIONS:
        return INPUT_POSITIONS[table.kind](table, width)
    return build_custom(table, width) if table.is_custom else None


INPUT_POSITIONS: dict[str, Callable[[Any, int], nn.Module]] = {
    "sinusoidal": lambda s, width: positions.Sinusoidal(width, layout=s.layout, frequencies=s.frequencies),
    "learned": lambda s, width: positions.Learned(width, max_length=s.length),
    "axial": lambda s, width: positions.Axial(width, shape=s.shape, row_dim=s.row_dim or width // 4),
}
