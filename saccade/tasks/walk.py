"""Follow instructions in a known map: learn from routes to write actions, each carried out at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.sources.corpus import Part
    from saccade.data.tokenization.encode import Settings
    from saccade.data.tokenization.labels import Labels
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.validate import Scoring


class Walk(BaseTask):
    name = "walk"
    supports_fusion = False
    metrics = ("loss", "success", "accuracy")

    def find_mismatch(self, recipe: Recipe) -> str:
        reader, writer = recipe.reader, recipe.writer
        if reader.medium:
            return super().find_mismatch(recipe)
        if writer.actions is None:
            return f'task = "walk" goes with writer.kind = "actions", got "{writer.kind}"; change one of them'
        if not (reader.text or reader.is_custom):
            return f'task = "walk" reads instructions; set reader.kind = "tokens", got "{reader.kind}"'
        return ""

    def find_setting_conflict(self, recipe: Recipe) -> str:
        if not recipe.tokenizer.is_words or recipe.tokenizer.shared:
            return 'actions are words of their own; set tokenizer.kind = "words" and tokenizer.shared = false'
        if recipe.train.metric not in self.metrics:
            return f'train.metric = "{recipe.train.metric}" is not of routes; it is one of {", ".join(self.metrics)}'
        if recipe.predict.replace_unknown:
            return "no word of an instruction is an action; set predict.replace_unknown = false"
        if recipe.data.stream:
            return "routes are read as a whole; set data.stream = false"
        return ""

    def build_part(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, varied: bool = False
    ) -> Part:
        from dataclasses import replace

        part = super().build_part(recipe, corpus, share=share, heldout=heldout, varied=varied)
        return replace(part, walks=recipe.writer.actions)

    def get_encoding(self, recipe: Recipe) -> Settings:
        from saccade.data.tokenization.encode import Settings
        from saccade.data.worlds.route_store import SIDES

        return Settings(recipe.data.max_length, sides=SIDES)

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        from saccade.data.worlds.route_store import instructions

        return [instruction for instruction, _ in instructions(pairs)]

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.walking import Walker

        return Walker

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
        from saccade.score.routes import route_pairs

        return route_pairs(corpora, made=made)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.routes import evaluate_routes

        pairs = self.read_pairs(predictor.recipe, corpora, made=options.made)
        return evaluate_routes(predictor, pairs, decoding=options.decoding)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        """The outputs that are compared are the places where the actions end."""
        from dataclasses import replace

        from saccade.score.routes import ends_of, evaluate_routes

        found = evaluate_routes(predictor, pairs, decoding=decoding)
        walked = [(source, actions) for (source, _), actions in zip(pairs, found.hypotheses, strict=True)]
        return replace(found, hypotheses=ends_of(walked))

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings

        return ComparisonSettings(shown=("success",), medium="route", counted="routes")

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        from saccade.score.routes import ends_of

        return ends_of(pairs)

    def get_scoring(self, recipe: Recipe, labels: Labels | None) -> Scoring:
        from saccade.score.routes import ROUTES, route_scores
        from saccade.train.validate import Scoring, greedy

        return Scoring(ROUTES, greedy(recipe), route_scores)

    def get_forced_target(self, target: str) -> str | None:
        return None

    def get_input_title(self, source: str) -> str:
        return str(json.loads(source)["instruction"])

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        return f"view {folder} {shlex.quote(source)}"


TASK: Task = Walk()
