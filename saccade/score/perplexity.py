"""Loss, perplexity and bits per byte of language models and encoders."""

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.language import CorpusLikelihood, LanguageModel, ScoredText
from saccade.score.result import ScoreTable

MAX_EXPONENT = 700.0  # nats; exp() of more overflows


@dataclass(frozen=True)
class TextEvaluation(ScoreTable):
    """Loss and perplexity on some documents.

    An encoder scores each token given all others, which is no probability of the text: `pseudo`.
    """

    truncated_lengths: ClassVar[tuple[int, ...]] = ()
    likelihood: CorpusLikelihood
    window_length: int  # tokens per window
    seconds: float
    pseudo: bool = False
    hypotheses: tuple[str, ...] = ()  # if kept: tokens of each document and their log-probabilities, as JSON

    @property
    def loss(self) -> float:
        """Nats per token, END of each document included."""
        return self.likelihood.nll / self.likelihood.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, MAX_EXPONENT))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers, because it is normalized by bytes instead of tokens."""
        return self.likelihood.nll / math.log(2) / self.likelihood.bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        if self.pseudo:
            scores = {"loss": self.loss, "pseudo_perplexity": self.perplexity}
        else:
            scores = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return {**self.likelihood._asdict(), "length": self.window_length, "scores": scores, "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and description of each score, for a table."""
        window = f"windows of {self.window_length}, not overlapping"
        if self.pseudo:
            return [
                ("loss", f"{self.loss:.4f}", f"nats per token, each of them hidden alone, {window}"),
                ("pseudo-perplexity", f"{self.perplexity:.4f}", "exp(loss)"),
            ]
        return [
            ("loss", f"{self.loss:.4f}", f"nats per token, {window}"),
            ("perplexity", f"{self.perplexity:.4f}", "exp(loss)"),
            ("bits per byte", f"{self.bits_per_byte:.4f}", "of UTF-8"),
        ]

    def summary(self) -> str:
        nll = self.likelihood
        unknown = f", of which {nll.unknown:,} are unknown" if nll.unknown else ""
        return (
            f"{nll.documents:,} document{'s' if nll.documents != 1 else ''}, {nll.tokens:,} tokens{unknown}, "
            f"{nll.bytes:,} bytes in {self.seconds:.1f} s: {nll.tokens / self.seconds:,.0f} tokens/s"
        )


def measure_perplexity(
    model: LanguageModel | Encoder, documents: Iterable[str], *, keep_token_scores: bool = False
) -> TextEvaluation:
    """Score every token once, given those before it in its window, or all others for an encoder.

    Later windows begin with the last token of the one before. With `keep_token_scores`, all log-probabilities are kept.
    """
    begin, token_scores = time.perf_counter(), list[str]()
    on_document = (lambda item: token_scores.append(to_json_line(item))) if keep_token_scores else None
    likelihood = model.compute_likelihood((text for text in documents if text.strip()), on_document=on_document)
    if not likelihood.documents:
        raise SaccadeError("there is nothing to evaluate: no text was given; is the file empty?")
    pseudo, seconds = model.uses_pseudo_likelihood, time.perf_counter() - begin
    return TextEvaluation(likelihood, model.recipe.data.max_length, seconds, pseudo, tuple(token_scores))


def refuse_metrics() -> None:
    """Refuse --metrics and --lowercase, which do not apply to the probability of a text."""
    raise SaccadeError(
        "such a model is measured by the probability of a text, without --metrics and --lowercase; "
        "leave them out, or give tasks with --template"
    )


def to_json_line(item: ScoredText) -> str:
    """Return a document's text, tokens, log-probabilities and perplexity as one line of JSON."""
    loss = -sum(item.log_probs) / len(item.log_probs)
    return json.dumps({**item._asdict(), "perplexity": math.exp(min(loss, MAX_EXPONENT))}, ensure_ascii=False)
