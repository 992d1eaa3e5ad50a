"""Recorded attention weights are those that were used: weighted sums of the values give the model's outputs.

Each attention layer is replaced by one that only sums its values with the recorded weights. Its output, and that of the
whole model, must equal those of the model without recording.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END
from saccade.layers.attention import masks
from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.attention.multihead import CrossAttention, PositionalAttention, SelfAttention, repeat_heads
from saccade.layers.blocks.convolution import SQRT_HALF, ConvS2SAttention
from saccade.layers.record import record
from saccade.layers.regions import compiled_regions
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.search.likelihood import build_writer_inputs
from saccade.train.batches.pack import pack_batch

SIZE = 17
STACK = {"layers": 2, "dim": 22, "heads": 11, "ff": 13}
RECURRENT = {"kind": "recurrent", "dim": 22, "cell": "gru"}
PLAIN = {"positions": {"kind": "none"}}
CONVOLUTION = {"kind": "convolution", "layers": 3, "dim": 22, "hidden_dim": 13}


def both(stack: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"reader": {"stack": stack, **parts}, "writer": {"stack": stack, "tie": "none", **parts}}


def recurrent(**settings: Any) -> dict[str, Any]:
    reader = {"stack": {**RECURRENT, "bidirectional": True}, **PLAIN}
    return {"reader": reader, "writer": {"stack": {**RECURRENT, **settings}, "tie": "none", **PLAIN}}


KINDS: dict[str, tuple[dict[str, Any], int]] = {  # and how many layers attend
    "transformer": (both(STACK), 6),
    "windows": (both({**STACK, "window": 2}), 6),
    "rotary positions, grouped heads": (both({**STACK, "kv_heads": 1}, positions={"kind": "rotary"}), 6),
    "relative positions (Shaw)": (both(STACK, positions={"kind": "shaw", "max_distance": 3}), 6),
    "relative positions (T5)": (both(STACK, positions={"kind": "bucketed"}), 6),
    "linear penalties": (both(STACK, positions={"kind": "alibi"}), 6),
    "split heads": (both({**STACK, "head_projection": "split"}), 6),
    "shared layers": (both({**STACK, "share_layers": True}), 6),
    "language model": (
        {"task": "language-model", "reader": {"kind": "none"}, "writer": {"stack": STACK, "tie": "none"}},
        2,
    ),
    "filling": ({**both(STACK), "objectives": [{"kind": "fill"}]}, 6),
    "fertilities": ({**both(STACK), "objectives": [{"kind": "fertility"}]}, 8),
    "additive": (recurrent(attention="additive", layers=2), 1),
    "general": (recurrent(attention="general"), 1),
    "dot, all at once": (recurrent(attention="dot", input_feeding=False), 1),
    "convolution": (both(CONVOLUTION, positions={"kind": "learned", "length": 24}, scale_embedding=False), 3),
}
KINDS["filling"][0]["writer"] |= {"kind": "fill", "max_length_difference": 5}
KINDS["fertilities"][0]["writer"] |= {"kind": "fertility"}


def make(kind: str) -> Model:
    values = {"data": {"max_length": 24}, **KINDS[kind][0]}
    torch.manual_seed(1)
    return build(validate(values, origin="test"), source_size=SIZE, target_size=SIZE).eval()


def texts(model: Model) -> Batch:
    """Return two pairs of unequal lengths."""
    generator = torch.Generator().manual_seed(2)

    def some(length: int) -> list[int]:
        return [*torch.randint(4, SIZE, (length,), generator=generator).tolist(), END]

    source = {} if model.reader is None else {"source": pad([some(7), some(3)])}
    return Batch({**source, "target": pad([some(5), some(8)])})


def run_writer(model: Model, batch: Batch) -> Tensor:
    target, memory = batch["target"], model.read(batch)
    seen = build_writer_inputs(model.writer, target, memory)
    return model.writer(seen, target.mask, memory)


# ---- layers that only sum


def sum_self(layer: SelfAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, **how: Any) -> Tensor:
        query, _, value = layer.project_heads(x, masks.make_positions(x.shape[1], x.device))
        return layer.heads.out(torch.einsum("bhqk,bkhe->bqhe", next(weights), repeat_heads(query, value)).flatten(2))

    return forward


def sum_cross(layer: CrossAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, memory: Any, *, mask: Any = None, packing: Any = None) -> Tensor:
        return layer.heads.out(torch.einsum("bhqk,bkhe->bqhe", next(weights), memory.values).flatten(2))

    return forward


def sum_soft(layer: SoftAttention, weights: Iterator[Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    record_weights, begin = next(weights)[:, 0], 0

    def forward(query: Tensor, source: Any) -> tuple[Tensor, Tensor]:
        nonlocal begin
        part = record_weights[:, begin : begin + query.shape[1]]
        begin += query.shape[1]
        return part @ source.values, part

    return forward


def sum_memory(layer: ConvS2SAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(h: Tensor, run_writer: Tensor, read: Any, matrices: Any) -> Tensor:
        return (layer.out(next(weights)[:, 0] @ read.values, matrices[1]) + h) * SQRT_HALF

    return forward


SUMS: dict[type[nn.Module], Callable[[Any, Iterator[Tensor]], Callable[..., Any]]] = {
    SelfAttention: sum_self, PositionalAttention: sum_self, CrossAttention: sum_cross, SoftAttention: sum_soft,
    ConvS2SAttention: sum_memory,
}  # fmt: skip


def iterate_calls(maps: dict[str, Tensor], address: str) -> Iterator[Tensor]:
    """Yield the weights of each call of one layer."""
    names = (address if not call else f"{address}#{call}" for call in count())
    for name in names:
        if name not in maps:
            return
        yield maps[name]


@contextmanager
def replace_attention(model: Model, maps: dict[str, Tensor]) -> Iterator[None]:
    """Replace all attention layers by sums with the recorded weights."""
    layers = [(name, module) for name, module in model.named_modules() if type(module) in SUMS]
    for name, module in layers:
        module.forward = SUMS[type(module)](module, iterate_calls(maps, name))
    yield
    for _, module in layers:
        del module.forward


@contextmanager
def collect_outputs(model: Model) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield a list that receives the output of each attention layer at each call."""
    found: list[tuple[str, Tensor]] = []
    hooks = [
        module.register_forward_hook(
            lambda _, __, y, name=name: found.append((name, y if isinstance(y, Tensor) else y[0]))
        )
        for name, module in model.named_modules()
        if type(module) in SUMS
    ]
    yield found
    for hook in hooks:
        hook.remove()


