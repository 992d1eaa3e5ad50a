"""A second reading of a text."""

from typing import Any

import pytest
import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import END
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.train.batches.pack import pack

SMALL = ["layers=2", "dim=12", "heads=2", "ff=7"]
STACKS = [f"{part}.stack.{size}" for part in ("reader", "reader.again") for size in SMALL]
ROWS = [[5, 6, 7, 8, END], [9, END], [6, 5, 8, END]]


def made(*more: str) -> Any:
    recipe = load("classify", overrides=[*STACKS, "data.max_length=17", *more])
    return build(recipe, source_size=11, target_size=3).eval().double()


def test_each_place_knows_the_tokens_before_it_alone_and_all_of_the_first_reading() -> None:
    """With the first reading as it was, another token changes what comes behind it; and with another one, all."""
    reader = made().reader
    ids, mask = torch.tensor([[5, 6, 7, 8, END]]), torch.ones(1, 5, dtype=torch.bool)
    other = torch.tensor([[5, 6, 9, 8, END]])
    again, reader.again = reader.again, None
    first, second = reader(ids, mask), reader(other, mask)
    states = [again(memory).states for memory in (first, type(first)(first.states, mask, tokens=other), second)]
    changed = [(found - states[0]).abs().amax(-1)[0] > 1e-6 for found in states[1:]]
    assert changed[0].tolist() == [False, False, False, True, True] and changed[1].all()


def test_rows_one_behind_the_other_are_read_as_each_alone() -> None:
    model, batch = made(), Batch({"source": pad(ROWS)})
    expected = model.read(batch).states[batch["source"].mask]
    torch.testing.assert_close(model.read(pack(batch)).states[0], expected)
    alone = torch.cat([model.read(Batch({"source": pad([row])})).states[0] for row in ROWS])
    torch.testing.assert_close(alone, expected)


def test_tokens_have_the_vectors_of_the_first_reading_and_width_is_that_of_the_second() -> None:
    model = made("reader.again.stack.ff=5", "reader.again.start=end")
    assert model.reader.again.embedding.tokens is model.reader.embedding.tokens
    assert model.reader.again.embedding.start == END and model.reader.dim == model.dim == 12
    assert not any("again" in name and "tokens" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("reader.again.stack.dim=8", "vectors of tokens, which are 12 wide, but needs 8; set the same stack.dim"),
        ("reader.embedding_dim=8", "which are 8 wide, but needs 12; .* no reader.embedding_dim"),
        ("reader.again.positions={kind='learned',length=16}", "positions.length must be at least data.max_length = 17"),
    ],
)
def test_what_cannot_be_read_with_is_refused(change: str, said: str) -> None:
    with pytest.raises(SaccadeError, match=said):
        made(change)
