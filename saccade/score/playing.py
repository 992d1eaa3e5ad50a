"""How a model fares in a world: how often it reaches what is wanted, and whether it looks at what matters there."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from saccade.config.schema import Corpus
from saccade.data.worlds.episodes import HELD_OUT, Box, Episode, Episodes
from saccade.errors import SaccadeError
from saccade.predict.predictors.player import SUCCESS, Player, outcome
from saccade.score.bleu import Score

EPISODES = 100  # where nobody says how many
OF_EPISODES = ("success", "reward", "steps")
SIGNATURES = {
    "success": "share of episodes that reach what is wanted",
    "reward": "mean of the sum of rewards",
    "steps": "mean length of an episode",
    "gaze": "mean attention on what matters, in units of its share of the picture",
}


@dataclass(frozen=True)
class PlayedEvaluation:
    """What was measured of some episodes."""

    cut: ClassVar[tuple[int, ...]] = ()
    scores: dict[str, Score]
    episodes: int
    hypotheses: list[str]  # what came of each
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the episodes themselves."""
        scores = {name: asdict(score) for name, score in self.scores.items()}
        return {"episodes": self.episodes, "scores": scores, "seconds": self.seconds}

    @property
    def outputs_per_second(self) -> float:
        return self.episodes / self.seconds

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        return [(name, f"{score.value:.2f}", score.signature) for name, score in self.scores.items()]

    def summary(self) -> str:
        speed = f" in {self.seconds:.1f} s: {self.episodes / self.seconds:,.1f} episodes/s" if self.seconds else ""
        return f"{self.episodes:,} episode{'s' if self.episodes != 1 else ''}{speed}"


def trial(player: Player, world: Episodes, *, first: int = HELD_OUT, align: bool = False) -> list[Episode]:
    """As many episodes as the corpus says, always the same ones."""
    return player.play(range(world.corpus.examples or EPISODES), world=world, first=first, align=align)


def played_pairs(corpora: Sequence[Corpus]) -> list[tuple[str, str]]:
    """For each episode the world in which it is played, and what is wanted of it."""
    corpus = only_world(corpora)
    return [(corpus.files[0], SUCCESS)] * (corpus.examples or EPISODES)


def only_world(corpora: Sequence[Corpus]) -> Corpus:
    """What a model is tried in."""
    names = [name for corpus in corpora for name in corpus.files]
    if len(names) != 1:
        raise SaccadeError(f"a model is tried in one world at a time, got {len(names)}; name one with --data")
    return corpora[0]


def evaluate_playing(player: Player, corpora: Sequence[Corpus]) -> PlayedEvaluation:
    """Plays and measures."""
    world = player.world(only_world(corpora))
    begin = time.perf_counter()
    played = trial(player, world, align=True)
    seconds = time.perf_counter() - begin
    found = scores_of_episodes(played)
    if (ratio := gaze(played, grid=player.grid)) is not None:
        found["gaze"] = Score(ratio, SIGNATURES["gaze"])
    return PlayedEvaluation(found, len(played), [outcome(episode) for episode in played], seconds)


def scores_of_episodes(played: Sequence[Episode]) -> dict[str, Score]:
    values = {
        "success": 100 * float(np.mean([episode.success for episode in played])),
        "reward": float(np.mean([episode.total for episode in played])),
        "steps": float(np.mean([len(episode) for episode in played])),
    }
    return {name: Score(value, SIGNATURES[name]) for name, value in values.items()}


def gaze(played: Sequence[Episode], *, grid: tuple[int, int]) -> float | None:
    """The mean over all pictures of attention on the cells of what matters, divided by their share of all cells.

    1 is a look at everything alike. None where the world does not tell what matters, or nothing looks.
    """
    ratios = [
        look.reshape(grid)[covered(box, grid)].sum() / (covered(box, grid).mean() * look.sum())
        for episode in played
        for box, look in zip(episode.boxes, episode.looks, strict=False)
        if box is not None
    ]
    return float(np.mean(ratios)) if ratios else None


def covered(box: Box, grid: tuple[int, int]) -> np.ndarray:
    """(rows, columns) bool, the cells that a rectangle touches."""
    top, left, bottom, right = box
    cells = np.zeros(grid, dtype=bool)
    rows, columns = grid
    cells[
        math.floor(top * rows) : math.ceil(bottom * rows), math.floor(left * columns) : math.ceil(right * columns)
    ] = True
    return cells