def record_weights(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return the recorded weights of a forward pass."""
    with record(model) as maps:
        run_writer(model, batch)
    return maps


def assert_near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_recorded_weights_are_those_of_the_fused_path(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    maps = record_weights(model, batch)
    assert len(maps) == KINDS[kind][1]

    with collect_outputs(model) as expected:
        whole = run_writer(model, batch)
    with replace_attention(model, maps), collect_outputs(model) as got:
        again = run_writer(model, batch)

    assert [name for name, _ in got] == [name for name, _ in expected]
    real = {
        name: batch[part].mask for name, part in (("reader", "source"), ("writer", "target")) if part in batch.fields
    }
    for (name, a), (_, b) in zip(got, expected, strict=True):
        inside = real[name.partition(".")[0]] if a.shape[1] > 1 else slice(None)  # padding may attend to anything
        assert_near(a[inside], b[inside])
    assert_near(again[batch["target"].mask], whole[batch["target"].mask])


@pytest.mark.parametrize("kind", [name for name, (_, layers) in KINDS.items() if layers != 1 and name != "convolution"])
@torch.no_grad()
def test_recorded_weights_are_those_of_packed_rows(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    target, row = batch["target"], pack_batch(batch)
    seen = build_writer_inputs(model.writer, target, model.read(batch))[target.mask][
        None
    ]  # concatenated, as in a packed row
    expected = model.writer(seen, row["target"].mask, model.read(row))
    with replace_attention(model, record_weights(model, batch)):
        got = run_writer(model, batch)
    assert_near(got[target.mask], expected[0])


@torch.no_grad()
def check_compiled(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    with compiled_regions():
        expected = run_writer(model, batch)
        with replace_attention(model, record_weights(model, batch)), record(model):  # recording disables compiled code
            got = run_writer(model, batch)
    assert_near(got[batch["target"].mask], expected[batch["target"].mask])


COMPILED = ["transformer", "rotary positions, grouped heads", "additive", "convolution"]


@pytest.mark.slow
def test_recorded_weights_are_those_of_compiled_parts() -> None:
    """In a separate process, because the shape checks that the tests add to every function do not compile."""
    here = Path(__file__)
    script = f"import {here.stem} as test\nfor kind in {COMPILED}:\n    test.check_compiled(kind)"
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=here.parent, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@torch.no_grad()
def test_the_check_notices_other_weights() -> None:
    """The check can fail: 1e-3 more on one weight is too much."""
    model = make("transformer")
    batch = texts(model)
    maps, expected = record_weights(model, batch), run_writer(model, batch)
    maps["writer.stack.blocks.0.cross"][0, 3, 2, 1] += 1e-3
    with replace_attention(model, maps):
        got = run_writer(model, batch)
    with pytest.raises(AssertionError):
        assert_near(got[0], expected[0])
