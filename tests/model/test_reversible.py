"""Reversible stacks (Reformer), as recipes build them: gradients, decoding, incompatible settings."""

from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.config.load import load, validate
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import find_family
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.layers.record import record
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.objectives.objectives import next_token_loss

V, LENGTH, CHUNK = 23, 20, 4
STACK = {
    "layers": 3, "dim": 12, "heads": 3, "ff": 17, "norm": "pre", "residual": "reversible", "dropout": 0.0,
    "attention": ["local", "lsh", "full"], "chunks": {"length": CHUNK, "hashes": 2, "feedforward": 7},
}  # fmt: skip


def values(stack: Any = STACK, **writer: Any) -> dict[str, Any]:
    return {
        "task": "language-model", "data": {"max_length": LENGTH}, "reader": {"kind": "none"},
        "writer": {
            "stack": stack, "tie": "none", "positions": {"kind": "axial", "shape": [4, 5]}, "dropout": 0.0, **writer,
        },
    }  # fmt: skip


def language_model(**changes: Any) -> Model:
    torch.manual_seed(1)
    return build(validate(values({**STACK, **changes})), source_size=V, target_size=V).double()


def texts(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(4, V, (rows, length), generator=torch.Generator().manual_seed(1))


def test_states_are_twice_as_wide_as_token_vectors() -> None:
    model = language_model()
    assert isinstance(model.writer.stack, ReversibleStack) and not model.capabilities.packed_rows
    assert model.writer.embedding.tokens.weight.shape == (V, 12)
    assert model.writer.output.weight.shape == (V, 24)
    assert [type(block.attention).__name__ for block in model.writer.stack.blocks] == [
        "LocalAttention", "LshAttention", "LocalAttention",
    ]  # fmt: skip


def test_gradients_are_those_of_the_plain_layers() -> None:
    """Through the objective, with a seed for the rotations; recorded passes must agree with plain ones."""
    model = language_model(chunks={**STACK["chunks"], "seed": 3}).train()
    batch = Batch({"target": pad([row[:n].tolist() for row, n in zip(texts(3), (LENGTH, 5, 13), strict=True)])})

    def gradients() -> list[Tensor]:
        loss = next_token_loss(model, batch, torch.Generator(), label_smoothing=0.0)["next-token"].sum
        return list(torch.autograd.grad(loss, list(model.parameters())))

    mine = gradients()
    with record(model):
        plain = gradients()
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_eval_mode_is_deterministic_despite_random_rotations() -> None:
    model, ids = language_model(), texts()
    assert not torch.equal(model.train().writer(ids, None, None), model.writer(ids, None, None))
    assert torch.equal(model.eval().writer(ids, None, None), model.writer(ids, None, None))


@torch.no_grad()
@pytest.mark.parametrize("first", [1, CHUNK])
def test_decoding_steps_use_full_attention(first: int) -> None:
    """After a prompt of one chunk, as if a chunk were as long as the sequence."""
    ids, model = texts(), language_model().eval().writer
    exact = language_model(chunks={**STACK["chunks"], "length": LENGTH, "local": CHUNK}).eval().writer
    exact.load_state_dict(model.state_dict())
    whole = exact.head(exact(ids, None, None))
    step = model.step(ids[:, :first], model.start(None, rows=2, capacity=LENGTH))
    for at in range(first, LENGTH):
        torch.testing.assert_close(step.logits, whole[:, at - 1], atol=1e-9, rtol=1e-9)
        step = model.step(ids[:, at : at + 1], step.state)


@torch.no_grad()
def test_a_prompt_is_processed_as_a_whole_sequence() -> None:
    ids, writer = texts(), language_model().eval().writer
    whole = writer.head(writer(ids[:, :13], None, None))
    step = writer.step(ids[:, :13], writer.start(None, rows=2, capacity=LENGTH))
    torch.testing.assert_close(step.logits, whole[:, -1], atol=1e-9, rtol=1e-9)
    again = writer.step(ids[:, :13], writer.start(None, rows=2, capacity=LENGTH)).state
    swapped = writer.step(ids[[1, 0], 13:14], again.reorder(torch.tensor([1, 0]))).logits
    expected = writer.step(ids[:, 13:14], step.state).logits
    torch.testing.assert_close(swapped, expected.flip(0), atol=1e-9, rtol=1e-9)


def test_a_state_without_room_is_reported() -> None:
    ids, writer = texts(), language_model().eval().writer
    state = writer.step(ids[:, :13], writer.start(None, rows=2, capacity=15)).state
    with pytest.raises(ValueError, match="the state has capacity 15, got 16 positions"):
        writer.step(ids[:, :3], state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (values({**STACK, "residual": True}), 'attention = "local" is for residual = "reversible", got True'),
        (values({**STACK, "norm": "post"}), 'residual = "reversible" goes with norm = "pre"'),
        (
            values({**STACK, "window": 3}),
            "share_layers, drop_path, value_dim and other head projections; change window",
        ),
        (values({**STACK, "ff": 0}), "change ff"),
        (values(positions={"kind": "rotary"}), 'takes positions at the input, got "rotary"; try writer.positions.kind'),
        (values(tie="output"), 'has states twice as wide as token embeddings; set writer.tie = "none"'),
        ({**values(), "task": "translate", "reader": {}}, "has no cross-attention"),
    ],
)
def test_incompatible_settings_are_reported(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError) as error:
        validate(change)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": {"kind": "axial", "shape": [3, 5]}}, "at least data.max_length = 20 positions, got 3 x 5 = 15"),
        ({"stack": {**STACK, "chunks": {"buckets": [3]}}}, "needs even numbers of buckets, got 3"),
    ],
)
def test_sizes_that_cannot_be_are_reported(change: dict[str, Any], message: str) -> None:
    stack = change.pop("stack", STACK)
    with pytest.raises(SaccadeError, match=message):
        build(validate(values(stack, **change)), source_size=V, target_size=V)


def test_the_recipe_can_be_exported() -> None:
    assert find_family(load("reformer")).name == find_family(load("reformer", tiny=True)).name == "reformer"
    assert find_family(load("t5")).name == "t5"
