"""Follow instructions in a known map (Mei et al. 2016): write actions, each of which is carried out at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask
from saccade_worlds.tables import ActionWriter

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.sources.corpus import CorpusSplit
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.data.tokenization.labels import Labels
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.validate import Scoring


class Navigate(BaseTask):
    name = "navigate"
    learns_from_texts = False
    former_names: tuple[str, ...] = ("walk",)
    supports_fusion = False
    card_metrics: tuple[str, ...] = ("success",)
    metrics = ("loss", "success", "accuracy")

    def find_mismatch(self, recipe: Recipe) -> str:
        reader, writer = recipe.reader, recipe.writer
        if reader.medium:
            return super().find_mismatch(recipe)
        if not isinstance(writer, ActionWriter):
            return f'task = "navigate" goes with writer.kind = "actions", got "{writer.kind}"; change one of them'
        if not (reader.text or reader.is_custom):
            return f'task = "navigate" reads instructions; set reader.kind = "tokens", got "{reader.kind}"'
        return ""

    def find_setting_conflict(self, recipe: Recipe) -> str:
        if not recipe.tokenizer.is_words or recipe.tokenizer.shared:
            return 'actions have a vocabulary of their own; set tokenizer.kind = "words" and tokenizer.shared = false'
        if recipe.train.metric not in self.metrics:
            metric, known = recipe.train.metric, ", ".join(self.metrics)
            return f'train.metric = "{metric}" does not measure routes; it is one of {known}'
        if recipe.predict.replace_unknown:
            return "no word of an instruction is an action; set predict.replace_unknown = false"
        if recipe.data.stream:
            return "routes are read as a whole; set data.stream = false"
        return ""

    def build_split(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, augment: bool = False
    ) -> CorpusSplit:
        from saccade_worlds.navigation.route_store import RouteSplit

        writer: Any = recipe.writer  # an ActionWriter: the recipe was checked
        return RouteSplit(corpus, share, heldout, writer=writer, augment=augment)

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        from saccade.data.tokenization.encode import EncodingSettings
        from saccade_worlds.navigation.route_store import ROUTE_SIDES

        return EncodingSettings(recipe.data.max_length, sides=ROUTE_SIDES)

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        from saccade_worlds.navigation.route_store import iter_route_texts

        return [instruction for instruction, _ in iter_route_texts(pairs)]

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade_worlds.navigation.predictor import Walker

        return Walker

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        from saccade_worlds.navigation.scores import read_route_pairs

        return read_route_pairs(corpora, synthetic_count=synthetic_count)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade_worlds.navigation.scores import evaluate_routes

        pairs = self.read_pairs(predictor.recipe, corpora, synthetic_count=options.synthetic_count)
        return evaluate_routes(predictor, pairs, decoding=options.decoding)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        """The outputs that are compared are the final positions of the routes."""
        from dataclasses import replace

        from saccade_worlds.navigation.scores import evaluate_routes, list_end_poses

        found = evaluate_routes(predictor, pairs, decoding=decoding)
        routes = [(source, actions) for (source, _), actions in zip(pairs, found.hypotheses, strict=True)]
        return replace(found, hypotheses=list_end_poses(routes))

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings

        return ComparisonSettings(table_metrics=("success",), outputs="route", medium="route", counted="routes")

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        from saccade_worlds.navigation.scores import list_end_poses

        return list_end_poses(pairs)

    def get_scoring(self, recipe: Recipe, labels: Labels | None) -> Scoring:
        from saccade.train.validate import Scoring, get_greedy_decoding
        from saccade_worlds.navigation.scores import ROUTE_METRICS, route_scores

        return Scoring(ROUTE_METRICS, get_greedy_decoding(recipe), route_scores)

    def get_forced_target(self, target: str) -> str | None:
        return None

    def get_input_title(self, source: str) -> str:
        return str(json.loads(source)["instruction"])

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        return f"view {folder} {shlex.quote(source)}"


NAVIGATE: Task = Navigate()
