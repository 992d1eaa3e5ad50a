"""The token writer: all positions at once and step by step. Rows are those of the lectures."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from saccade.data.batching.batch import Batch
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.model import Model
from saccade.model.writers.tokens import Step, shift_right

POSITIONS = ("sinusoidal", "learned", "none", "rotary", "shaw", "bucketed", "alibi")
VARIANTS = {
    **{kind: (f"writer.positions.kind={kind}",) for kind in POSITIONS},
    "pre-norm": ("writer.stack.norm=pre",),
    "rms": ("writer.stack.norm_kind=rms", "writer.stack.norm=pre"),
    "full": ("writer.stack.head_projection=full",),
    "split": ("writer.stack.head_projection=split",),
    "gated": ("writer.stack.gated=true", "writer.stack.activation=silu", "writer.stack.bias=false"),
    "unscaled": ("writer.stack.scale_attention=false",),
    "window 0": ("writer.stack.window=0",),
    "window 2": ("writer.stack.window=2",),
    "window with rotary": ("writer.stack.window=1", "writer.positions.kind=rotary"),
    "window with shaw": ("writer.stack.window=1", "writer.positions.kind=shaw", "writer.positions.max_distance=2"),
    "split with rotary": ("writer.stack.head_projection=split", "writer.positions.kind=rotary"),
    "concatenated positions": ("writer.positions.combine=concat", "writer.tie=none"),
    "concatenated layout": ("writer.positions.layout=concatenated", "writer.positions.frequencies=tensor2tensor"),
    "output tied": ("writer.tie=output",),
    "other widths": ("writer.tie=output", "writer.stack.dim=18", "writer.stack.layers=1"),
}


def teacher_forced(made: Model, batch: Batch, ids: Tensor) -> Tensor:
    return made.writer.head(made.writer(ids, None, made.read(batch)))


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_teacher_forcing(model: Callable[..., Model], batch: Batch, variant: str) -> None:
    """For every kind of positions, norm, heads and window; one token at a time, and after a prompt of three."""
    made = model(*VARIANTS[variant])
    ids = torch.randint(4, 23, (3, 7))
    expected = teacher_forced(made, batch, ids)
    for sizes in ([1] * 7, [3, 1, 2, 1]):
        state, at = made.writer.start(made.read(batch), capacity=7), 0
        for part in ids.split(sizes, 1):
            step = made.writer.step(part, state, align=at == 3)
            at, state = at + part.shape[1], step.state
            torch.testing.assert_close(step.logits, expected[:, at - 1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_rows_of_different_lengths_go_on_together(model: Callable[..., Model], batch: Batch) -> None:
    """Each row has its own position, also for positions at the input."""
    for kind in POSITIONS:
        made, ids = model(f"writer.positions.kind={kind}"), torch.randint(4, 23, (3, 7))
        expected = teacher_forced(made, batch, ids)
        state = made.writer.start(made.read(batch), capacity=8)
        state = made.writer.step(ids[:, :4], state).state
        lengths = torch.tensor([4, 1, 2])
        state = type(state)(
            state.self_caches, state.cross_caches, state.memory_mask, lengths, max_length=4, is_uniform=False
        )
        for n in range(3):
            at = lengths + n
            step = made.writer.step(ids[torch.arange(3), at][:, None], state)
            torch.testing.assert_close(step.logits, expected[torch.arange(3), at], atol=1e-5, rtol=1e-5)
            state = step.state


@torch.no_grad()
@pytest.mark.parametrize("rows", [[2], [1, 1, 0, 2, 2], [2, 0, 1]])
def test_reordered_rows_go_on_as_themselves(model: Callable[..., Model], batch: Batch, rows: list[int]) -> None:
    made, ids = model(), torch.randint(4, 23, (3, 4))
    expected = teacher_forced(made, batch, ids)
    state = made.writer.step(ids[:, :3], made.writer.start(made.read(batch), capacity=4)).state
    step = made.writer.step(ids[rows, 3:], state.reorder(torch.tensor(rows)))
    torch.testing.assert_close(step.logits, expected[rows, 3], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_alignment_is_the_attention_of_the_last_layer(model: Callable[..., Model], batch: Batch) -> None:
    made, ids = model(), torch.randint(4, 23, (3, 3))
    with record(made) as maps:
        made.writer(ids, None, made.read(batch))
    step: Step = made.writer.step(ids, made.writer.start(made.read(batch), capacity=3), align=True)
    torch.testing.assert_close(step.weights, maps["writer.stack.blocks.1.cross"].mean(1)[:, -1])
    torch.testing.assert_close(step.weights.sum(-1), torch.ones(3))
    assert (step.weights[~batch["source"].mask] == 0).all()
    again = made.writer.step(ids, made.writer.start(made.read(batch), capacity=3))
    assert again.weights is None
    torch.testing.assert_close(again.logits, step.logits)


@torch.no_grad()
def test_addresses_of_a_model(model: Callable[..., Model], batch: Batch) -> None:
    made = model()
    with record(made) as maps:
        made.writer(batch["target"].ids, batch["target"].mask, made.read(batch))
    assert list(maps) == [
        "reader.stack.blocks.0.self",
        "reader.stack.blocks.1.self",
        "writer.stack.blocks.0.self",
        "writer.stack.blocks.0.cross",
        "writer.stack.blocks.1.self",
        "writer.stack.blocks.1.cross",
    ]
    assert (maps["reader.stack.blocks.1.self"][1, :, :, 4:] == 0).all()


def test_the_writer_attends_neither_ahead_nor_to_padding(model: Callable[..., Model], batch: Batch) -> None:
    """Rows 61 and 68: neither later tokens nor the padding of memory are attended to."""
    made, ids = model(), torch.randint(4, 23, (3, 6))
    memory = made.read(batch)
    before = made.writer(ids, None, memory)
    noise = torch.where(memory.mask[..., None], memory.states, 1e4 * torch.randn_like(memory.states))
    changed = ids.clone()
    changed[:, 4:] = 22 - changed[:, 4:]
    after = made.writer(changed, None, Memory(noise, memory.mask))
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 5], before[:, 5])


def test_attention_is_all_there_is(model: Callable[..., Model]) -> None:
    """Rows 12 and 68: no recurrent and no convolutional part; a writer's block has both kinds of attention."""
    made = model()
    assert not any(isinstance(part, nn.RNNBase | nn.modules.conv._ConvNd) for part in made.modules())
    assert all(block.cross is None and len(block.residuals) == 2 for block in made.reader.stack.blocks)
    assert all(block.cross is not None and len(block.residuals) == 3 for block in made.writer.stack.blocks)
    assert made.writer.stack.causal and not made.reader.stack.causal


