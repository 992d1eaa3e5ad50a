"""Reinforcement learning: learn the value of actions from episodes that are played in an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask
from saccade_worlds.tables import PlayData, ValuesWriter

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Data, Decoding, Recipe
    from saccade.data.prepare import PreparedData
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.model.model import Model
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.batches.prefetch import Stream
    from saccade.train.session import Session
    from saccade_worlds.playing.episodes import VectorEnvironment
    from saccade_worlds.playing.predictor import Player


class Play(BaseTask):
    name = "play"
    page_settings: tuple[str, ...] | None = ()
    former_names: tuple[str, ...] = ("interact",)
    data_table: type[Data] | None = PlayData
    card_metrics: tuple[str, ...] = ("success", "reward", "steps")
    learns_from_texts = False
    batches_depend_on_model = True  # episodes are played with the current weights
    writes_stepwise = False
    supports_fusion = False
    metrics = ("loss", "success")

    def find_conflict(self, recipe: Recipe) -> str:
        what, reader = 'task = "play"', recipe.reader
        writer: Any = recipe.writer  # of any kind, one of a plugin too
        if not reader.is_picture:
            return f'{what} reads pictures, got reader.kind = "{reader.kind}"; set reader.kind = "grid" or "patches"'
        values = writer if isinstance(writer, ValuesWriter) else None
        if not (values or writer.is_custom):
            return f'{what} goes with writer.kind = "values", got "{writer.kind}"; change one of them'
        if values is not None and values.stack.hard_attention:
            return f"writer.stack.hard_attention = true samples attention, which {what} does not train; leave it out"
        conflicts = [objective.find_conflict(recipe) for objective in recipe.objectives]
        return next(filter(None, conflicts), "") or self.find_setting_conflict(recipe)

    def find_setting_conflict(self, recipe: Recipe) -> str:
        what, data, metric = 'task = "play"', recipe.data, recipe.train.metric
        if metric not in self.metrics:
            return f'train.metric = "{metric}" does not measure episodes; it is one of {", ".join(self.metrics)}'
        if recipe.train.epochs is not None:
            return f"{what} plays its own data, so that there are no epochs; set train.steps instead"
        if data.valid_share:
            return f"{what} cannot hold a share of the episodes out; name a world in data.valid"
        for name, corpora in (("data.train", data.train), ("data.valid", data.valid_corpora)):
            if sum(len(corpus.files) for corpus in corpora) > 1:
                return f"{what} plays in one world, got several in {name}; name one"
        return ""

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> PreparedData:
        """Build the environments; episodes are played during training. Labels are the actions; no text is tokenized."""
        from dataclasses import replace

        from saccade.config import schema
        from saccade.data.prepare import PreparedData
        from saccade.data.tokenization.labels import Labels
        from saccade.data.tokenization.tokenizers import train_tokenizers
        from saccade_worlds.playing.episodes import build_environments

        train, valid = build_environments(recipe)
        pieces = tokenizers or train_tokenizers(schema.Tokenizer(kind="bytes"), lambda: ())
        return PreparedData(replace(pieces, labels=Labels("values", train.actions)), train, valid, [], [])

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        return None

    def get_data_usage(self, recipe: Recipe) -> str:
        return "--data FOLDER (data=FOLDER"

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade_worlds.playing.predictor import Player

        return Player

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        from saccade_worlds.playing.scores import list_episode_pairs

        return list_episode_pairs(corpora)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.errors import SaccadeError
        from saccade_worlds.playing.scores import evaluate_episodes

        if options.metrics is not None or options.lowercase:
            raise SaccadeError(
                "episodes have no text outputs, so that --metrics and --lowercase do not apply; leave them out"
            )
        return evaluate_episodes(cast("Player", predictor), corpora)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.config.schema import Corpus
        from saccade_worlds.playing.scores import evaluate_episodes

        world = Corpus(files=(pairs[0][0],), examples=len(pairs))
        return evaluate_episodes(cast("Player", predictor), [world])

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings

        return ComparisonSettings(table_metrics=("success",), outputs="episode", medium="world", counted="episodes")

    def open_stream(self, recipe: Recipe, data: Any, model: Model, *, rank: int, world: int) -> Stream:
        from saccade.errors import SaccadeError
        from saccade_worlds.playing.replay import Replay

        if world > 1:
            raise SaccadeError(f'task = "play" trains in one process, got {world}; start it without torchrun')
        return Replay(recipe, data, model)

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        """Scores and loss of the same episodes at every validation."""
        from saccade.train.validate import compute_mean_loss
        from saccade_worlds.playing.episodes import FIRST_VALIDATION_SEED, collate_episodes
        from saccade_worlds.playing.predictor import EPISODES_PER_BATCH, Player
        from saccade_worlds.playing.scores import play_test_episodes, score_episodes

        player = Player(session.model, recipe=session.recipe, tokenizers=session.tokenizers)
        played = play_test_episodes(player, cast("VectorEnvironment", session.valid), first=FIRST_VALIDATION_SEED)
        states = player.decoder.codec.reader.states or 1
        begins = range(0, len(played), EPISODES_PER_BATCH)
        loss = compute_mean_loss(
            session,
            (
                (begin, collate_episodes(played[begin : begin + EPISODES_PER_BATCH], num_states=states))
                for begin in begins
            ),
        )
        return {"loss": loss, **{name: score.value for name, score in score_episodes(played).items()}}

    def get_forced_target(self, target: str) -> str | None:
        return None

    def get_examples(
        self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, synthetic_count: int
    ) -> Pairs:
        from saccade_worlds.playing.predictor import SUCCESS

        return [(str(episode), SUCCESS) for episode in range(1, count + 1)]


PLAY: Task = Play()
