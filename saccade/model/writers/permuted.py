"""A writer that says the token at any place of a text, given others in whatever order (XLNet, Yang et al. 2019)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.layers.attention.two_stream import Streams, earlier, two_streams
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.labels import StatesHead


class PermutedWriter(StatesHead):
    """A vector that every place begins with when it is asked for its token, and a head over the vocabulary.

    What is asked passes the layers of the reader, beside what is read.
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
        """Both streams after the last layer, where the places `at` are asked; `head` makes logits of the queries.

        `order` as in `earlier`; `keep` says which tokens are real; `segments` are those of memory and text, where the
        reader tells segments apart.
        """
        content, query = reader.embedding(ids), reader.embedding.dropout(self.query.expand(*at.shape, -1))
        allowed = earlier(order) & keep[:, None]
        return two_streams(
            reader.stack, content, query, allowed=allowed, at=at, segments=segments, memory=memory, remember=remember
        )

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)
