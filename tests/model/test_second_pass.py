"""The second pass of a reader."""

from typing import Any

import pytest
import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import END
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.train.batches.pack import pack_batch

SMALL = ["layers=2", "dim=12", "heads=2", "ff=7"]
STACKS = [f"{part}.stack.{size}" for part in ("reader", "reader.second_pass") for size in SMALL]
ROWS = [[5, 6, 7, 8, END], [9, END], [6, 5, 8, END]]


def build_model(*more: str) -> Any:
    recipe = load("classify", overrides=[*STACKS, "data.max_length=17", *more])
    return build(recipe, source_size=11, target_size=3).eval().double()


def test_the_second_pass_is_causal_and_attends_to_the_whole_first_pass() -> None:
    """A changed token affects only later states if the first pass is unchanged, else all."""
    reader = build_model().reader
    ids, mask = torch.tensor([[5, 6, 7, 8, END]]), torch.ones(1, 5, dtype=torch.bool)
    other = torch.tensor([[5, 6, 9, 8, END]])
    again, reader.again = reader.again, None
    first, second = reader(ids, mask), reader(other, mask)
    states = [again(memory).states for memory in (first, type(first)(first.states, mask, tokens=other), second)]
    changed = [(found - states[0]).abs().amax(-1)[0] > 1e-6 for found in states[1:]]
    assert changed[0].tolist() == [False, False, False, True, True] and changed[1].all()


def test_rows_one_behind_the_other_are_read_as_each_alone() -> None:
    model, batch = build_model(), Batch({"source": pad(ROWS)})
    expected = model.read(batch).states[batch["source"].mask]
    torch.testing.assert_close(model.read(pack_batch(batch)).states[0], expected)
    alone = torch.cat([model.read(Batch({"source": pad([row])})).states[0] for row in ROWS])
    torch.testing.assert_close(alone, expected)


def test_tokens_have_the_vectors_of_the_first_reading_and_width_is_that_of_the_second() -> None:
    model = build_model("reader.second_pass.stack.ff=5", "reader.second_pass.start_token=end")
    assert model.reader.again.embedding.tokens is model.reader.embedding.tokens
    assert model.reader.again.embedding.start == END and model.reader.dim == model.dim == 12
    assert not any("again" in name and "tokens" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("reader.second_pass.stack.dim=8", "token embedding of width 12, but needs width 8; set the same stack.dim"),
        ("reader.embedding_dim=8", "of width 8, but needs width 12; .* no reader.embedding_dim"),
        (
            "reader.second_pass.positions={kind='learned',length=16}",
            "positions.length must be at least data.max_length = 17",
        ),
    ],
)
def test_what_cannot_be_read_with_is_refused(change: str, said: str) -> None:
    with pytest.raises(SaccadeError, match=said):
        build_model(change)
