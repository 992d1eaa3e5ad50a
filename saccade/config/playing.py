"""Tables of the task "play": the reinforcement learning settings, the writer of action values and its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.stacks import RecurrentWriterStack
from saccade.config.table import Count, ObjectiveTraits, Share, Table, WriterTraits

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class PlaySettings(Table):
    """Task "play": how episodes are played during training. The last `data.buffer` steps are kept for replay."""

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


class ValuesWriter(Table, WriterTraits):
    """Predicts the value of each action after each image of an episode (DARQN, Sorokin et al. 2015)."""

    predicts_classes: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("temporal-difference",)
    kind: Literal["values"] = "values"
    """Chooses this writer: Q-values of actions, for the task "play"."""
    stack: RecurrentWriterStack = RecurrentWriterStack(attention="additive", context="mean", dropout=0.0)
    """The recurrent stack that attends to the picture at each step of an episode."""
    tie: Literal["none"] = "none"
    """Which weight matrices are shared; none here, since actions are no tokens."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def values(self) -> ValuesWriter:
        return self


class TemporalDifference(Table, ObjectiveTraits):
    """Double Q-learning (van Hasselt et al. 2016); the target network is the moving average of the weights."""

    kind: Literal["temporal-difference"] = "temporal-difference"
    """Chooses this objective: squared temporal-difference error, for the task "play"."""
    discount: Share = 0.9
    """Discount factor gamma per step. 0 values only the next reward; towards 1 later rewards count as much."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def find_conflict(self, recipe: Recipe) -> str:
        if recipe.train.ema:
            return ""
        return (
            'the objective "temporal-difference" needs a target network, which is the moving average; '
            "set train.ema = 0.99"
        )
