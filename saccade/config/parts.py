"""What reads and what writes, as tables of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from saccade.config.kinds import ByKind, Custom
from saccade.config.stacks import Positions, ReaderStack, Sinusoidal, TransformerStack, WriterStack
from saccade.config.table import Count, Share, Table


class TokenReader(Table):
    kind: Literal["tokens"] = "tokens"
    stack: ReaderStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True  # token vectors times sqrt(dim)
    embedding_norm: bool = False  # LayerNorm of tokens and positions together
    dropout: Share = 0.1  # of the embedding
    init: str = ""  # a run whose reader's weights to start from


class NoReader(Table):
    """Nothing is read: the writer is a language model."""

    kind: Literal["none"] = "none"


class TokenWriter(Table):
    kind: Literal["tokens"] = "tokens"
    stack: WriterStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    embedding_norm: bool = False
    dropout: Share = 0.1
    tie: Literal["none", "input", "output", "all"] = "all"  # input: both embeddings; output: the writer's and it
    start: Literal["own", "pad", "end"] = "own"  # what is read first: a vector of its own, or that of another piece
    output_scale: bool = False  # states divided by sqrt(dim) before the output matrix
    output_bias: bool = False  # of the logits; it is not trained
    init: str = ""


class FillWriter(Table):
    """Writes all tokens at once (Gu et al. 2018): how many there will be is predicted first."""

    kind: Literal["fill"] = "fill"
    stack: Annotated[TransformerStack | Custom, ByKind()] = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    dropout: Share = 0.1
    tie: Literal["none", "output", "all"] = "all"
    reach: Count = 16  # an output has at most so many tokens more or fewer than its source
    copy_source: bool = True  # a place where nothing is written yet sees the source states around it
    init: str = ""


Reader = Annotated[TokenReader | NoReader | Custom, ByKind()]
Writer = Annotated[TokenWriter | FillWriter | Custom, ByKind()]
