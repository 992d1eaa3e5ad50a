"""Convolutional readers and writers as recipes describe them. Rows are those of the lectures."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.blocks.convolution import GatedBlock, ResidualBlock
from saccade.layers.record import record
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right

GATED = tuple(
    f"{part}.stack={{ kind = 'convolution', layers = 3, dim = 12, hidden_dim = 7, dropout = 0.1 }}"
    for part in ("reader", "writer")
)
BYTENET = (
    "reader.stack={ kind = 'convolution', block = 'residual', layers = 3, dim = 12, dilations = [1, 2],"
    " unfold = [1.2, 1] }",
    "writer.stack={ kind = 'convolution', block = 'residual', layers = 3, dim = 12, dilations = [1, 2],"
    " attention = [false], weight_norm = false }",
)
VARIANTS = {
    "gated": GATED,
    "residual": BYTENET,
    "learned positions": (*GATED, "reader.positions.kind=learned", "writer.positions.kind=learned"),
    "no weight norm": (*GATED, "writer.stack.weight_norm=false", "reader.stack.weight_norm=false"),
    "attention in every other layer": (*GATED, "writer.stack.attention=[true, false]"),
    "gated without attention": (*GATED, "writer.stack.attention=[false]"),
    "residual with attention": (*BYTENET, "writer.stack.attention=[true]"),
    "kernel of one": (*GATED, "writer.stack.kernel=1"),
    "wide and dilated": (*GATED, "writer.stack.kernel=4", "writer.stack.dilations=[3, 1, 2]"),
    "a Transformer reads": GATED[1:],
    "a Transformer writes": GATED[:1],
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def teacher_forced(made: Model, batch: Batch, ids: Tensor) -> Tensor:
    return made.writer.head(made.writer(ids, None, made.read(batch)))


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [(1,) * 9, (4, 1, 3, 1), (9,)])
def test_steps_equal_teacher_forcing(
    model: Callable[..., Model], batch: Batch, variant: str, sizes: tuple[int, ...]
) -> None:
    """Row 3, in float64: one token after the other, several at once, or all."""
    made, ids = model(*VARIANTS[variant]).double(), torch.randint(4, 23, (3, 9))
    expected = teacher_forced(made, batch, ids)
    state, at = made.writer.start(made.read(batch), capacity=9), 0
    for n in sizes:
        step = made.writer.step(ids[:, at : at + n], state)
        at, state = at + n, step.state
        torch.testing.assert_close(step.logits, expected[:, at - 1], atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["gated", "residual"])
@pytest.mark.parametrize("rows", [[2], [1, 1, 0, 2, 2], [2, 0, 1]])
def test_reordered_rows_go_on_as_themselves(
    model: Callable[..., Model], batch: Batch, variant: str, rows: list[int]
) -> None:
    made, ids = model(*VARIANTS[variant]).double(), torch.randint(4, 23, (3, 8))
    expected = teacher_forced(made, batch, ids)
    before = made.writer.step(ids[:, :6], made.writer.start(made.read(batch), capacity=8)).state
    after = before.reorder(torch.tensor(rows))
    for at in (6, 7):
        step = made.writer.step(ids[rows, at : at + 1], after)
        after = step.state
        torch.testing.assert_close(step.logits, expected[rows, at], atol=1e-12, rtol=0)
    again = made.writer.step(ids[:, 6:7], before)  # a state is a value: what was done with it left it as it was
    torch.testing.assert_close(again.logits, expected[:, 6], atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_leaks_from_later_words_or_from_padding(
    model: Callable[..., Model], batch: Batch, variant: str
) -> None:
    """Rows 11 and 61: later tokens and the content of source padding change nothing."""
    made, ids = model(*VARIANTS[variant]), torch.randint(4, 23, (3, 6))
    before = made.writer(ids, None, made.read(batch))
    changed, source = ids.clone(), batch["source"]
    changed[:, 4:] = 26 - changed[:, 4:]
    noise = torch.where(source.mask, source.ids, torch.randint_like(source.ids, 4, 23))
    after = made.writer(changed, None, made.reader(noise, source.mask))
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 5], before[:, 5])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["gated", "residual"])
def test_a_batch_equals_its_rows_alone(model: Callable[..., Model], batch: Batch, variant: str) -> None:
    made, target = model(*VARIANTS[variant]).double(), batch["target"]
    together = made.writer(target.ids, target.mask, made.read(batch))
    for row in range(3):
        n, m = int(batch["source"].mask[row].sum()), int(target.mask[row].sum())
        memory = made.reader(batch["source"].ids[row : row + 1, :n], torch.ones(1, n, dtype=torch.bool))
        alone = made.writer(target.ids[row : row + 1, :m], None, memory)
        torch.testing.assert_close(together[row, :m], alone[0], atol=1e-12, rtol=0)


@torch.no_grad()
def test_alignment_is_the_attention_of_the_last_layer_that_attends(model: Callable[..., Model], batch: Batch) -> None:
    made, ids = model(*GATED, "writer.stack.attention=[true, true, false]"), torch.randint(4, 23, (3, 3))
    with record(made) as maps:
        made.writer(ids, None, made.read(batch))
    assert list(maps) == ["writer.stack.blocks.0.cross", "writer.stack.blocks.1.cross"]
    step = made.writer.step(ids, made.writer.start(made.read(batch), capacity=3), align=True)
    torch.testing.assert_close(step.weights, maps["writer.stack.blocks.1.cross"][:, 0, -1])
    assert (step.weights[~batch["source"].mask] == 0).all()


def test_what_does_not_attend_cannot_be_aligned(model: Callable[..., Model], batch: Batch) -> None:
    made = model(*BYTENET)
    state = made.writer.start(made.read(batch), capacity=3)
    with pytest.raises(SaccadeError, match="this model does not attend to what it reads, so nothing can be aligned"):
        made.writer.step(torch.full((3, 1), 5), state, align=True)


@torch.no_grad()
def test_memory_is_projected_once_for_all_decoding_steps(model: Callable[..., Model], batch: Batch) -> None:
    made = model(*GATED)
    state = made.writer.start(made.read(batch), capacity=3)
    expected = made.writer.step(torch.full((3, 1), 5), state).logits
    for block in made.writer.stack.blocks:
        block.convolution.weight.fill_(torch.nan)
    torch.testing.assert_close(made.writer.step(torch.full((3, 1), 5), state).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["gated", "residual"])
def test_a_model_in_bfloat16_can_be_used(model: Callable[..., Model], batch: Batch, variant: str) -> None:
    made, ids = model(*VARIANTS[variant]), torch.randint(4, 23, (3, 3))
    expected = teacher_forced(made, batch, ids)
    half = made.bfloat16()
    torch.testing.assert_close(teacher_forced(half, batch, ids).float(), expected, atol=0.2, rtol=0.1)
    step = half.writer.step(ids, half.writer.start(half.read(batch), capacity=3))
    torch.testing.assert_close(step.logits.float(), expected[:, -1], atol=0.2, rtol=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", ["gated", "residual"])
def test_training_steps_reach_every_parameter(
    model: Callable[..., Model], batch: Batch, precision: str, variant: str
) -> None:
    made = model(*VARIANTS[variant], "writer.tie=none").train()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = teacher_forced(made, batch, shift_right(batch["target"].ids, 1))
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["target"].ids.flatten()).backward()
    assert [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_a_convolutional_language_model(recipe: Callable[..., object]) -> None:
    """A writer without memory has no cross-attention, whatever its settings."""
    made = build_writer(recipe(*GATED).writer, size=23).eval()
    ids = torch.randint(4, 23, (2, 5))
    assert all(block.cross is None for block in made.stack.blocks)
    with torch.no_grad():
        expected, state = made.head(made(ids, None, None)), made.start(None, capacity=5, rows=2)
        torch.testing.assert_close(made.step(ids, state).logits, expected[:, -1])


# ---- from a recipe


def test_parameters_of_convs2s_by_hand() -> None:
    """Parameters: W, its norms and b; 256 positions on each side; one shared token embedding."""
    d, v, places = 256, 4000, 256

    def product(inside: int, outside: int) -> int:
        return inside * outside + 2 * outside

    reader = 6 * product(3 * d, 2 * d) + 2 * product(d, d) + places * d
    writer = 5 * (product(3 * d, 2 * d) + 2 * product(d, d)) + 2 * product(d, d) + places * d
    with torch.device("meta"):
        model = build(load("convs2s"), source_size=v, target_size=v)
    assert count(model) == v * d + reader + writer == 6_416_384


def test_parameters_of_bytenet_by_hand() -> None:
    """Three linear layers and three norms in each block; no positions, no attention."""
    d, v = 512, 4000
    half = d // 2
    outside = d * half + half + half * d + d + 2 * (d + 2 * half)
    reader, writer = (10 * (outside + k * half * half + half) + 2 * d for k in (5, 3))
    with torch.device("meta"):
        model = build(load("bytenet"), source_size=v, target_size=v)
    assert count(model) == v * d + reader + writer == 12_597_248


def test_settings_reach_their_blocks(model: Callable[..., Model]) -> None:
    made = model(
        *GATED, "writer.stack.layers=4", "writer.stack.kernel=5", "writer.stack.dilations=[1, 3, 9]",
        "writer.stack.attention=[false, true]", "writer.stack.weight_norm=false", "writer.stack.dropout=0.3",
        "train.recompute=true",
    )  # fmt: skip
    stack = made.writer.stack
    assert [block.dilation for block in stack.blocks] == [1, 3, 9, 1]
    assert [block.cross is not None for block in stack.blocks] == [False, True, False, True]
    assert all(isinstance(block, GatedBlock) and (block.kernel, block.width) == (5, 7) for block in stack.blocks)
    assert stack.blocks[0].dropout.p == stack.dropout.p == 0.3 and made.reader.stack.dropout.p == 0.0
    assert stack.blocks[0].convolution.length is None and made.reader.stack.blocks[0].convolution.length is not None
    assert (stack.recompute, stack.causal, made.reader.stack.causal) == (True, True, False)
    bytenet = model(*BYTENET)
    assert all(isinstance(b, ResidualBlock) and (b.kernel, b.width) == (3, 6) for b in bytenet.reader.stack.blocks)
    assert bytenet.reader.stack.unfold == (1.2, 1.0) and isinstance(bytenet.writer.stack.norm, nn.LayerNorm)


@pytest.mark.parametrize(("overrides", "message"), [
    (("writer.stack.dim=14", "writer.tie=output"), "must have the width of its reader, got writer.stack.dim = 14 and"),
    (("reader.positions.kind=rotary",), 'positions.kind = "rotary" acts inside self-attention, which a convolution'),
    (("writer.positions.kind=shaw",), 'positions.kind = "shaw" acts inside self-attention'),
    (("reader.stack.unfold=[0.9, 0]",), r"unfold must be at least \[1, 0\], a state for each token, got \[0.9, 0\]"),
    (("reader.stack.dilations=[]",), "dilations"),
    (("reader.stack.kernel=0",), "kernel"),
    (("reader.stack.heads=2",), "heads"),
])  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_line(
    model: Callable[..., Model], overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        model(*GATED, *overrides)
    assert "\n" not in str(error.value)
