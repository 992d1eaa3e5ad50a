"""Span corruption (T5): learn from documents to write the spans that were replaced by sentinels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saccade.config.task import Task
from saccade.tasks import DocumentTask, hide_word
from saccade.tasks.translate import TEXT_TO_TEXT

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result

SPANS = 'task = "restore" writes hidden spans'


class Restore(DocumentTask):
    name = "restore"
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
            return f"{SPANS} of what is read, so that there is one vocabulary; set tokenizer.shared = true"
        if tokenizer.is_learned and not 0 < tokenizer.sentinels < tokenizer.size:
            return (
                f"{SPANS}, each with a sentinel before it, of which there must be some, and fewer than tokenizer.size "
                f"= {tokenizer.size}, got tokenizer.sentinels = {tokenizer.sentinels}; set it to 100"
            )
        if metric != "loss":
            return f'{SPANS}, so that train.metric = "{metric}" has no references; set train.metric = "loss"'
        return ""

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        from saccade.data.batching.spans import hide_spans

        return hide_spans(store, recipe.data, tokenizers.target)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.restoring import Restorer

        return Restorer

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.data.sources.pairs import taken
        from saccade.score.spans import measure_spans

        return measure_spans(predictor, taken(corpora, options.made))

    def get_target_ratio(self, recipe: Recipe) -> float:
        import numpy as np

        from saccade.data.batching.spans import hidden_in, row_length

        data = recipe.data
        row = row_length(data.max_length, share=data.hidden, mean=data.span)
        tokens, spans = (int(found[0]) for found in hidden_in(np.array([row]), share=data.hidden, mean=data.span))
        return (tokens + spans + 1) / (row - tokens + spans + 1)

    def hide_part(self, text: str) -> tuple[str, str]:
        from saccade.data.tokenization.special_tokens import SENTINEL

        return hide_word(text, SENTINEL.format(0))


TASK: Task = Restore()
