"""How a picture and a question about it become what a writer looks at, as tables of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from saccade.config.kinds import ByKind, Custom
from saccade.config.media import CellStack
from saccade.config.table import Count, Share, Table


class GlimpsesJoin(Table):
    """The whole question looks at all cells, several times at once (Kazemi and Elqursh 2017)."""

    kind: Literal["glimpses"] = "glimpses"
    glimpses: Count = 2
    hidden: Count = 512  # width of the layer in which a cell meets the question
    dropout: Share = 0.0  # of cells


class HopsJoin(Table):
    """Each word looks at all cells, and then the question with what it has seen looks again (Xu and Saenko 2016)."""

    kind: Literal["hops"] = "hops"
    hops: Count = 2
    dim: Count = 512  # of what is seen
    dropout: Share = 0.0  # of cells


class ConcatJoin(Table):
    """All cells and all words one after the other, and a stack over both where there is one."""

    kind: Literal["concat"] = "concat"
    dim: Count = 512  # to which both are brought; that of the stack
    stack: CellStack | None = None


class QuestionJoin(Table):
    """The question alone: how well answers can be guessed without seeing."""

    kind: Literal["question"] = "question"


Join = Annotated[GlimpsesJoin | HopsJoin | ConcatJoin | QuestionJoin | Custom, ByKind()]