def test_memory_is_projected_once_for_all_decoding_steps(model: Callable[..., Model], batch: Batch) -> None:
    """Row 68."""
    made, calls = model(), []
    for block in made.writer.stack.blocks:
        block.cross.memory.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        state = made.writer.start(made.read(batch), capacity=9)
        for _ in range(9):
            state = made.writer.step(torch.full((3, 1), 5), state).state.reorder(torch.arange(3))
    assert len(calls) == 2


def test_targets_are_shifted_right() -> None:
    """The inputs of the writer are <start> y1 y2 for the targets y1 y2 <end>."""
    assert shift_right(torch.tensor([[7, 8, 2], [9, 2, 0]]), 1).tolist() == [[1, 7, 8], [1, 9, 2]]


def test_the_head_is_a_product_with_the_output_table(model: Callable[..., Model]) -> None:
    made, hidden = model(), torch.randn(2, 3, 12)
    torch.testing.assert_close(made.writer.head(hidden), hidden @ made.writer.output.weight.T)


@torch.no_grad()
def test_a_model_in_bfloat16_can_be_used(model: Callable[..., Model], batch: Batch) -> None:
    """With weights in bfloat16, not only autocast: all passes are close to float32."""
    for overrides in (
        (),
        ("writer.positions.kind=rotary",),
        ("writer.positions.kind=alibi",),
        ("writer.stack.window=1",),
    ):
        made, ids = model(*overrides), torch.randint(4, 23, (3, 3))
        expected = teacher_forced(made, batch, ids)
        half = made.bfloat16()
        torch.testing.assert_close(teacher_forced(half, batch, ids).float(), expected, atol=0.2, rtol=0.1)
        step = half.writer.step(ids, half.writer.start(half.read(batch), capacity=3), align=True)
        torch.testing.assert_close(step.logits.float(), expected[:, -1], atol=0.2, rtol=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_steps_reach_every_parameter(model: Callable[..., Model], batch: Batch, precision: str) -> None:
    made = model("reader.stack.norm=pre", "writer.tie=none").train()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = teacher_forced(made, batch, shift_right(batch["target"].ids, 1))
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["target"].ids.flatten()).backward()
    without = [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert all(p.grad.isfinite().all() for p in made.parameters())
