"""Weights that are shown are weights that were used: sums of values with these weights give what the model gives.

Each attention layer is replaced by one that computes nothing but the sum of its values, with the weights that were
shown. Its output, and that of the whole model, must be those of the model as it runs when nobody looks.
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
from saccade.layers.attention.alignment import Look
from saccade.layers.attention.multihead import CrossAttention, SelfAttention, repeat_heads
from saccade.layers.blocks.convolution import HALF, MemoryAttention
from saccade.layers.record import record
from saccade.layers.regions import compiled_regions
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.search.likelihood import seen_while_writing
from saccade.train.batches.pack import pack

SIZE = 17
STACK = {"layers": 2, "dim": 22, "heads": 11, "ff": 13}
RECURRENT = {"kind": "recurrent", "dim": 22, "cell": "gru"}
PLAIN = {"positions": {"kind": "none"}}
CONVOLUTION = {"kind": "convolution", "layers": 3, "dim": 22, "hidden": 13}


def both(stack: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"reader": {"stack": stack, **parts}, "writer": {"stack": stack, "tie": "none", **parts}}


def recurrent(**settings: Any) -> dict[str, Any]:
    reader = {"stack": {**RECURRENT, "bidirectional": True}, **PLAIN}
    return {"reader": reader, "writer": {"stack": {**RECURRENT, **settings}, "tie": "none", **PLAIN}}


KINDS: dict[str, tuple[dict[str, Any], int]] = {  # and how many layers attend
    "transformer": (both(STACK), 6),
    "windows": (both({**STACK, "window": 2}), 6),
    "rotary positions, grouped heads": (both({**STACK, "kv_heads": 1}, positions={"kind": "rotary"}), 6),
    "relative positions (Shaw)": (both(STACK, positions={"kind": "shaw", "distance": 3}), 6),
    "relative positions (T5)": (both(STACK, positions={"kind": "bucketed"}), 6),
    "linear penalties": (both(STACK, positions={"kind": "alibi"}), 6),
    "split heads": (both({**STACK, "heads_form": "split"}), 6),
    "shared layers": (both({**STACK, "share": True}), 6),
    "language model": ({"task": "write", "reader": {"kind": "none"}, "writer": {"stack": STACK, "tie": "none"}}, 2),
    "filling": ({**both(STACK), "objectives": [{"kind": "fill"}]}, 6),
    "additive": (recurrent(attention="additive", layers=2), 1),
    "general": (recurrent(attention="general"), 1),
    "dot, all at once": (recurrent(attention="dot", input_feeding=False), 1),
    "convolution": (both(CONVOLUTION, positions={"kind": "learned", "length": 24}, scale=False), 3),
}
KINDS["filling"][0]["writer"] |= {"kind": "fill", "reach": 5}


def make(kind: str) -> Model:
    values = {"data": {"max_length": 24}, **KINDS[kind][0]}
    torch.manual_seed(1)
    return build(validate(values, origin="test"), source_size=SIZE, target_size=SIZE).eval()


def texts(model: Model) -> Batch:
    """Two pairs of unequal lengths."""
    generator = torch.Generator().manual_seed(2)

    def some(length: int) -> list[int]:
        return [*torch.randint(4, SIZE, (length,), generator=generator).tolist(), END]

    source = {} if model.reader is None else {"source": pad([some(7), some(3)])}
    return Batch({**source, "target": pad([some(5), some(8)])})


def written(model: Model, batch: Batch) -> Tensor:
    target = batch["target"]
    seen = seen_while_writing(model.writer, target)
    return model.writer(seen, target.mask, model.read(batch))


# ---- layers that only sum


def sum_self(layer: SelfAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, **how: Any) -> Tensor:
        query, _, value = layer.turned(x, masks.positions(x.shape[1], x.device))
        return layer.heads.out(torch.einsum("bhqk,bkhe->bqhe", next(weights), repeat_heads(query, value)).flatten(2))

    return forward


def sum_cross(layer: CrossAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, memory: Any, *, mask: Any = None, packing: Any = None) -> Tensor:
        return layer.heads.out(torch.einsum("bhqk,bkhe->bqhe", next(weights), memory.values).flatten(2))

    return forward


def sum_look(layer: Look, weights: Iterator[Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    shown, begin = next(weights)[:, 0], 0

    def forward(query: Tensor, source: Any) -> tuple[Tensor, Tensor]:
        nonlocal begin
        part = shown[:, begin : begin + query.shape[1]]
        begin += query.shape[1]
        return part @ source.values, part

    return forward


def sum_memory(layer: MemoryAttention, weights: Iterator[Tensor]) -> Callable[..., Tensor]:
    def forward(h: Tensor, written: Tensor, read: Any, matrices: Any) -> Tensor:
        return (layer.out(next(weights)[:, 0] @ read.values, matrices[1]) + h) * HALF

    return forward


SUMS: dict[type[nn.Module], Callable[[Any, Iterator[Tensor]], Callable[..., Any]]] = {
    SelfAttention: sum_self, CrossAttention: sum_cross, Look: sum_look, MemoryAttention: sum_memory
}  # fmt: skip


def calls(maps: dict[str, Tensor], address: str) -> Iterator[Tensor]:
    """The weights of each call of one layer."""
    names = (address if not call else f"{address}#{call}" for call in count())
    for name in names:
        if name not in maps:
            return
        yield maps[name]


@contextmanager
def only_sums(model: Model, maps: dict[str, Tensor]) -> Iterator[None]:
    layers = [(name, module) for name, module in model.named_modules() if type(module) in SUMS]
    for name, module in layers:
        module.forward = SUMS[type(module)](module, calls(maps, name))
    yield
    for _, module in layers:
        del module.forward


@contextmanager
def outputs(model: Model) -> Iterator[list[tuple[str, Tensor]]]:
    """What each attention layer gives at each call."""
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


def shown(model: Model, batch: Batch) -> dict[str, Tensor]:
    with record(model) as maps:
        written(model, batch)
    return maps


def assert_near(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_shown_weights_are_those_of_the_fused_path(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    maps = shown(model, batch)
    assert len(maps) == KINDS[kind][1]

    with outputs(model) as wanted:
        whole = written(model, batch)
    with only_sums(model, maps), outputs(model) as got:
        again = written(model, batch)

    assert [name for name, _ in got] == [name for name, _ in wanted]
    real = {
        name: batch[part].mask for name, part in (("reader", "source"), ("writer", "target")) if part in batch.fields
    }
    for (name, a), (_, b) in zip(got, wanted, strict=True):
        inside = real[name.partition(".")[0]] if a.shape[1] > 1 else slice(None)  # padding may look at anything
        assert_near(a[inside], b[inside])
    assert_near(again[batch["target"].mask], whole[batch["target"].mask])


@pytest.mark.parametrize("kind", [name for name, (_, layers) in KINDS.items() if layers != 1 and name != "convolution"])
@torch.no_grad()
def test_shown_weights_are_those_of_packed_rows(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    target, row = batch["target"], pack(batch)
    seen = seen_while_writing(model.writer, target)[target.mask][None]  # text after text, as a packed row is
    wanted = model.writer(seen, row["target"].mask, model.read(row))
    with only_sums(model, shown(model, batch)):
        got = written(model, batch)
    assert_near(got[target.mask], wanted[0])


@torch.no_grad()
def check_compiled(kind: str) -> None:
    model = make(kind)
    batch = texts(model)
    with compiled_regions():
        wanted = written(model, batch)
        with only_sums(model, shown(model, batch)), record(model):  # in which nothing runs compiled
            got = written(model, batch)
    assert_near(got[batch["target"].mask], wanted[batch["target"].mask])


COMPILED = ["transformer", "rotary positions, grouped heads", "additive", "convolution"]


@pytest.mark.slow
def test_shown_weights_are_those_of_compiled_parts() -> None:
    """In a process of its own: the checks of shapes that the tests add to every function are none of a graph."""
    here = Path(__file__)
    script = f"import {here.stem} as test\nfor kind in {COMPILED}:\n    test.check_compiled(kind)"
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=here.parent, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@torch.no_grad()
def test_other_weights_would_be_noticed() -> None:
    """The check itself can fail: a thousandth more on one weight is too much."""
    model = make("transformer")
    batch = texts(model)
    maps, wanted = shown(model, batch), written(model, batch)
    maps["writer.stack.blocks.0.cross"][0, 3, 2, 1] += 1e-3
    with only_sums(model, maps):
        got = written(model, batch)
    with pytest.raises(AssertionError):
        assert_near(got[0], wanted[0])
