"""A trained model of tokens in any order put to use: both sides of a masked token, or all before each token."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.schema import Permuted
from saccade.data.batching.batch import Batch
from saccade.model.readers.tokens import parts
from saccade.predict.predictors.encoder import Encoder, FillPresenter, MaskDecoder, MaskedTextCodec
from saccade.predict.predictors.parts import Parts


class PermutedDecoder(MaskDecoder):
    """Fills in masked tokens (XLNet), and measures each token given those before it."""

    hides = False

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Token ids without END, which the model never learned to predict."""
        return [row[:-1] for row in self.tokenizers.source.encode_all(texts)]

    def _measure(self, ids: list[int]) -> list[float]:
        """The log-probability of each token given those before it, in its window and in the memory of another."""
        memory = max((table.memory for table in self.recipe.objectives if isinstance(table, Permuted)), default=0)
        row, values, past = torch.tensor([ids], device=self.loaded.device), list[float](), ()
        segments, step = self._segments(row), self.recipe.data.max_length
        with self.loaded.inference():
            for begin in range(0, len(ids), step):
                part = row[:, begin : begin + step]
                before = past[0].shape[1] if past else 0
                order = torch.arange(part.shape[1], device=self.loaded.device)[None]
                found = self.loaded.model.writer(
                    self.reader, part, order, at=order, keep=torch.ones_like(part, dtype=torch.bool),
                    segments=None if segments is None else segments[:, begin - before : begin + step],
                    memory=past, remember=memory,
                )  # fmt: skip
                past = found.memory
                logs = self._logits(found.query[0]).log_softmax(-1)
                values += logs.gather(1, part[0][:, None])[:, 0].tolist()
        return values

    def _masked_states(self, batch: Batch, masked: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """The query stream at masked positions, which no other position sees; each sees all but these."""
        tokens = batch["source"]
        when = torch.where(masked, 0, -1)
        at = torch.arange(when.shape[1], device=self.loaded.device).expand_as(when)
        found = self.loaded.model.writer(
            self.reader, tokens.ids, when, at=at, keep=tokens.mask, segments=self._segments(tokens.ids)
        )
        return found.query[masked]

    def _logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.loaded.model.writer.head(states).float()

    def _segments(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"] | None:
        return parts(ids, None) if self.loaded.single.reader.relates else None


PermutedEncoder = partial(Encoder, parts=Parts(MaskedTextCodec, PermutedDecoder, FillPresenter))
