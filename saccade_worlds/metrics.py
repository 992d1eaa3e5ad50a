"""Metrics of routes and episodes, which are computed where they are walked and played."""

from saccade.config.metric import Metric
from saccade.score.metrics.accuracy import ExactMatch

ROUTE, EPISODE = "route", "episode"  # kinds of outputs


class Success(ExactMatch):
    """A route or an episode succeeds if its outcome equals the wanted one."""

    name = "success"
    title = "success %"
    outputs = (ROUTE, EPISODE)
    order = 40


class WorldMetric(Metric):
    def __init__(self, name: str, title: str, outputs: str, order: int, *, higher_is_better: bool = True) -> None:
        self.name, self.title, self.outputs, self.order = name, title, (outputs,), order
        self.higher_is_better = higher_is_better


METRICS = (
    Success(),
    WorldMetric("place", "place %", ROUTE, 41),
    WorldMetric("reward", "reward", EPISODE, 43),
    WorldMetric("steps", "steps", EPISODE, 44, higher_is_better=False),
)
