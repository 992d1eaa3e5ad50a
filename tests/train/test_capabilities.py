"""Custom parts that declare capabilities get the fast paths of the shipped ones, with the same losses."""

import logging

import pytest
import torch
from torch import nn

from saccade.config.load import validate
from saccade.config.protocols import Capabilities, get_capabilities
from saccade.data.batching.batch import Batch
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.build.model import build
from saccade.train.batches.layout import can_capture_padded, choose_layout, should_capture
from saccade.train.batches.pack import pack_batch, pack_if_padded
from saccade.train.batches.static_shapes import pad_to_static_shape
from saccade.train.distributed.ranks import Ranks
from saccade.train.objectives.objectives import build_objectives, next_token_loss

SIZE, DIM = 13, 8


class PointwiseStack(nn.Module):
    """A linear layer at each position plus the mean of memory: independent of the layout of rows."""

    def __init__(self, memory_dim: int = 0, *, dim: int = DIM) -> None:
        super().__init__()
        self.dim = dim
        self.product = nn.Linear(dim, dim)
        self.look = nn.Linear(memory_dim, dim) if memory_dim else None

    def forward(self, x, mask, memory=None, state=None):
        y = torch.tanh(self.product(x))
        if self.look is not None and memory is not None:
            y = y + self.look(spread_means(memory, mask))
        return y, mask, state, {}


def spread_means(memory, mask):
    """The mean of each sequence of memory, for every position of the sequence that it belongs to."""
    if not isinstance(memory.mask, Packing):
        real = memory.mask[..., None]
        return ((memory.states * real).sum(1) / real.sum(1).clamp(min=1))[:, None]
    zeros = memory.states.new_zeros(len(memory.mask.offsets) - 1, memory.states.shape[-1])
    sums = zeros.index_add(0, memory.mask.sequence_ids[0], memory.states[0])
    return (sums / memory.mask.offsets.diff().clamp(min=1)[:, None])[mask.sequence_ids]


class DeclaringStack(PointwiseStack):
    capabilities = Capabilities(packed_rows=True, static_shapes=True)


class BagReader(nn.Module):
    """A bag-of-words reader that declares its capabilities."""

    capabilities = Capabilities(packed_rows=True, static_shapes=True)

    def __init__(self, size: int, *, dim: int = DIM) -> None:
        super().__init__()
        self.table, self.dim = nn.Embedding(size, dim), dim

    def forward(self, ids, mask):
        return Memory(self.table(ids), mask)


class SilentReader(BagReader):
    capabilities = None


class PlainWriter(nn.Module):
    """A head over token embeddings that declares its capabilities."""

    capabilities = Capabilities(packed_rows=True, static_shapes=True, padded_targets=True)

    def __init__(self, size: int, memory_dim: int) -> None:
        super().__init__()
        self.table, self.dim = nn.Embedding(size, DIM), DIM
        self.stack, self.output = PointwiseStack(memory_dim), nn.Linear(DIM, size)

    def forward(self, ids, mask, memory):
        return self.stack(self.table(ids), mask, memory)[0]

    def head(self, hidden):
        return self.output(hidden)


KINDS = {
    "pointwise": PointwiseStack, "declaring": DeclaringStack, "bag": BagReader, "silent": SilentReader,
    "plain": PlainWriter,
}  # fmt: skip
STACKS = {"stack": {"kind": "declaring"}, "positions": {"kind": "none"}, "dropout": 0.0}


def make(reader=None, writer=None, **train):
    values = {
        "reader": reader or STACKS,
        "writer": writer or {**STACKS, "tie": "output"},
        "train": {"steps": 1, **train},
    }
    recipe = validate(values, kinds=KINDS)
    torch.manual_seed(1)
    return recipe, build(recipe, source_size=SIZE, target_size=SIZE).double()


PARTS = {
    "stacks": {},
    "reader": {"reader": {"kind": "bag"}},
    "writer": {"writer": {"kind": "plain"}},
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_parts_that_declare_packed_rows_are_given_them_with_the_same_loss(parts, batch: Batch):
    recipe, model = make(**parts)
    layout = choose_layout(recipe, model, build_objectives(recipe), device=torch.device("cpu"), ranks=Ranks())
    assert layout.transform is pack_if_padded
    ours, theirs = (next_token_loss(model, given, torch.Generator()) for given in (pack_batch(batch), batch))
    torch.testing.assert_close([term.sum for term in ours.values()], [term.sum for term in theirs.values()])


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_parts_that_declare_static_shapes_can_be_cuda_graphs(parts, batch: Batch):
    recipe, model = make(**parts, pack=False)
    holds = can_capture_padded(model, build_objectives(recipe), requested=False)
    assert holds and should_capture(recipe, capturable=holds, ranks=Ranks(), device=torch.device("cuda"))
    ours, theirs = (
        next_token_loss(model, given, torch.Generator()) for given in (pad_to_static_shape(batch, budget=64), batch)
    )
    torch.testing.assert_close([term.sum for term in ours.values()], [term.sum for term in theirs.values()])


SILENT = {
    "the reader's stack PointwiseStack does not declare packed_rows": {
        "reader": {**STACKS, "stack": {"kind": "pointwise"}}
    },
    "the writer's stack PointwiseStack does not declare packed_rows": {
        "writer": {**STACKS, "stack": {"kind": "pointwise"}, "tie": "output"}
    },
    "the reader SilentReader does not declare packed_rows": {"reader": {"kind": "silent"}},
}


@pytest.mark.parametrize(("reason", "parts"), SILENT.items())
def test_parts_that_declare_nothing_get_padded_batches_and_the_log_says_why(reason, parts, caplog):
    recipe, model = make(**parts)
    with caplog.at_level(logging.INFO, logger="saccade"):
        layout = choose_layout(recipe, model, build_objectives(recipe), device=torch.device("cpu"), ranks=Ranks())
    assert layout == (None, False, None)
    assert f"batches are padded, not packed: {reason}" in caplog.messages
    assert not can_capture_padded(model, [], requested=True)


def test_a_part_that_declares_nothing_or_something_else_has_no_capabilities():
    for part in (object(), nn.Identity(), SilentReader(3)):
        assert get_capabilities(part) == Capabilities()


def test_what_two_parts_support_together_keeps_the_reasons_of_both():
    one = get_capabilities(BagReader(3), "the reader")
    both = one & get_capabilities(PointwiseStack(), "the stack")
    assert both == Capabilities()
    assert both.explain_missing("packed_rows") == "the stack PointwiseStack does not declare packed_rows"
    assert one.explain_missing("packed_rows") == ""
    assert "BagReader" in both.explain_missing("static_step")


def test_the_log_says_which_blocks_are_not_compiled(caplog):
    recipe, model = make(compile=True)
    model.reader.stack.score_problem = "attention score Own declares no static shapes"
    with caplog.at_level(logging.INFO, logger="saccade"):
        choose_layout(recipe, model, build_objectives(recipe), device=torch.device("cpu"), ranks=Ranks())
    assert "blocks are not compiled: attention score Own declares no static shapes" in caplog.messages
