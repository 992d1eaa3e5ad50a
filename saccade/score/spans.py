"""Loss of a span-corruption model (T5) on documents."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from saccade.config.schema import Corpus
from saccade.data.batching.batches import iter_validation_batches
from saccade.data.batching.spans import CorruptedSpans
from saccade.data.prepare import prepare
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.score.result import ScoreTable


@dataclass(frozen=True)
class SpanEvaluation(ScoreTable):
    """Loss on masked spans of documents; `hypotheses` is empty, because nothing is generated."""

    truncated_lengths: ClassVar[tuple[int, ...]] = ()
    loss: float  # nats per token of the spans, sentinels and END included
    tokens: int
    pieces: int  # number of rows
    seconds: float
    hypotheses: tuple[str, ...] = ()

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        values = {name: value for name, value in asdict(self).items() if name not in ("loss", "hypotheses")}
        return {**values, "scores": {"loss": self.loss, "perplexity": self.perplexity}}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and description of each score, for a table."""
        return [
            ("loss", f"{self.loss:.4f}", "nats per token of hidden spans, sentinels among them"),
            ("perplexity", f"{self.perplexity:.4f}", "exp(loss)"),
        ]

    def summary(self) -> str:
        return f"{self.pieces:,} rows, {self.tokens:,} tokens to restore in {self.seconds:.1f} s"


def measure_spans(model: Predictor, corpora: Sequence[Corpus]) -> SpanEvaluation:
    """Split documents into rows and mask them as validation does: always the same spans."""
    begin, recipe = time.perf_counter(), model.recipe
    data = recipe.data.model_copy(update={"train": tuple(corpora), "valid": (), "stream": False})
    rows = prepare(recipe.model_copy(update={"data": data}), tokenizers=model.tokenizers).train
    assert isinstance(rows, CorruptedSpans), "nothing is streamed"
    total, tokens = 0.0, 0
    with model.inference():
        for batch in iter_validation_batches(rows, batch_tokens=recipe.predict.batch_tokens):
            total -= float(compute_token_log_probs(model.model, batch.to(model.device)).double().sum())
            tokens += batch.counts["target"]
    return SpanEvaluation(total / tokens, tokens, len(rows), time.perf_counter() - begin)
