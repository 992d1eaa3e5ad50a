"""A writer whose steps work on the same buffers: with Triton kernels on CUDA, with its own blocks elsewhere."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.next_token import Best, Rules, best_tokens
from saccade.kernels.weights import Unsupported, WriterWeights
from saccade.layers.attention.backends import TRITON
from saccade.layers.attention.static_cache import FixedState, StaticSizes
from saccade.model.writers.tokens import TokenWriter

WIDEST = 8  # beams whose best tokens the kernels find
KNOWN = {torch.float32, torch.bfloat16, torch.float16}


class FixedWriter:
    """What a writer computes in one step, for any number of the rows that there is room for."""

    def __init__(self, *, room: FixedState, weights: WriterWeights | None, positions: Tensor | None) -> None:
        """`weights` are there where kernels take the steps, with a table of `positions` where there are any."""
        self.room, self.weights, self.positions = room, weights, positions

    @classmethod
    def of(cls, writer: TokenWriter, sizes: StaticSizes) -> "FixedWriter":
        room, weights, positions = writer.stack.start_static(sizes), None, None
        try:
            weights = describe_for_kernels(writer, sizes.beams)
        except Unsupported:
            return cls(room=room, weights=None, positions=None)
        if weights.embedding.positions is not None:
            positions = room.own[0].keys.new_empty(sizes.capacity, weights.embedding.tokens.shape[1])
        return cls(room=room, weights=weights, positions=positions)

    @property
    def kernels(self) -> bool:
        return self.weights is not None

    def refresh(self) -> None:
        """What was computed from the weights once is computed again: a model may have learned since."""
        if self.weights is not None and self.weights.embedding.positions is not None and self.positions is not None:
            # Beyond what it learned, a table has nothing to say, and no output is so long.
            table = self.weights.embedding.positions.make_table(len(self.positions), self.positions.device)[
                : len(self.positions)
            ]
            self.positions[: len(table)].copy_(table)

    def best(self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: FixedState, rules: Rules, count: int) -> Best:
        """The best tokens that may follow in each row."""
        if self.weights is None:
            return best_tokens(self.logits(writer, tokens, state), rules, count)
        from saccade.kernels.triton import step as fast_step

        return fast_step.fast_head(
            self._fast(self.weights, writer, tokens, state), self.weights.output.matrix, rules, count
        )

    def logits(self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: FixedState) -> Float[Tensor, "R V"]:
        """The logits of the token that follows in each row."""
        if self.weights is None:
            x = writer.embedding(tokens[:, None], state.lengths[:, None])
            return writer.head(writer.stack.step_static(x, state)[:, 0])
        from saccade.kernels.triton.linear import normalised

        return writer.head(normalised(self._fast(self.weights, writer, tokens, state)))

    def _fast(self, weights: WriterWeights, writer: TokenWriter, tokens: Tensor, state: FixedState) -> Any:
        from saccade.kernels.triton import step as fast_step

        embedding = weights.embedding
        ids = writer.embedding.rows(tokens)
        x = fast_step.fast_embed(ids, embedding.tokens, embedding.scale, self.positions, state.lengths)
        return fast_step.fast_stack(weights.stack, x, state)


def has_kernels(writer: TokenWriter, beams: int) -> bool:
    """Whether Triton kernels take the steps of a writer."""
    try:
        describe_for_kernels(writer, beams)
    except Unsupported:
        return False
    return True


def describe_for_kernels(writer: TokenWriter, beams: int) -> WriterWeights:
    """The weights of a writer, where there are Triton kernels and they know all of it; raises `Unsupported`."""
    weights = writer.describe_step()
    tables = weights.embedding.tokens, weights.output.matrix
    if tables[0].device.type != "cuda" or not TRITON:
        raise Unsupported("there is no CUDA device with Triton")
    if beams > WIDEST:
        raise Unsupported(f"the Triton step takes at most {WIDEST} beams")
    if weights.output.bias is not None or not {table.dtype for table in tables} <= KNOWN:
        raise Unsupported("its output has a bias, or tables are of another type")
    from saccade.kernels.triton import step as fast_step

    fast_step.check_weights(weights.stack)
    return weights
