"""A reader of pictures or sound alone: files in, vectors out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saccade.data.tokenization.tokenizers import Tokenizer
from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder, Pooling
from saccade.predict.predictors.media import AT_ONCE, OfMedia


class MediaEncoder(OfMedia, Encoder):
    """Files in; the states of the reader, or one vector for each file, are what is wanted."""

    supports_likelihood = False

    def embed(self, texts: Sequence[str], *, pool: Pooling = "mean", normalise: bool = True) -> np.ndarray:
        """A row for each file, some files at a time."""
        if isinstance(texts, str):
            raise SaccadeError(f"expected a list of files, got the single text {texts[:20]!r}; put it in a list")
        parts = [texts[begin : begin + AT_ONCE] for begin in range(0, max(len(texts), 1), AT_ONCE)]
        return np.concatenate([super(MediaEncoder, self).embed(part, pool=pool, normalise=normalise) for part in parts])

    def check_writes(self) -> None:
        medium = self.reader.medium
        raise SaccadeError(
            f"this model writes nothing about a {medium}; ask for vectors of {medium}s (--embed mean, or embed in "
            "Python), or train with init=RUN what does"
        )

    # ---- inside

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str], what: str, *, first: int = 1) -> list[Any]:
        """Files are decoded, and nothing is tokenised."""
        return self._read(texts, what, first=first)
