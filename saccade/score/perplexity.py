"""How well a language model predicts text: loss, perplexity, bits per byte."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from saccade.errors import SaccadeError
from saccade.predict.language import Fit, LanguageModel


@dataclass(frozen=True)
class TextEvaluation:
    """What was measured of some documents; `hypotheses` has nothing, as nothing was written."""

    fit: Fit
    length: int  # tokens of a window
    seconds: float
    hypotheses: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """Nats for each token, END of each document among them."""
        return self.fit.nll / self.fit.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers: the same bytes must be told, however they are cut."""
        return self.fit.nll / math.log(2) / self.fit.bytes

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        scores = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return {**self.fit._asdict(), "length": self.length, "scores": scores, "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        window = f"windows of {self.length}, not overlapping"
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


def measure(model: LanguageModel, documents: Iterable[str]) -> TextEvaluation:
    """Every token once, given those before it in its window; a later window begins with the last token before it."""
    begin = time.perf_counter()
    fit = model.fit(text for text in documents if text.strip())
    if not fit.documents:
        raise SaccadeError("there is nothing to evaluate: no text was given; is the file empty?")
    return TextEvaluation(fit, model.recipe.data.max_length, time.perf_counter() - begin)
