"""Text for images or audio: captioning, speech and text recognition, answers to questions about pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from saccade.config.metric import CAPTIONS, TEXT
from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask
from saccade.tasks._media import add_question, get_folder_usage, get_questions

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult


class MediaToText(BaseTask):
    """Text for an image or a recording; with a user's own reader, which may read anything, text for text."""

    name = "media-to-text"
    reads_media = True

    def find_mismatch(self, recipe: Recipe) -> str:
        reader, writer = recipe.reader, recipe.writer
        if not (reader.medium or reader.is_custom):
            return (
                f'task = "media-to-text" reads pictures or sound, got reader.kind = "{reader.kind}"; set '
                'reader.kind = "patches" or "grid", or task = "translate"'
            )
        if reader.medium and not (writer.tokens or writer.is_custom):
            what = f"a reader of {reader.medium_plural}"
            return f'{what} goes with writer.kind = "tokens" here, got "{writer.kind}"; change it'
        return super().find_mismatch(recipe)

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        return add_question(super().get_encoding(recipe), recipe)

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        return get_questions(pairs, recipe.reader) if recipe.reader.medium else super().get_source_texts(recipe, pairs)

    def get_data_usage(self, recipe: Recipe) -> str:
        return get_folder_usage() if recipe.reader.medium else super().get_data_usage(recipe)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.media import Describer
        from saccade.predict.predictors.questions import QuestionWriter

        if recipe.reader.has_question:
            return QuestionWriter
        return Describer if recipe.reader.medium else super().get_predictor(recipe)

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        from saccade.score.media import read_media_pairs

        if (media := recipe.reader.media) is None:
            return super().read_pairs(recipe, corpora, synthetic_count=synthetic_count)
        return read_media_pairs(corpora, media, target_column="text", synthetic_count=synthetic_count)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.media import evaluate_media

        if not predictor.medium:
            return super().evaluate(predictor, corpora, options)
        return evaluate_media(
            predictor, self.read_pairs(predictor.recipe, corpora, synthetic_count=options.synthetic_count), options
        )

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.score.media import CAPTION_COMPARISON_METRIC, evaluate_captions

        if CAPTION_COMPARISON_METRIC not in metrics:
            return super().evaluate_pairs(predictor, pairs, metrics=metrics, decoding=decoding)
        return evaluate_captions(predictor, pairs, metrics, decoding=decoding)

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings
        from saccade.score.media import CAPTION_COMPARISON_METRIC, get_comparison_metrics

        if (media := recipe.reader.media) is None:
            return super().get_comparison(recipe)
        metrics = get_comparison_metrics(recipe, media)
        outputs = CAPTIONS if CAPTION_COMPARISON_METRIC in metrics else TEXT
        return ComparisonSettings(metrics, outputs, medium=media.medium, reads_files=True, counted=media.unit)

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        from saccade.score.media import CAPTION_COMPARISON_METRIC, get_comparison_metrics, group_by_file

        media = recipe.reader.media
        if media is None or CAPTION_COMPARISON_METRIC not in get_comparison_metrics(recipe, media):
            return super().get_references(recipe, pairs)
        return [*group_by_file(pairs).values()]

    def adopts_writer(self, old: Recipe) -> bool:
        return old.task == self


TASK: Task = MediaToText()
