"""Tables of recipes: the writers "actions" and "values", the objective "temporal-difference", and [data] of "play"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.schema import Data, Recipe, RecurrentWriterStack, TokenWriter
from saccade.config.table import Count, ObjectiveTraits, Share, Table, WriterTraits

if TYPE_CHECKING:
    from saccade.model.build.model import WriterContext
    from saccade.model.model import Model
    from saccade.train.objectives.terms import Context, Objective


class ActionWriter(TokenWriter):
    """Writes actions, each of which is carried out in a map before the next one (Mei et al. 2016)."""

    renamed_keys: ClassVar[Mapping[str, str]] = {"blind": "input_dropout"}
    objective_kinds: ClassVar[tuple[str, ...]] = ("next-token",)
    only_tasks: ClassVar[tuple[str, ...]] = ("navigate",)
    kind: Literal["actions"] = "actions"  # type: ignore[assignment]
    """Chooses this writer: actions of the task "navigate"."""
    tie: Literal["none", "output"] = "output"
    """Weight tying (Press and Wolf 2017): "output" shares the embedding of actions and the output matrix."""
    items: tuple[str, ...] = ("barstool", "chair", "easel", "hatrack", "lamp", "sofa")
    """Names of the objects that can stand in the maps."""
    floors: tuple[str, ...] = ("blue", "brick", "concrete", "flower", "grass", "gravel", "wood", "yellow")
    """Names of the floor patterns of the maps."""
    walls: tuple[str, ...] = ("butterfly", "fish", "tower")
    """Names of the wall pictures of the maps."""
    mirror: bool = True
    """Augment training data with mirrored maps, where left and right are exchanged."""
    input_dropout: Share = 0.0
    """Dropout probability of the observed surroundings during training. 0 disables it."""

    def build_model(self, context: WriterContext) -> Model:
        from saccade_worlds.navigation.writer import build_action_model

        return build_action_model(self, context)


class PlaySettings(Table):
    """How episodes are played during training. The last `data.buffer` steps are kept for replay."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "together": "parallel_episodes", "every": "batches_per_round", "explore": "final_epsilon",
        "episodes": "epsilon_episodes",
    }  # fmt: skip
    parallel_episodes: Count = 16
    """Episodes that are played at once in one round, as one batch of the model."""
    batches_per_round: Count = 4
    """Training batches that are sampled from the replay buffer between two rounds of playing. Fewer keep the replayed
    data closer to the current policy, more learn more from each episode."""
    final_epsilon: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of random actions after `epsilon_episodes` episodes of epsilon-greedy exploration; it starts at 1.
    0 ends without exploration, 1 plays at random forever."""
    epsilon_episodes: Count = 3000
    """Number of episodes over which the share of random actions falls linearly from 1 to `final_epsilon`."""


class PlayData(Data):
    """The data of the task "play": worlds to train and validate in, and how episodes are played in them."""

    buffer: Count = 10_000
    """Steps in the replay buffer. More keep older episodes, which other policies played; fewer need less memory."""
    play: PlaySettings = PlaySettings()
    """How episodes are played during training."""


class ValuesWriter(Table, WriterTraits):
    """Predicts the value of each action after each picture of an episode (DARQN, Sorokin et al. 2015)."""

    predicts_classes: ClassVar[bool] = True
    only_tasks: ClassVar[tuple[str, ...]] = ("play",)
    objective_kinds: ClassVar[tuple[str, ...]] = ("temporal-difference",)
    kind: Literal["values"] = "values"
    """Chooses this writer: Q-values of actions, for the task "play"."""
    stack: RecurrentWriterStack = RecurrentWriterStack(attention="additive", context="mean", dropout=0.0)
    """The recurrent stack that attends to the picture at each step of an episode."""
    streams: Annotated[tuple[Literal["color", "grayscale", "depth"], ...], Field(min_length=1)] = ("color",)
    """Streams, each a network of its own (reader, recurrent stack and output layer) that sees some channels of the
    picture: its colors, its luminance, or its depth, which an environment returns as fourth channel. The value of an
    action is the mean over all streams; ["grayscale", "depth"] is the multimodal network of Qureshi et al. 2017."""
    tie: Literal["none"] = "none"
    """Which weight matrices are shared; none here, since actions are no tokens."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    def build_model(self, context: WriterContext) -> Model:
        from saccade_worlds.playing.streams import build_value_model

        return build_value_model(self, context)


class TemporalDifference(Table, ObjectiveTraits):
    """Double Q-learning (van Hasselt et al. 2016); the target network is the moving average of the weights."""

    kind: Literal["temporal-difference"] = "temporal-difference"
    """Chooses this objective: squared temporal-difference error, for the task "play"."""
    discount: Share = 0.9
    """Discount factor gamma per step. 0 values only the next reward; towards 1 later rewards count as much."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def build_objective(self, context: Context) -> Objective:
        from saccade_worlds.playing.objective import build_temporal_difference_objective

        return build_temporal_difference_objective(self, context)

    def find_conflict(self, recipe: Recipe) -> str:
        if recipe.train.ema:
            return ""
        return (
            'the objective "temporal-difference" needs a target network, which is the moving average; '
            "set train.ema = 0.99"
        )
