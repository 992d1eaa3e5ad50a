"""Classification, regression and tagging: a class or a number for each input, or a tag for each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from saccade.config.metric import LOSS, find_metric, list_metrics, list_names
from saccade.config.task import Pairs, Task
from saccade.tasks import BaseTask
from saccade.tasks._media import add_question, get_folder_usage, get_questions

if TYPE_CHECKING:
    from saccade.config.metric import Score
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.sources.corpus import CorpusSplit
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.data.tokenization.labels import Labels
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.validate import Scoring


class Classify(BaseTask):
    name = "classify"
    page_settings: tuple[str, ...] | None = ()
    predicts_labels = True
    writes_stepwise = False
    supports_fusion = False
    reads_media = True
    writer_kinds = '"label", "number" or "tags"'

    def find_mismatch(self, recipe: Recipe) -> str:
        reader, writer = recipe.reader, recipe.writer
        if reader.medium and writer.label_kind != "label":
            what = f"a reader of {reader.medium_plural}"
            return f'{what} goes with writer.kind = "label" here, got "{writer.kind}"; change it'
        return super().find_mismatch(recipe)

    def supports_writer(self, recipe: Recipe) -> bool:
        return recipe.writer.is_label_head

    def find_setting_conflict(self, recipe: Recipe) -> str:
        metric, kinds, kind = recipe.train.metric, recipe.kinds, recipe.writer.label_kind
        if metric != LOSS.name and (recipe.writer.is_custom or find_metric(metric, kind, kinds) is None):
            known = (LOSS.name, *(() if recipe.writer.is_custom else list_names(kind, kinds)))
            return (
                f'train.metric = "{metric}" is not measured of a writer of kind "{recipe.writer.kind}"; '
                f"it is one of {', '.join(known)}"
            )
        if recipe.tokenizer.dropout:
            return "tokenizer.dropout is for pairs and documents; with labels set tokenizer.dropout = 0"
        if not recipe.tokenizer.shared:
            return "labels have no tokens, so that there is one vocabulary; set tokenizer.shared = true"
        return ""

    def build_split(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, augment: bool = False
    ) -> CorpusSplit:
        from dataclasses import replace

        part = super().build_split(recipe, corpus, share=share, heldout=heldout, augment=augment)
        return replace(part, label_kind=recipe.writer.label_kind)

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        from saccade.data.tokenization.encode import EncodingSettings

        settings = EncodingSettings(recipe.data.max_length, sides=("source", "label"), truncate=recipe.data.truncate)
        return add_question(settings, recipe)

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        return get_questions(pairs, recipe.reader) if recipe.reader.medium else super().get_source_texts(recipe, pairs)

    def get_data_usage(self, recipe: Recipe) -> str:
        return get_folder_usage() if recipe.reader.medium else super().get_data_usage(recipe)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.labels import Labeller
        from saccade.predict.predictors.media import MediaLabeller
        from saccade.predict.predictors.questions import QuestionAnswerer

        if recipe.reader.has_question:
            return QuestionAnswerer
        return MediaLabeller if recipe.reader.medium else Labeller

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        from saccade.score.media import read_media_pairs
        from saccade.score.pairs import read_labelled_pairs

        if (media := recipe.reader.media) is not None:
            return read_media_pairs(corpora, media, target_column="label", synthetic_count=synthetic_count)
        return read_labelled_pairs(corpora, kind=recipe.writer.label_kind, synthetic_count=synthetic_count)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        """Answers to questions are compared as texts; files that cannot be read are skipped."""
        from dataclasses import replace

        from saccade.score.labels import check_label_metrics, evaluate_labels
        from saccade.score.media import evaluate_media, filter_readable

        recipe, asks = predictor.recipe, predictor.recipe.reader.has_question
        if not asks:
            kind, names = recipe.writer.label_kind, options.metrics or ()
            check_label_metrics(kind, names, recipe.kinds, lowercase=options.lowercase)
        pairs = self.read_pairs(recipe, corpora, synthetic_count=options.synthetic_count)
        if asks:
            return evaluate_media(predictor, pairs, options)
        pairs, left_out = filter_readable([predictor], pairs) if predictor.medium else (pairs, ())
        return replace(evaluate_labels(predictor, pairs, metrics=options.metrics), left_out=left_out)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.score.labels import evaluate_labels

        return evaluate_labels(predictor, pairs)

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import ComparisonSettings

        kind, media = recipe.writer.label_kind, recipe.reader.media
        return ComparisonSettings(
            table_metrics=list_names(kind),
            outputs=kind,
            medium=recipe.reader.medium,
            reads_files=media is not None,
            counted="texts" if not media else media.unit,
        )

    def get_scoring(self, recipe: Recipe, labels: Labels | None) -> Scoring:
        from saccade.score.labels import label_scores
        from saccade.train.validate import Scoring

        assert labels is not None, "a model of this task has them"
        kind, kinds = labels.kind, recipe.kinds
        always = [found.name for found in list_metrics(kind, kinds) if found.is_validated]
        names = tuple(name for name in dict.fromkeys((*always, recipe.train.metric)) if name != LOSS.name)

        def score(texts: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
            return label_scores(kind, outputs, references, names, sources=texts, kinds=kinds)

        return Scoring(names, recipe.predict, score)

    def get_forced_target(self, target: str) -> str | None:
        return None

    def adopt_parts(self, recipe: Recipe, old: Recipe) -> dict[str, Any]:
        from saccade.train.transfer.adopt import adopt_for_labels

        return super().adopt_parts(recipe, old) if recipe.writer.is_custom else adopt_for_labels(recipe, old)


TASK: Task = Classify()
