"""Language modelling: predict each token of a document from those before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from saccade.config.task import Task
from saccade.tasks import DocumentTask

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.language import LanguageModel
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result
    from saccade.train.session import Session

PROMPT_WORDS = 3  # of an example prompt


class LanguageModeling(DocumentTask):
    name = "language-model"
    small_recipe = "shakespeare"
    is_language_model = True
    supports_fusion = False
    has_reader = False

    def find_setting_conflict(self, recipe: Recipe) -> str:
        """Without a reader there is nothing to share with, to freeze or to attend to."""
        writer, without = recipe.writer, 'there is no reader (reader.kind = "none")'
        paired = [objective.kind for objective in recipe.objectives if objective.needs_pairs]
        if writer.is_non_autoregressive:
            return f'{without}, so that no length is known to a writer of kind "fill"; set writer.kind = "tokens"'
        stack = None if writer.tokens is None else writer.tokens.stack
        if stack is not None and not (stack.transformer or stack.is_custom):
            return f'{without}, which a {stack.kind} stack needs; set writer.stack.kind = "transformer"'
        if tie := writer.shared_tie:
            return f'{without}, so that writer.tie = "{tie}" has no reader to share with; set writer.tie = "output"'
        if paired:
            return (
                f'{without}, so that there are no pairs for the objective "{paired[0]}"; take "next-token" or "r-drop"'
            )
        if not recipe.tokenizer.shared:
            return f"{without}, so that there is one vocabulary; set tokenizer.shared = true"
        if "reader" in recipe.freeze:
            return f"{without}, so that there is no reader to freeze; leave it out"
        metric = recipe.train.metric
        if metric != "loss":
            return f'{without}, so that train.metric = "{metric}" has no references; set train.metric = "loss"'
        return ""

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        from saccade.data.batching.chunks import DocumentChunks

        return DocumentChunks(store, length=recipe.data.max_length, cross_documents=recipe.data.cross_document)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.language import LanguageModel

        return LanguageModel

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.language_metrics import check_language_metrics, evaluate_language_metrics
        from saccade.score.pairs import iterate_documents
        from saccade.score.perplexity import measure_perplexity, refuse_metrics

        model = cast("LanguageModel", predictor)
        if options.lowercase:
            refuse_metrics()
        check_language_metrics(options.metrics or (), model.recipe.kinds)
        documents = iterate_documents(model.recipe, corpora, synthetic_count=options.synthetic_count)
        if options.metrics is not None:
            return evaluate_language_metrics(model, list(documents), options.metrics, decoding=options.decoding)
        return measure_perplexity(model, documents, keep_token_scores=options.keep_token_scores)

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        from saccade.train.validate import compute_validation_loss

        values, tokens = compute_validation_loss(session)
        if "nll" in values:
            values["bits_per_byte"] = values["nll"] * tokens / math.log(2) / session.valid.num_bytes
        return dict(values)

    def get_forced_target(self, target: str) -> str | None:
        return ""

    def make_example(self, text: str) -> tuple[str, str]:
        """The beginning of a document, and its continuation."""
        words = text.split()
        if len(words) <= PROMPT_WORDS:  # characters, such as molecules
            half = (len(text) + 1) // 2
            return text[:half], text[half:]
        return " ".join(words[:PROMPT_WORDS]), " ".join(words[PROMPT_WORDS:])


TASK: Task = LanguageModeling()
