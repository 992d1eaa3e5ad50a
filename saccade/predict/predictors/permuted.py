"""Inference with XLNet: fill in masked tokens from both sides, or score each token given those before it."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.schema import Permuted
from saccade.data.batching.batch import Batch
from saccade.model.readers.tokens import get_segment_ids
from saccade.predict.predictors.encoder import Encoder, FillPresenter, MaskDecoder, MaskedTextCodec
from saccade.predict.predictors.parts import PredictorParts


class PermutedDecoder(MaskDecoder):
    """Fills in masked tokens (XLNet), and scores each token given those before it."""

    uses_pseudo_likelihood = False

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Return token ids without END, which the model was not trained to predict."""
        return [row[:-1] for row in self.tokenizers.source.encode_all(texts)]

    def _compute_row_log_probs(self, ids: list[int]) -> list[float]:
        """Return the log-probability of each token given those before it in its window and in the cached memory."""
        memory = max(
            (table.memory_length for table in self.recipe.objectives if isinstance(table, Permuted)), default=0
        )
        row, values, past = torch.tensor([ids], device=self.loaded.device), list[float](), ()
        segments, step = self._segments(row), self.recipe.data.max_length
        with self.loaded.inference():
            for begin in range(0, len(ids), step):
                part = row[:, begin : begin + step]
                before = past[0].shape[1] if past else 0
                order = torch.arange(part.shape[1], device=self.loaded.device)[None]
                outputs = self.loaded.model.writer(
                    self.reader, part, order, at=order, keep=torch.ones_like(part, dtype=torch.bool),
                    segments=None if segments is None else segments[:, begin - before : begin + step],
                    memory=past, remember=memory,
                )  # fmt: skip
                past = outputs.memory
                log_probs = self._compute_logits(outputs.query[0]).log_softmax(-1)
                values += log_probs.gather(1, part[0][:, None])[:, 0].tolist()
        return values

    def _compute_masked_states(self, batch: Batch, masked: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """Return the query stream at masked positions; they see all other positions, but not each other."""
        tokens = batch["source"]
        order = torch.where(masked, 0, -1)
        positions = torch.arange(order.shape[1], device=self.loaded.device).expand_as(order)
        outputs = self.loaded.model.writer(
            self.reader, tokens.ids, order, at=positions, keep=tokens.mask, segments=self._segments(tokens.ids)
        )
        return outputs.query[masked]

    def _compute_logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.loaded.model.writer.head(states).float()

    def _segments(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"] | None:
        return get_segment_ids(ids, None) if self.loaded.single.reader.uses_segments else None


PermutedEncoder = partial(Encoder, parts=PredictorParts(MaskedTextCodec, PermutedDecoder, FillPresenter))
