"""Evaluate a model in an environment: success rate, reward, and attention on the relevant area."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from saccade.config.metric import Score
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.score.result import ScoreTable
from saccade_worlds.playing.episodes import FIRST_HELDOUT_SEED, Box, Episode, VectorEnvironment
from saccade_worlds.playing.predictor import SUCCESS, Player, get_outcome

DEFAULT_EPISODES = 100  # used if the corpus has no number of examples
EPISODE_METRICS = ("success", "reward", "steps")
SIGNATURES = {  # stored with results, so their wording does not change
    "success": "share of episodes that reach their goal",
    "reward": "mean of the sum of rewards",
    "steps": "mean length of an episode",
    "attention_lift": "mean attention on the relevant cells, divided by their share of the image",
}


@dataclass(frozen=True)
class EpisodeEvaluation(ScoreTable):
    """Scores over some episodes."""

    truncated_lengths: ClassVar[tuple[int, ...]] = ()
    scores: dict[str, Score]
    episodes: int
    hypotheses: list[str]  # outcome of each episode
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all but the episodes, for JSON."""
        scores = {name: score.to_dict() for name, score in self.scores.items()}
        return {"episodes": self.episodes, "scores": scores, "seconds": self.seconds}

    @property
    def outputs_per_second(self) -> float:
        return self.episodes / self.seconds

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and description of each score, for a table."""
        return [(name, f"{score.value:.2f}", score.signature) for name, score in self.scores.items()]

    def summary(self) -> str:
        speed = f" in {self.seconds:.1f} s: {self.episodes / self.seconds:,.1f} episodes/s" if self.seconds else ""
        return f"{self.episodes:,} episode{'s' if self.episodes != 1 else ''}{speed}"


def play_test_episodes(
    player: Player, world: VectorEnvironment, *, first: int = FIRST_HELDOUT_SEED, align: bool = False
) -> list[Episode]:
    """Play as many episodes as the corpus has; always the same ones."""
    return player.play(range(world.corpus.examples or DEFAULT_EPISODES), world=world, first=first, align=align)


def list_episode_pairs(corpora: Sequence[Corpus]) -> list[tuple[str, str]]:
    """Return, for each episode, the name of its environment and the expected outcome."""
    corpus = get_single_world(corpora)
    return [(corpus.files[0], SUCCESS)] * (corpus.examples or DEFAULT_EPISODES)


def get_single_world(corpora: Sequence[Corpus]) -> Corpus:
    """Return the only environment of the corpora; refuse several."""
    names = [name for corpus in corpora for name in corpus.files]
    if len(names) != 1:
        raise SaccadeError(f"a model is evaluated in one world at a time, got {len(names)}; name one with --data")
    return corpora[0]


def evaluate_episodes(player: Player, corpora: Sequence[Corpus]) -> EpisodeEvaluation:
    """Play episodes and score them."""
    world = player.get_world(get_single_world(corpora))
    begin = time.perf_counter()
    played = play_test_episodes(player, world, align=True)
    seconds = time.perf_counter() - begin
    scores = score_episodes(played)
    if (ratio := compute_attention_ratio(played, grid=player.grid)) is not None:
        scores["attention_lift"] = Score(ratio, SIGNATURES["attention_lift"])
    return EpisodeEvaluation(scores, len(played), [get_outcome(episode) for episode in played], seconds)


def score_episodes(episodes: Sequence[Episode]) -> dict[str, Score]:
    values = {
        "success": 100 * float(np.mean([episode.success for episode in episodes])),
        "reward": float(np.mean([episode.total_reward for episode in episodes])),
        "steps": float(np.mean([len(episode) for episode in episodes])),
    }
    return {name: Score(value, SIGNATURES[name]) for name, value in values.items()}


def compute_attention_ratio(episodes: Sequence[Episode], *, grid: tuple[int, int]) -> float | None:
    """Return the mean over pictures of attention on the relevant cells, divided by their share of all cells.

    1 is uniform attention; that of several streams is averaged. None if the environment does not mark a relevant area,
    or the model has no attention.
    """
    ratios = [
        look[..., mask_covered_cells(box, grid).ravel()].sum() / (mask_covered_cells(box, grid).mean() * look.sum())
        for episode in episodes
        for box, look in zip(episode.boxes, episode.attention, strict=False)
        if box is not None
    ]
    return float(np.mean(ratios)) if ratios else None


def mask_covered_cells(box: Box, grid: tuple[int, int]) -> np.ndarray:
    """Return (rows, columns) bool: the cells that a box overlaps."""
    top, left, bottom, right = box
    cells = np.zeros(grid, dtype=bool)
    rows, columns = grid
    cells[
        math.floor(top * rows) : math.ceil(bottom * rows), math.floor(left * columns) : math.ceil(right * columns)
    ] = True
    return cells
