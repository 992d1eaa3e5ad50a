"""A token writer whose steps work on the same buffers: with Triton kernels on CUDA, with its own blocks elsewhere."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.next_token import Best, Rules, best_tokens
from saccade.layers.attention import masks
from saccade.layers.attention.backends import TRITON
from saccade.layers.attention.positions import Learned
from saccade.layers.attention.static_cache import FixedState, make_room, step_fixed
from saccade.model.writers.tokens import TokenWriter

WIDEST = 8  # beams whose best tokens the kernels find
KNOWN = {torch.float32, torch.bfloat16, torch.float16}


class FixedWriter:
    """What a TokenWriter computes in one step, for any number of the rows that there is room for."""

    def __init__(self, *, room: FixedState, kernels: bool, positions: Tensor | None) -> None:
        self.room, self.kernels, self.positions = room, kernels, positions

    @classmethod
    def of(cls, writer: TokenWriter, *, rows: int, beams: int, capacity: int, source_length: int) -> "FixedWriter":
        room = make_room(writer.stack, rows=rows, beams=beams, capacity=capacity, source_length=source_length)
        kernels, positions = has_kernels(writer, beams), None
        if kernels and writer.embedding.positions is not None:
            positions = room.own[0].keys.new_empty(capacity, writer.embedding.tokens.embedding_dim)
        return cls(room=room, kernels=kernels, positions=positions)

    def refresh(self, writer: TokenWriter) -> None:
        """What was computed from the weights once is computed again: a model may have learned since."""
        if self.positions is not None:
            known: Any = writer.embedding.positions
            # Beyond what it learned, a table has nothing to say, and no output is so long.
            longest = known.table.num_embeddings if isinstance(known, Learned) else None
            where = masks.positions(self.positions.shape[0], self.positions.device)[:, :longest]
            self.positions[:longest].copy_(known(where)[0])

    def best(self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: FixedState, rules: Rules, count: int) -> Best:
        """The best tokens that may follow in each row."""
        if not self.kernels:
            return best_tokens(self.logits(writer, tokens, state), rules, count)
        from saccade.kernels.triton import step as fast_step

        weight: Any = writer.output.weight
        return fast_step.fast_head(self._fast(writer, tokens, state), weight, rules, count)

    def logits(self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: FixedState) -> Float[Tensor, "R V"]:
        """The logits of the token that follows in each row."""
        if not self.kernels:
            x = writer.embedding(tokens[:, None], state.lengths[:, None])
            return writer.head(step_fixed(writer.stack, x, state)[:, 0])
        from saccade.kernels.triton.linear import normalised

        return writer.head(normalised(self._fast(writer, tokens, state)))

    def _fast(self, writer: TokenWriter, tokens: Tensor, state: FixedState) -> Any:
        from saccade.kernels.triton import step as fast_step

        embedding = writer.embedding
        ids = embedding.rows(tokens)
        x = fast_step.fast_embed(ids, embedding.tokens.weight, embedding.scale, self.positions, state.lengths)
        return fast_step.fast_stack(writer.stack, x, state)


def has_kernels(writer: TokenWriter, beams: int) -> bool:
    """Whether there are kernels here, and they know everything that this writer is made of."""
    tables: Any = writer.embedding.tokens.weight, writer.output.weight
    if tables[0].device.type != "cuda" or not TRITON or beams > WIDEST or writer.embedding.concat:
        return False
    head: Any = writer.output
    if writer.embedding.norm is not None or head.bias is not None or writer.output_scale != 1.0:
        return False
    from saccade.kernels.triton import step as fast_step

    return {table.dtype for table in tables} <= KNOWN and fast_step.covers(writer.stack)
