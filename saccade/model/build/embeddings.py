"""Embeddings from their part of a recipe: token vectors, positions, segments, norm and projection."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.data.tokenization.tokenizer import END, PAD
from saccade.layers.attention import positions
from saccade.model.readers.tokens import Embedding

EmbeddedTable = schema.TokenReader | schema.Again | schema.TokenWriter | schema.FillWriter
STARTS = {"own": None, "pad": PAD, "end": END}


def get_embedding_width(table: Any, dim: int) -> int:
    """Width of tokens and positions together, before anything projects them to the width of the stack."""
    return table.embedding_options.dim or dim


def get_token_width(table: EmbeddedTable, dim: int) -> int:
    """Width of token vectors alone; concatenated positions take the other half."""
    width = get_embedding_width(table, dim)
    return width // 2 if table.positions.concatenated else width


def build_token_table(table: EmbeddedTable, size: int, dim: int) -> nn.Embedding:
    return init_table(nn.Embedding(size, get_token_width(table, dim)))


def init_table(table: nn.Embedding) -> nn.Embedding:
    nn.init.normal_(table.weight, std=table.embedding_dim**-0.5)
    return table


def build_embedding(table: EmbeddedTable, tokens: nn.Embedding, dim: int, kinds: Mapping[str, Any]) -> Embedding:
    both, options = get_embedding_width(table, dim), table.embedding_options
    concat = tokens.embedding_dim != both
    width = both - tokens.embedding_dim if concat else both
    where = build_input_positions(table.positions, width, kinds)
    norm = nn.LayerNorm(both, eps=table.stack.embedding_eps) if options.norm else None
    segments = init_table(nn.Embedding(options.segments, both)) if options.segments else None
    return Embedding(
        tokens, positions=where, concat=concat, scale=table.scale, norm=norm, dropout=table.dropout,
        start=STARTS[options.start], more=(segments, build_projection(options.dim, dim)),
    )  # fmt: skip


def build_projection(width: int | None, dim: int) -> nn.Linear | None:
    """From the width of the embedding to that of the stack, where the two differ."""
    if width is None:
        return None
    project = nn.Linear(width, dim)
    nn.init.xavier_uniform_(project.weight)
    nn.init.zeros_(project.bias)
    return project


def build_input_positions(table: Any, width: int, kinds: Mapping[str, Any]) -> nn.Module | None:
    """Positions that are added or concatenated at the input; None for kinds that act inside attention, or nowhere."""
    if table.kind in AT_INPUT:
        return AT_INPUT[table.kind](table, width)
    return kinds[table.kind](width, **table.settings()) if table.kind in kinds else None


AT_INPUT: dict[str, Callable[[Any, int], nn.Module]] = {
    "sinusoidal": lambda s, width: positions.Sinusoidal(width, layout=s.layout, frequencies=s.frequencies),
    "learned": lambda s, width: positions.Learned(width, length=s.length),
    "axial": lambda s, width: positions.Axial(width, shape=s.shape, first=s.first or width // 4),
}
