"""A writer whose steps use static buffers: Triton kernels on CUDA, its own blocks elsewhere."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.next_token import DecodingConstraints, TopTokens, select_top_tokens
from saccade.kernels.weights import Unsupported, WriterWeights
from saccade.layers.attention.backends import HAS_TRITON
from saccade.layers.attention.static_cache import StaticSizes, StaticStack, StaticState
from saccade.model.writers.tokens import TokenWriter

MAX_KERNEL_BEAMS = 8  # beams that the Triton kernels support
KERNEL_DTYPES = {torch.float32, torch.bfloat16, torch.float16}


class StaticWriter:
    """Computes single steps of a writer on static buffers, for any number of rows up to their size."""

    def __init__(self, *, state: StaticState, weights: WriterWeights | None, positions: Tensor | None) -> None:
        """`weights` are given if kernels take the steps, with a table of `positions` if the writer has any."""
        self.state, self.weights, self.positions = state, weights, positions

    @classmethod
    def build(cls, writer: TokenWriter, sizes: StaticSizes) -> "StaticWriter":
        """Allocate the buffers of a writer."""
        state, weights, positions = cast(StaticStack, writer.stack).start_static(sizes), None, None
        try:
            weights = describe_for_kernels(writer, sizes.beams)
        except Unsupported:
            return cls(state=state, weights=None, positions=None)
        if weights.embedding.positions is not None:
            positions = state.self_caches[0].keys.new_empty(sizes.capacity, weights.embedding.tokens.shape[1])
        return cls(state=state, weights=weights, positions=positions)

    @property
    def uses_kernels(self) -> bool:
        return self.weights is not None

    def refresh(self) -> None:
        """Recompute what depends on weights, which may have been trained since."""
        if self.weights is not None and self.weights.embedding.positions is not None and self.positions is not None:
            # A learned table may be shorter than the buffer; no output reaches the rest.
            table = self.weights.embedding.positions.make_table(len(self.positions), self.positions.device)[
                : len(self.positions)
            ]
            self.positions[: len(table)].copy_(table)

    def select_tokens(
        self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: StaticState, rules: DecodingConstraints, count: int
    ) -> TopTokens:
        """Return the best `count` allowed next tokens of each row."""
        if self.weights is None:
            return select_top_tokens(self.compute_logits(writer, tokens, state), rules, count)
        from saccade.kernels.triton import step as fast_step

        return fast_step.select_next_tokens(
            self._run_kernels(self.weights, writer, tokens, state), self.weights.output.matrix, rules, count
        )

    def compute_logits(
        self, writer: TokenWriter, tokens: Int[Tensor, " R"], state: StaticState
    ) -> Float[Tensor, "R V"]:
        """Return the logits of the next token of each row."""
        if self.weights is None:
            x = writer.embedding(tokens[:, None], state.lengths[:, None])
            return writer.head(cast(StaticStack, writer.stack).step_static(x, state)[:, 0])
        from saccade.kernels.triton.linear import normalize_rows

        return writer.head(normalize_rows(self._run_kernels(self.weights, writer, tokens, state)))

    def _run_kernels(self, weights: WriterWeights, writer: TokenWriter, tokens: Tensor, state: StaticState) -> Any:
        from saccade.kernels.triton import step as fast_step

        embedding = weights.embedding
        ids = writer.embedding.get_row_ids(tokens)
        x = fast_step.embed_tokens(ids, embedding.tokens, embedding.scale, self.positions, state.lengths)
        return fast_step.run_stack(weights.stack, x, state)


def has_kernels(writer: TokenWriter, beams: int) -> bool:
    """Return whether Triton kernels can take the steps of a writer."""
    try:
        describe_for_kernels(writer, beams)
    except Unsupported:
        return False
    return True


def describe_for_kernels(writer: TokenWriter, beams: int) -> WriterWeights:
    """Return the weights of a writer for the Triton kernels; raises `Unsupported` if they cannot express it."""
    weights = writer.describe_step()
    tables = weights.embedding.tokens, weights.output.matrix
    if tables[0].device.type != "cuda" or not HAS_TRITON:
        raise Unsupported("there is no CUDA device with Triton")
    if beams > MAX_KERNEL_BEAMS:
        raise Unsupported(f"the Triton step takes at most {MAX_KERNEL_BEAMS} beams")
    if weights.output.bias is not None or not {table.dtype for table in tables} <= KERNEL_DTYPES:
        raise Unsupported("its output has a bias, or tables are of another type")
    from saccade.kernels.triton import step as fast_step

    fast_step.check_weights(weights.stack)
    return weights
