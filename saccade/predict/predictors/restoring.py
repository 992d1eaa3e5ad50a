"""A model that restores hidden spans, put to use: texts with sentinels in, sentinels and what they stand for out."""

from collections.abc import Sequence
from dataclasses import replace

from saccade.config.schema import Decoding
from saccade.data.batching.spans import sentinels_of
from saccade.data.tokenization.special_tokens import SENTINEL
from saccade.data.tokenization.tokenizers import Tokenizer
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.greedy import Found


class Restorer(Predictor):
    """An output ends where it would go on with a sentinel that the text does not have."""

    def _hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        others = set(sentinels_of(self.tokenizers.target)) - set(self.tokenizers.source.encode(source))
        end = next((place for place, number in enumerate(item.ids) if number in others), len(item.ids))
        if end < len(item.ids):
            looks = None if item.alignment is None else item.alignment[:end]
            item = replace(item, ids=item.ids[:end], alignment=looks)
        return super()._hypothesis(item, source, length, align=align)

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str], what: str, *, first: int = 1) -> list[list[int]]:
        """What is to be restored must have a sentinel somewhere."""
        rows = super()._encode(tokenizer, texts, what, first=first)
        if what == "line" and (whole := self._whole(texts)) < len(texts):
            raise SaccadeError(
                f"line {first + whole} has nothing to restore; put {SENTINEL.format(0)} where something is missing, "
                f"{SENTINEL.format(1)} at the next place, and so on"
            )
        return rows

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        return min(super()._fitting(texts, decoding), self._whole(texts))

    def _whole(self, texts: Sequence[str]) -> int:
        """How many texts stand before the first one that has no sentinel, but words."""
        sentinels = set(sentinels_of(self.tokenizers.source))
        rows = self.tokenizers.source.encode_all(texts)
        lacking = (text.strip() and not sentinels & set(row) for text, row in zip(texts, rows, strict=True))
        return next((index for index, found in enumerate(lacking) if found), len(texts))
