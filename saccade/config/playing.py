"""What plays in a world and learns from it, as tables of a recipe; and what goes together there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.kinds import Custom
from saccade.config.media import PictureReader
from saccade.config.stacks import RecurrentWriting
from saccade.config.table import Count, ObjectiveTraits, Share, Table, WriterTraits

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

OF_PLAYING = ("loss", "success")  # metrics of what is done in a world


class Play(Table):
    """How a model that learns from what it does plays; what it played last is kept (data.buffer, in steps)."""

    together: Count = 16  # episodes that are played at a time
    every: Count = 4  # batches are drawn before more is played
    explore: Annotated[float, Field(ge=0, le=1)] = 0.05  # the share of actions that are drawn, in the end
    episodes: Count = 3000  # over which it goes down to that, from all of them


class ValuesWriter(Table, WriterTraits):
    """What each action is worth, after each picture of an episode (DARQN, Sorokin et al. 2015)."""

    predicts_classes: ClassVar[bool] = True
    kind: Literal["values"] = "values"
    stack: RecurrentWriting = RecurrentWriting(attention="additive", context="mean", dropout=0.0)
    tie: Literal["none"] = "none"
    init: str = ""


class TemporalDifference(Table, ObjectiveTraits):
    """What a step brings and what comes after it (double Q-learning); the other network is the moving average."""

    kind: Literal["temporal-difference"] = "temporal-difference"
    discount: Share = 0.9  # of what comes a step later
    weight: float = 1.0


def misfits_of_playing(recipe: Recipe) -> str:
    """What does not go with a world that is played in, said in one line; nothing where all goes together."""
    what = 'task = "interact"'
    if not isinstance(recipe.reader, PictureReader):
        return f'{what} sees pictures, got reader.kind = "{recipe.reader.kind}"; set reader.kind = "grid" or "patches"'
    if not isinstance(recipe.writer, ValuesWriter | Custom):
        return f'{what} goes with writer.kind = "values", got "{recipe.writer.kind}"; change one of them'
    if isinstance(recipe.writer, ValuesWriter) and recipe.writer.stack.hard:
        return f"writer.stack.hard = true draws where to look, which {what} does not learn; leave it out"
    learns = any(isinstance(objective, TemporalDifference) for objective in recipe.objectives)
    if learns and not recipe.train.ema:
        return (
            'the objective "temporal-difference" needs a second network, which is the moving average; '
            "set train.ema = 0.99"
        )
    if recipe.train.metric not in OF_PLAYING:
        return f'train.metric = "{recipe.train.metric}" is not of what is done; it is one of {", ".join(OF_PLAYING)}'
    if recipe.train.epochs is not None:
        return f"{what} makes its own data, so that there are no epochs; set train.steps in their place"
    if isinstance(recipe.data.valid, float) and recipe.data.valid:
        return f"{what} has episodes enough, so that none are held out by a share; name a world in data.valid"
    for name, corpora in (("data.train", recipe.data.train), ("data.valid", recipe.data.valid)):
        if isinstance(corpora, tuple) and sum(len(corpus.files) for corpus in corpora) > 1:
            return f"{what} plays in one world, got several in {name}; name one"
    return ""
