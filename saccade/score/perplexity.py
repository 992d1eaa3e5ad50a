"""How well a language model or an encoder predicts text: loss, perplexity, bits per byte."""

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.language import Fit, LanguageModel, ScoredText

MOST = 700.0  # nats, of which the exponential is still a number


@dataclass(frozen=True)
class TextEvaluation:
    """What was measured of some documents.

    Of an encoder each token was hidden alone, all others given: that is no probability of the text, hence `pseudo`.
    """

    cut: ClassVar[tuple[int, ...]] = ()
    fit: Fit
    length: int  # tokens of a window
    seconds: float
    pseudo: bool = False
    hypotheses: tuple[str, ...] = ()  # where they are kept: for each document its tokens and their values, as JSON

    @property
    def loss(self) -> float:
        """Nats for each token, END of each document among them."""
        return self.fit.nll / self.fit.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, MOST))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers: the same bytes must be told, however they are cut."""
        return self.fit.nll / math.log(2) / self.fit.bytes

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.pseudo:
            scores = {"loss": self.loss, "pseudo_perplexity": self.perplexity}
        else:
            scores = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return {**self.fit._asdict(), "length": self.length, "scores": scores, "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        window = f"windows of {self.length}, not overlapping"
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
        fit = self.fit
        unknown = f", of which {fit.unknown:,} are unknown" if fit.unknown else ""
        return (
            f"{fit.documents:,} document{'s' if fit.documents != 1 else ''}, {fit.tokens:,} tokens{unknown}, "
            f"{fit.bytes:,} bytes in {self.seconds:.1f} s: {fit.tokens / self.seconds:,.0f} tokens/s"
        )


def measure(model: LanguageModel | Encoder, documents: Iterable[str], *, keep: bool = False) -> TextEvaluation:
    """Every token once, given those before it in its window; a later window begins with the last token before it.

    Of an encoder, given all others of its window. With `keep`, the values of all tokens are kept.
    """
    begin, kept = time.perf_counter(), list[str]()
    each = (lambda item: kept.append(as_json(item))) if keep else None
    fit = model.fit((text for text in documents if text.strip()), each=each)
    if not fit.documents:
        raise SaccadeError("there is nothing to evaluate: no text was given; is the file empty?")
    pseudo, seconds = model.hides, time.perf_counter() - begin
    return TextEvaluation(fit, model.recipe.data.max_length, seconds, pseudo, tuple(kept))


def refuse_metrics() -> None:
    """A probability of a text has no words and no case."""
    raise SaccadeError(
        "such a model is measured by the probability of a text, so that --metrics and --lowercase say "
        "nothing; leave them out, or give tasks with --template"
    )


def as_json(item: ScoredText) -> str:
    """One line: the text, its tokens, the log-probability of each, and the perplexity that follows."""
    loss = -sum(item.log_probs) / len(item.log_probs)
    return json.dumps({**item._asdict(), "perplexity": math.exp(min(loss, MOST))}, ensure_ascii=False)
