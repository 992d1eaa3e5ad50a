"""What is said to be kept for the backward pass against what autograd really saves.

The kernels of a GPU are asked here too, without a GPU: tensors without numbers go through the very same calls, and
every kernel says what shape it gives and what it saves.
"""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from saccade.config import schema
from saccade.config.load import load
from saccade.layers.attention import backends as kernels
from saccade.layers.blocks import feedforward, residual
from saccade.layers.packing import Packing
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.plan.activations import Kept, Way, kept

SIZES = ("layers=3", "dim=48", "heads=3", "ff=80")
STACKS = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in SIZES]
SOURCE, TARGET = 211, 307  # tokens
VOCABULARY = 97
# A table of positions and the like are kept once, not for each token: some bytes for each layer.
ONCE = 4096


@contextlib.contextmanager
def saved(model):
    """{storage: bytes} of all that autograd saves and that is no weight, nor a narrow copy of one."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    matrices = {(p.shape[:-1].numel(), p.shape[-1]) for p in model.parameters() if p.dim() > 1}
    matrices |= {shape[::-1] for shape in matrices}
    found: dict[int, tuple[int, object]] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and tuple(tensor.shape) not in matrices and tensor.is_floating_point():
            found[storage._cdata] = (storage.nbytes(), storage)  # held, so that its address is not given again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield found


def total(found):
    return sum(size for size, _ in found.values())


@pytest.fixture
def on_gpu(monkeypatch):
    """The kernels of a GPU and bfloat16, for tensors without numbers."""
    pytest.importorskip("triton")
    monkeypatch.setattr(residual, "can_fuse", lambda norm, x: hasattr(norm, "eps"))
    monkeypatch.setattr(kernels, "packs", lambda query, packs: True)
    monkeypatch.setattr(feedforward.FeedForward, "_fuses", lambda self, x: self.up.bias is not None and not self.gate)
    torch.set_autocast_enabled("cuda", True)  # asked for by what joins norm and sum
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), FakeTensorMode():
        yield
    torch.set_autocast_enabled("cuda", False)


def without_numbers(model):
    """The model with tensors of the mode that is on."""
    made = {p: torch.nn.Parameter(torch.empty(p.shape)) for p in model.parameters()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = None if parameter is None else made[parameter]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty(buffer.shape, dtype=buffer.dtype)
    return model.train()


def row(tokens, longest=32):
    ids = torch.empty(1, tokens, dtype=torch.int64)
    places = [torch.empty(1, tokens, dtype=torch.int64) for _ in range(2)]
    return ids, Packing(torch.empty(9, dtype=torch.int32), *places, torch.empty(1, tokens, dtype=torch.bool), longest)


CASES = {
    "as in the paper": [],
    "norms before": ["norm=pre"],
    "gelu": ["activation=gelu"],
    "gelu without kernels": ["activation=gelu", "bias=false"],
    "a gate": ["activation=silu", "gated=true"],
    "full heads": ["heads_form=full"],
    "no feed-forward": ["ff=0"],
    "keys shared by heads": ["kv_heads=1"],
    "wide heads": ["head_dim=32"],
    "no norms": ["norm=none", "dropout=0.0"],
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("sums", ["fp32", "bf16"])
def test_formula_is_what_the_kernels_of_a_gpu_save(changes, sums, on_gpu):
    more = [f"{part}.stack.{change}" for part in ("reader", "writer") for change in changes]
    assert_saved([*more, f"train.residual={sums}"], wide=2 if sums == "bf16" else 4)


@pytest.mark.parametrize("shared", [1, 3])
def test_turned_queries_and_keys_are_kept(shared, on_gpu):
    parts = ("reader", "writer")
    more = [f"{part}.{item}" for part in parts for item in ("positions.kind=rotary", f"stack.kv_heads={shared}")]
    assert_saved(more, wide=4)


def assert_saved(changes, *, wide):
    """What autograd saves for packed rows of a small model is what the formula says."""
    recipe = load("transformer", overrides=[*STACKS, *changes, *NO_MASKS])
    with torch.device("meta"):
        model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY)
    model = without_numbers(model)
    with saved(model) as found:
        source, target = row(SOURCE), row(TARGET)
        memory = model.reader(*source)
        model.writer(*target, memory)
    expected = kept(model, Way(wide=wide)).of(SOURCE, TARGET)
    assert total(found) == pytest.approx(expected, abs=ONCE)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_second_reading_is_counted_as_what_writes_is(norm, on_gpu):
    both = [f"{part}.stack.{size}" for part in ("reader", "reader.again") for size in (*SIZES, f"norm={norm}")]
    recipe = load("classify", overrides=[*both, "reader.dropout=0.0", "reader.again.dropout=0.0"])
    with torch.device("meta"):
        model = build(recipe, source_size=VOCABULARY, target_size=3)
    model = without_numbers(model)
    with saved(model) as found:
        model.reader(*row(SOURCE))
    head = 4 * 48 * SOURCE  # its last states, of which the writer keeps one for each text
    assert total(found) == pytest.approx(kept(model, Way(wide=4)).of(SOURCE, 0) - head, abs=ONCE)


NO_MASKS = ["reader.dropout=0.0", "writer.dropout=0.0"]  # these are drawn otherwise on a CPU


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_formula_is_what_a_cpu_saves_within_five_percent(norm):
    """In float32, one text of 300 tokens: attention of long texts keeps its log-sums."""
    stack = schema.TransformerStack(layers=3, dim=48, heads=3, ff=80, norm=norm, dropout=0.0)
    writer = schema.TokenWriter(stack=stack, dropout=0.0, tie="output")
    model = Model(None, build_writer(writer, size=VOCABULARY)).train()
    with saved(model) as found:
        model.writer(torch.zeros(1, 300, dtype=torch.int64), None, None)
    way = Way(narrow=4, wide=4, length=300)
    assert total(found) == pytest.approx(kept(model, way).of(0, 300), rel=0.05)


def test_recompute_keeps_one_layer_and_all_inputs():
    model = build(load("transformer", overrides=STACKS), source_size=VOCABULARY, target_size=VOCABULARY)
    all_of_it, few = kept(model, Way()), kept(model, Way(recompute=True))
    reader_layer = (all_of_it.source - 48 - 3 * 2 * (48 + 2 * 48)) / 3  # without masks and what 3 writer layers keep
    assert few.source == 48 + reader_layer + 3 * 4 * 48 + 2 * (48 + 2 * 48)
    assert few.target < all_of_it.target


def test_by_hand():
    """One layer that reads, 2 heads of 3: n = 2, w = 4, D = 6, F = 10."""
    stack = schema.TransformerStack(layers=1, dim=6, heads=2, ff=10)
    writer = schema.TokenWriter(stack=stack, dropout=0.0, tie="output")
    model = Model(None, build_writer(writer, size=11))
    attention = 2 * 6 + 3 * 2 * 6 + 2 * 6
    network = 2 * 6 + 2 * 10
    norms = 2 * (4 * 6 + 8)
    assert kept(model, Way()) == Kept(0, attention + network + norms)
    assert kept(model, Way(length=1000)) == Kept(0, attention + network + norms + 4 * 2)


def test_scores_that_get_a_term_are_kept_whole():
    recipe = load("transformer", overrides=[*STACKS, "reader.positions.kind=alibi", "writer.positions.kind=alibi"])
    model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY)
    short, long = (kept(model, Way(length=length)) for length in (10, 20))
    assert long.source - short.source == 3 * 3 * 10 * (4 + 2)


def test_other_stacks_are_not_known():
    model = build(load("gnmt"), source_size=VOCABULARY, target_size=VOCABULARY)
    assert kept(model, Way()) is None


def test_an_input_keeps_masks_and_what_is_normalised():
    plain = load("transformer", overrides=[*STACKS, *NO_MASKS])
    more = load("transformer", overrides=[*STACKS, "reader.embedding_norm=true", "writer.dropout=0.0"])
    first, second = (kept(build(r, source_size=VOCABULARY, target_size=VOCABULARY), Way()) for r in (plain, more))
    assert second.source - first.source == 48 + 4 * 48 + 8
    assert second.target == first.target
