"""Reinforcement learning: learn the value of actions from episodes that are played in an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask
from saccade.tasks._media import get_folder_usage

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.prepare import Prepared
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.data.worlds.episodes import Episodes
    from saccade.predict.predictors.player import Player
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.session import Session


class Interact(BaseTask):
    name = "interact"
    writes_stepwise = False
    supports_fusion = False
    metrics = ("loss", "success")

    def find_conflict(self, recipe: Recipe) -> str:
        what, reader, writer = 'task = "interact"', recipe.reader, recipe.writer
        if not reader.is_picture:
            return f'{what} sees pictures, got reader.kind = "{reader.kind}"; set reader.kind = "grid" or "patches"'
        if not (writer.values or writer.is_custom):
            return f'{what} goes with writer.kind = "values", got "{writer.kind}"; change one of them'
        if writer.values is not None and writer.values.stack.hard:
            return f"writer.stack.hard = true draws where to look, which {what} does not learn; leave it out"
        conflicts = [objective.find_conflict(recipe) for objective in recipe.objectives]
        return next(filter(None, conflicts), "") or self.find_setting_conflict(recipe)

    def find_setting_conflict(self, recipe: Recipe) -> str:
        what, data, metric = 'task = "interact"', recipe.data, recipe.train.metric
        if metric not in self.metrics:
            return f'train.metric = "{metric}" is not of what is done; it is one of {", ".join(self.metrics)}'
        if recipe.train.epochs is not None:
            return f"{what} makes its own data, so that there are no epochs; set train.steps in their place"
        if data.valid_share:
            return f"{what} has episodes enough, so that none are held out by a share; name a world in data.valid"
        for name, corpora in (("data.train", data.train), ("data.valid", data.valid_corpora)):
            if sum(len(corpus.files) for corpus in corpora) > 1:
                return f"{what} plays in one world, got several in {name}; name one"
        return ""

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> Prepared:
        """Episodes are played while the model learns; the labels are the actions, and no text is tokenized."""
        from dataclasses import replace

        from saccade.config import schema
        from saccade.data.prepare import Prepared
        from saccade.data.tokenization.labels import Labels
        from saccade.data.tokenization.tokenizers import train_tokenizers
        from saccade.data.worlds.episodes import worlds_of

        train, valid = worlds_of(recipe)
        pieces = tokenizers or train_tokenizers(schema.Tokenizer(kind="bytes"), lambda: ())
        return Prepared(replace(pieces, labels=Labels("values", train.actions)), train, valid, [], [])

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        return None

    def get_data_usage(self, recipe: Recipe) -> str:
        return get_folder_usage()

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.player import Player

        return Player

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
        from saccade.score.playing import played_pairs

        return played_pairs(corpora)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.errors import SaccadeError
        from saccade.score.playing import evaluate_playing

        if options.metrics is not None or options.lowercase:
            raise SaccadeError("what is done has no words: --metrics and --lowercase say nothing; leave them out")
        return evaluate_playing(cast("Player", predictor), corpora)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.config.schema import Corpus
        from saccade.score.playing import evaluate_playing

        world = Corpus(files=(pairs[0][0],), examples=len(pairs))
        return evaluate_playing(cast("Player", predictor), [world])

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings

        return ComparisonSettings(shown=("success",), medium="world", counted="episodes")

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        """Scores of the same episodes at every validation, and the loss in them."""
        from saccade.data.worlds.episodes import TRIED, batch_of
        from saccade.predict.predictors.player import TOGETHER, Player
        from saccade.score.playing import scores_of_episodes, trial
        from saccade.train.validate import mean_loss

        player = Player(session.model, recipe=session.recipe, tokenizers=session.tokenizers)
        tried = trial(player, cast("Episodes", session.valid), first=TRIED)
        states = player.decoder.codec.reader.states or 1
        begins = range(0, len(tried), TOGETHER)
        loss = mean_loss(
            session, ((begin, batch_of(tried[begin : begin + TOGETHER], states=states)) for begin in begins)
        )
        return {"loss": loss, **{name: score.value for name, score in scores_of_episodes(tried).items()}}

    def get_forced_target(self, target: str) -> str | None:
        return None

    def get_examples(self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, made: int) -> Pairs:
        from saccade.predict.predictors.player import SUCCESS

        return [(str(episode), SUCCESS) for episode in range(1, count + 1)]


TASK: Task = Interact()
