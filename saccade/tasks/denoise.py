"""Denoising by span corruption (T5, Raffel et al. 2020): write the spans that sentinels replaced in a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saccade.config.task import Task
from saccade.tasks import DocumentTask, mask_word
from saccade.tasks.translate import TEXT_TO_TEXT

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result

SPANS = 'task = "denoise" writes masked spans'


class Denoise(DocumentTask):
    name = "denoise"
    transfer_group = TEXT_TO_TEXT

    def find_mismatch(self, recipe: Recipe) -> str:
        if recipe.writer.is_custom or recipe.writer.tokens is not None:
            return super().find_mismatch(recipe)
        return f'{SPANS}, got writer.kind = "{recipe.writer.kind}"; set writer.kind = "tokens"'

    def find_setting_conflict(self, recipe: Recipe) -> str:
        tokenizer, metric = recipe.tokenizer, recipe.train.metric
        if any(objective.needs_pairs for objective in recipe.objectives):
            return f'{SPANS}, so that there are no pairs for the objective "reward"; take "next-token" or "r-drop"'
        if not tokenizer.shared:
            return f"{SPANS} of its input, so that there is one vocabulary; set tokenizer.shared = true"
        if tokenizer.is_learned and not 0 < tokenizer.sentinels < tokenizer.size:
            return (
                f"{SPANS}, each with a sentinel before it, of which there must be some, and fewer than tokenizer.size "
                f"= {tokenizer.size}, got tokenizer.sentinels = {tokenizer.sentinels}; set it to 100"
            )
        if metric != "loss":
            return f'{SPANS}, so that train.metric = "{metric}" has no references; set train.metric = "loss"'
        return ""

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        from saccade.data.batching.spans import corrupt_spans

        return corrupt_spans(store, recipe.data, tokenizers.target)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.restoring import Restorer

        return Restorer

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.data.sources.pairs import limit_embedded_examples
        from saccade.score.spans import measure_spans

        return measure_spans(predictor, limit_embedded_examples(corpora, options.synthetic_count))

    def get_target_ratio(self, recipe: Recipe) -> float:
        import numpy as np

        from saccade.data.batching.spans import compute_row_length, count_corrupted_tokens

        data = recipe.data
        row = compute_row_length(
            data.max_length, corruption_rate=data.corruption_rate, mean_span_length=data.mean_span_length
        )
        tokens, spans = (
            int(found[0])
            for found in count_corrupted_tokens(
                np.array([row]), corruption_rate=data.corruption_rate, mean_span_length=data.mean_span_length
            )
        )
        return (tokens + spans + 1) / (row - tokens + spans + 1)

    def make_example(self, text: str) -> tuple[str, str]:
        from saccade.data.tokenization.special_tokens import SENTINEL_TOKEN

        return mask_word(text, SENTINEL_TOKEN.format(0))


TASK: Task = Denoise()
