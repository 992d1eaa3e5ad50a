"""Language modelling: learn from documents to predict each token from those before it."""

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

PROMPT_WORDS = 3  # of an example that a model continues


class Write(DocumentTask):
    name = "write"
    is_language_model = True
    supports_fusion = False
    reads = False

    def find_setting_conflict(self, recipe: Recipe) -> str:
        """There is no reader to share with, to freeze, or whose memory could be attended to."""
        writer, without = recipe.writer, 'nothing is read (reader.kind = "none")'
        paired = [objective.kind for objective in recipe.objectives if objective.needs_pairs]
        if writer.is_filling:
            return f'{without}, so that no length is known to a writer of kind "fill"; set writer.kind = "tokens"'
        stack = None if writer.tokens is None else writer.tokens.stack
        if stack is not None and not (stack.transformer or stack.is_custom):
            return f'{without}, and a {stack.kind} stack writes about something; set writer.stack.kind = "transformer"'
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
        from saccade.data.batching.pieces import Pieces

        return Pieces(store, length=recipe.data.max_length, cross=recipe.data.cross)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.language import LanguageModel

        return LanguageModel

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.pairs import documents_of
        from saccade.score.perplexity import measure, refuse_metrics
        from saccade.score.written import check_written, evaluate_written

        model = cast("LanguageModel", predictor)
        if options.lowercase:
            refuse_metrics()
        check_written(options.metrics or ())
        documents = documents_of(model.recipe, corpora, made=options.made)
        if options.metrics is not None:
            return evaluate_written(model, list(documents), options.metrics, decoding=options.decoding)
        return measure(model, documents, keep=options.keep)

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        from saccade.train.validate import measure_loss

        values, tokens = measure_loss(session)
        if "nll" in values:
            values["bits_per_byte"] = values["nll"] * tokens / math.log(2) / session.valid.bytes
        return dict(values)

    def get_forced_target(self, target: str) -> str | None:
        return ""

    def hide_part(self, text: str) -> tuple[str, str]:
        """The beginning of a document, and how it continues."""
        words = text.split()
        if len(words) <= PROMPT_WORDS:  # letters, such as molecules
            half = (len(text) + 1) // 2
            return text[:half], text[half:]
        return " ".join(words[:PROMPT_WORDS]), " ".join(words[PROMPT_WORDS:])


TASK: Task = Write()
