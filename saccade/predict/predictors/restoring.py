"""Inference with a span-corruption model (T5): text with sentinels in, sentinels with the missing spans out."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from saccade.data.batching.spans import get_sentinels
from saccade.data.tokenization.special_tokens import SENTINEL_TOKEN
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import PredictorParts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.greedy import SearchHypothesis


class SentinelCodec(TextCodec):
    """Reads text with sentinels in place of missing spans (T5)."""

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """Encode texts; a line to restore must contain a sentinel."""
        rows = super().encode(texts, what, numbers=numbers)
        sentinels = set(get_sentinels(self.tokenizers.source))
        for number, text, row in zip(numbers or range(1, len(texts) + 1), texts, rows, strict=True):
            if what == "line" and text.strip() and not sentinels & set(row):
                raise SaccadeError(
                    f"line {number} has nothing to restore; put {SENTINEL_TOKEN.format(0)} where something is missing, "
                    f"{SENTINEL_TOKEN.format(1)} at the next place, and so on"
                )
        return rows

    def make_hypothesis(self, item: SearchHypothesis, source: str, length: int, *, align: bool) -> Hypothesis:
        """Truncate an output before the first sentinel that its source does not contain."""
        others = set(get_sentinels(self.tokenizers.target)) - set(self.tokenizers.source.encode(source))
        end = next((place for place, number in enumerate(item.ids) if number in others), len(item.ids))
        if end < len(item.ids):
            alignment = None if item.alignment is None else item.alignment[:end]
            item = replace(item, ids=item.ids[:end], alignment=alignment)
        return super().make_hypothesis(item, source, length, align=align)


Restorer = partial(Predictor, parts=PredictorParts(SentinelCodec, SearchDecoder, TextPresenter))
