"""What plays in a world and learns from it, as tables of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.stacks import RecurrentWriting
from saccade.config.table import Count, ObjectiveTraits, Share, Table, WriterTraits

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class Play(Table):
    """How a model that learns from what it does plays; what it played last is kept (data.buffer, in steps)."""

    together: Count = 16  # episodes that are played at a time
    every: Count = 4  # batches are drawn before more is played
    explore: Annotated[float, Field(ge=0, le=1)] = 0.05  # the share of actions that are drawn, in the end
    episodes: Count = 3000  # over which it goes down to that, from all of them


class ValuesWriter(Table, WriterTraits):
    """What each action is worth, after each picture of an episode (DARQN, Sorokin et al. 2015)."""

    predicts_classes: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("temporal-difference",)
    kind: Literal["values"] = "values"
    stack: RecurrentWriting = RecurrentWriting(attention="additive", context="mean", dropout=0.0)
    tie: Literal["none"] = "none"
    init: str = ""

    @property
    def values(self) -> ValuesWriter:
        return self


class TemporalDifference(Table, ObjectiveTraits):
    """What a step brings and what comes after it (double Q-learning); the other network is the moving average."""

    kind: Literal["temporal-difference"] = "temporal-difference"
    discount: Share = 0.9  # of what comes a step later
    weight: float = 1.0

    def find_conflict(self, recipe: Recipe) -> str:
        if recipe.train.ema:
            return ""
        return (
            'the objective "temporal-difference" needs a second network, which is the moving average; '
            "set train.ema = 0.99"
        )
