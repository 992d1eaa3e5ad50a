import copy
from typing import Any

import pytest
import torch
from laid_out import SMALL, made

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.kernels.cpu import stack_step
from saccade.kernels.cpu.fma import FmaLinear
from saccade.layers.blocks import transformer
from saccade.layers.record import record
from saccade.model.build.model import build
from saccade.model.inference import prepack_weights
from saccade.model.model import Model

pytestmark = pytest.mark.skipif(stack_step.load_kernel() is None, reason="needs AVX-512 VNNI and a compiler")

SOURCES = Batch({"source": pad([[5, 6, 7, 2], [8, 2], [5, 9, 2]])})


@torch.inference_mode()
def decode_steps(model: Model, *, orders: dict[int, list[int]] | None = None) -> list[torch.Tensor]:
    """Logits of some steps, after some of which rows change places or leave."""
    memory = None if model.reader is None else model.read(SOURCES)
    state, found = model.writer.start(memory, capacity=12, rows=3), []
    tokens = torch.tensor([[1], [1], [1]])
    for number in range(8):
        step = model.writer.step(tokens, state)
        found.append(step.logits.clone())
        tokens, state = step.logits.argmax(-1, keepdim=True), step.state
        if order := (orders or {}).get(number):
            tokens, state = tokens[order], state.reorder(torch.tensor(order))
    return found


@pytest.fixture
def fused_steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every step that was one call."""
    steps: list[Any] = []
    call = stack_step.StackStep.__call__

    def count_call(self: Any, x: Any, state: Any, caches: Any) -> Any:
        steps.append(self)
        return call(self, x, state, caches)

    monkeypatch.setattr(stack_step.StackStep, "__call__", count_call)
    return steps


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("transformer", ["writer.stack.norm=post"]), ("transformer", ["writer.stack.norm=pre"]), ("gpt2", [])],
)
@pytest.mark.parametrize("orders", [{}, {2: [0, 0, 2], 4: [1, 0, 0], 5: [0, 2], 6: [1]}])
def test_one_call_gives_what_the_blocks_give(
    kind: str, recipe: str, settings: list[str], orders: dict[int, list[int]], fused_steps: list[Any], monkeypatch: Any
) -> None:
    model = made(*settings, recipe=recipe, kind=kind)
    ours = decode_steps(model, orders=orders)
    assert len(fused_steps) == 8
    monkeypatch.setattr(transformer, "take_fused_step", lambda *given: None)
    blocks = decode_steps(model, orders=orders)
    assert len(fused_steps) == 8
    torch.testing.assert_close(ours, blocks, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "setting",
    [
        "writer.stack.activation=gelu",
        "writer.stack.gated=true",
        "writer.stack.norm_kind=rms",
        "writer.stack.window=0",
        "writer.positions={kind='rotary'}",
        "writer.positions={kind='shaw'}",
        "writer.stack.residual=false",
    ],
)
def test_other_blocks_go_on_by_themselves(setting: str, fused_steps: list[Any]) -> None:
    decode_steps(made(setting))
    assert not fused_steps


def test_it_does_not_apply_to_gradients_recording_or_plain_weights(fused_steps: list[Any]) -> None:
    model = made()
    memory = model.read(SOURCES)
    state = model.writer.start(memory, capacity=6)
    model.writer.step(torch.tensor([[1], [1], [1]]), state)
    assert not fused_steps  # gradients are wanted
    with torch.inference_mode(), record(model):
        model.writer.step(torch.tensor([[1], [1], [1]]), model.writer.start(model.read(SOURCES), capacity=6))
    assert not fused_steps
    with torch.inference_mode():
        model.writer.step(torch.tensor([[1, 5]] * 3), model.writer.start(model.read(SOURCES), capacity=6))
    assert not fused_steps  # two positions at once


def test_weights_that_are_laid_out_anew_are_described_anew(fused_steps: list[Any]) -> None:
    model = build(load("transformer", overrides=SMALL), source_size=20, target_size=20).eval()
    expected = decode_steps(model)
    assert not fused_steps  # products are as in training
    prepack_weights(model)
    torch.testing.assert_close(decode_steps(model), expected, rtol=1e-4, atol=1e-4)
    assert len(fused_steps) == 8


def test_plain_weights_are_described_as_they_are_now() -> None:
    """Parameters that are assigned anew, or moved to another type, are not those of before."""
    model = build(load("transformer", overrides=SMALL), source_size=20, target_size=20).eval()
    model.writer.describe_step()
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)
    weights = model.writer.describe_step()
    assert weights.stack.blocks[1].feedforward.up.weight is model.writer.stack.blocks[1].feedforward.up.weight
    assert weights.stack.blocks[1].norms[2].bias is model.writer.stack.blocks[1].residuals[2].norm.bias
    assert weights.embedding.tokens is model.writer.embedding.tokens.weight
    assert model.half().writer.describe_step().output.matrix.dtype == torch.float16


def test_a_copy_of_a_model_has_weights_of_its_own(fused_steps: list[Any]) -> None:
    model = made()
    expected, other = decode_steps(model), copy.deepcopy(model)
    for part in model.writer.modules():
        if isinstance(part, FmaLinear):
            part.weight.zero_()
    torch.testing.assert_close(decode_steps(other), expected, rtol=0, atol=0)
    assert len({id(step) for step in fused_steps}) == 2
