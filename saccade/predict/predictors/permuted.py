"""A trained model of tokens in any order put to use: both sides of a hidden word, or all before each word."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.schema import Permuted
from saccade.data.batching.batch import Batch
from saccade.model.readers.tokens import parts
from saccade.predict.predictors.encoder import Encoder


class PermutedEncoder(Encoder):
    """Texts with [MASK] in them in, the same with words in its place out; or vectors; or how likely a text is."""

    hides = False  # the probability of a text is that of its tokens one after the other

    # ---- inside

    def _hidden_states(self, batch: Batch, hidden: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """The queries at hidden places, which nobody sees: each sees all others but those."""
        tokens = batch["source"]
        when = torch.where(hidden, 0, -1)
        at = torch.arange(when.shape[1], device=self.device).expand_as(when)
        found = self.model.writer(
            self.model.reader, tokens.ids, when, at=at, keep=tokens.mask, segments=self._segments(tokens.ids)
        )
        return found.query[hidden]

    def _logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.model.writer.head(states).float()

    def _texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts without their END, for which the model was never asked."""
        return [row[:-1] for row in self.tokenizers.source.encode_all(texts)]

    def _alone(self, ids: list[int]) -> list[float]:
        """The log-probability of each token given those before it, in its window and in the memory of another."""
        memory = max((table.memory for table in self.recipe.objectives if isinstance(table, Permuted)), default=0)
        row, values, past = torch.tensor([ids], device=self.device), list[float](), ()
        segments, step = self._segments(row), self.recipe.data.max_length
        with self._inference():
            for begin in range(0, len(ids), step):
                part = row[:, begin : begin + step]
                before = past[0].shape[1] if past else 0
                order = torch.arange(part.shape[1], device=self.device)[None]
                found = self.model.writer(
                    self.model.reader, part, order, at=order, keep=torch.ones_like(part, dtype=torch.bool),
                    segments=None if segments is None else segments[:, begin - before : begin + step],
                    memory=past, remember=memory,
                )  # fmt: skip
                past = found.memory
                logs = self._logits(found.query[0]).log_softmax(-1)
                values += logs.gather(1, part[0][:, None])[:, 0].tolist()
        return values

    def _segments(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"] | None:
        reader: Any = self.model.reader
        return parts(ids, None) if reader.relates else None
