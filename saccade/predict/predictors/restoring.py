"""A model that restores hidden spans, put to use: texts with sentinels in, sentinels and what they stand for out."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from saccade.data.batching.spans import sentinels_of
from saccade.data.tokenization.special_tokens import SENTINEL
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import Parts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.greedy import Found


class SentinelCodec(TextCodec):
    """Reads text with sentinels where spans are missing (T5)."""

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """A line to be restored must have a sentinel somewhere."""
        rows = super().encode(texts, what, numbers=numbers)
        sentinels = set(sentinels_of(self.tokenizers.source))
        for number, text, row in zip(numbers or range(1, len(texts) + 1), texts, rows, strict=True):
            if what == "line" and text.strip() and not sentinels & set(row):
                raise SaccadeError(
                    f"line {number} has nothing to restore; put {SENTINEL.format(0)} where something is missing, "
                    f"{SENTINEL.format(1)} at the next place, and so on"
                )
        return rows

    def make_hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        """An output ends where it would go on with a sentinel that the text does not have."""
        others = set(sentinels_of(self.tokenizers.target)) - set(self.tokenizers.source.encode(source))
        end = next((place for place, number in enumerate(item.ids) if number in others), len(item.ids))
        if end < len(item.ids):
            looks = None if item.alignment is None else item.alignment[:end]
            item = replace(item, ids=item.ids[:end], alignment=looks)
        return super().make_hypothesis(item, source, length, align=align)


Restorer = partial(Predictor, parts=Parts(SentinelCodec, SearchDecoder, TextPresenter))
