"""The writer of permutation language modelling (XLNet, Yang et al. 2019): predicts tokens in any order."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.layers.attention.two_stream import Streams, build_permutation_mask, run_two_streams
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.labels import StatesHead


class PermutedWriter(StatesHead):
    """A learned initial query vector and a head over the vocabulary.

    Queries pass through the layers of the reader beside its content stream (two-stream self-attention).
    """

    queries_reader = True
    capabilities = Capabilities(packed_rows=True, linear_head=True)
    output_scale = 1.0

    def __init__(self, output: nn.Linear, *, dim: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.output = output

    def forward(
        self,
        reader: TokenReader,
        ids: Int[Tensor, "B T"],
        order: Int[Tensor, "B T"],
        *,
        at: Int[Tensor, "B M"],
        keep: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B K"] | None = None,
        memory: Sequence[Float[Tensor, "B L D"]] = (),
        remember: int = 0,
    ) -> Streams:
        """Both streams after the last layer, with queries at the positions `at`; `head` turns queries into logits.

        `order` is the factorization order (see `two_stream`), `keep` marks real tokens, and `segments` are the segment
        ids of memory and sequence, where the reader uses them. `memory` are states of an earlier chunk of the sequence
        (Transformer-XL); the last `remember` states of this one are returned for the next.
        """
        content, query = reader.embedding(ids), reader.embedding.dropout(self.query.expand(*at.shape, -1))
        allowed = build_permutation_mask(order) & keep[:, None]
        return run_two_streams(
            cast(TransformerStack, reader.stack),
            content,
            query,
            allowed=allowed,
            query_positions=at,
            segments=segments,
            memory=memory,
            memory_length=remember,
        )

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)
