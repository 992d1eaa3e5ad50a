"""The formulas for saved activations, compared with what autograd really saves.

GPU kernels are tested without a GPU: fake tensors pass through the same calls, and every kernel reports the shapes of
its outputs and of what it saves.
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
from saccade.plan.activations import BytesPerToken, TrainingSetup, count_saved

SIZES = ("layers=3", "dim=48", "heads=3", "ff=80")
STACKS = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in SIZES]
SOURCE, TARGET = 211, 307  # tokens
VOCABULARY = 97
# A table of positions and the like are kept once, not for each token: some bytes for each layer.
ONCE = 4096


@contextlib.contextmanager
def record_saved(model):
    """Yield {storage: bytes} of all that autograd saves, except weights and their bf16 copies."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    matrices = {(p.shape[:-1].numel(), p.shape[-1]) for p in model.parameters() if p.dim() > 1}
    matrices |= {shape[::-1] for shape in matrices}
    found: dict[int, tuple[int, object]] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and tuple(tensor.shape) not in matrices and tensor.is_floating_point():
            found[storage._cdata] = (storage.nbytes(), storage)  # kept alive, so that its address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield found


def total(found):
    return sum(size for size, _ in found.values())


@pytest.fixture
def on_gpu(monkeypatch):
    """Use GPU kernels and bfloat16 with fake tensors."""
    pytest.importorskip("triton")
    monkeypatch.setattr(residual, "can_fuse", lambda norm, x: hasattr(norm, "eps"))
    monkeypatch.setattr(kernels, "supports_packed", lambda query, packs: True)
    monkeypatch.setattr(
        feedforward.FeedForward, "_can_fuse_backward", lambda self, x: self.up.bias is not None and not self.gate
    )
    torch.set_autocast_enabled("cuda", True)  # checked by the fused add+norm
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), FakeTensorMode():
        yield
    torch.set_autocast_enabled("cuda", False)


def to_fake_tensors(model):
    """Replace parameters and buffers by fake tensors."""
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
    "full heads": ["head_projection=full"],
    "no feed-forward": ["ff=0"],
    "keys shared by heads": ["kv_heads=1"],
    "wide heads": ["head_dim=32"],
    "no norms": ["norm=none", "dropout=0.0"],
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("sums", ["fp32", "bf16"])
def test_formula_is_what_the_kernels_of_a_gpu_save(changes, sums, on_gpu):
    more = [f"{part}.stack.{change}" for part in ("reader", "writer") for change in changes]
    assert_saved([*more, f"train.residual_precision={sums}"], wide=2 if sums == "bf16" else 4)


@pytest.mark.parametrize("shared", [1, 3])
def test_rotated_queries_and_keys_are_saved(shared, on_gpu):
    parts = ("reader", "writer")
    more = [f"{part}.{item}" for part in parts for item in ("positions.kind=rotary", f"stack.kv_heads={shared}")]
    assert_saved(more, wide=4)


def assert_saved(changes, *, wide):
    """Compare what autograd saves for packed sequences of a small model with the formula."""
    recipe = load("transformer", overrides=[*STACKS, *changes, *NO_MASKS])
    with torch.device("meta"):
        model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY)
    model = to_fake_tensors(model)
    with record_saved(model) as found:
        source, target = row(SOURCE), row(TARGET)
        memory = model.reader(*source)
        model.writer(*target, memory)
    expected = count_saved(model, TrainingSetup(residual_bytes=wide)).get_total(SOURCE, TARGET)
    assert total(found) == pytest.approx(expected, abs=ONCE)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_second_pass_is_counted_like_a_writer(norm, on_gpu):
    both = [f"{part}.stack.{size}" for part in ("reader", "reader.second_pass") for size in (*SIZES, f"norm={norm}")]
    recipe = load("classify", overrides=[*both, "reader.dropout=0.0", "reader.second_pass.dropout=0.0"])
    with torch.device("meta"):
        model = build(recipe, source_size=VOCABULARY, target_size=3)
    model = to_fake_tensors(model)
    with record_saved(model) as found:
        model.reader(*row(SOURCE))
    head = 4 * 48 * SOURCE  # the last states, of which the writer saves one per sequence
    assert total(found) == pytest.approx(
        count_saved(model, TrainingSetup(residual_bytes=4)).get_total(SOURCE, 0) - head, abs=ONCE
    )


NO_MASKS = ["reader.dropout=0.0", "writer.dropout=0.0"]  # a CPU saves other masks


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_formula_is_what_a_cpu_saves_within_five_percent(norm):
    """In float32 with one sequence of 300 tokens, for which attention saves its log-sum-exp."""
    stack = schema.TransformerStack(layers=3, dim=48, heads=3, ff=80, norm=norm, dropout=0.0)
    writer = schema.TokenWriter(stack=stack, dropout=0.0, tie="output")
    model = Model(None, build_writer(writer, size=VOCABULARY)).train()
    with record_saved(model) as found:
        model.writer(torch.zeros(1, 300, dtype=torch.int64), None, None)
    way = TrainingSetup(matmul_bytes=4, residual_bytes=4, length=300)
    assert total(found) == pytest.approx(count_saved(model, way).get_total(0, 300), rel=0.05)


def test_recompute_keeps_one_layer_and_all_inputs():
    model = build(load("transformer", overrides=STACKS), source_size=VOCABULARY, target_size=VOCABULARY)
    all_of_it, few = count_saved(model, TrainingSetup()), count_saved(model, TrainingSetup(recompute=True))
    reader_layer = (
        all_of_it.source - 48 - 3 * 2 * (48 + 2 * 48)
    ) / 3  # without dropout mask and the keys and values of 3 writer layers
    assert few.source == 48 + reader_layer + 3 * 4 * 48 + 2 * (48 + 2 * 48)
    assert few.target < all_of_it.target


def test_by_hand():
    """One layer, 2 heads of width 3: n = 2, w = 4, D = 6, F = 10."""
    stack = schema.TransformerStack(layers=1, dim=6, heads=2, ff=10)
    writer = schema.TokenWriter(stack=stack, dropout=0.0, tie="output")
    model = Model(None, build_writer(writer, size=11))
    attention = 2 * 6 + 3 * 2 * 6 + 2 * 6
    network = 2 * 6 + 2 * 10
    norms = 2 * (4 * 6 + 8)
    assert count_saved(model, TrainingSetup()) == BytesPerToken(0, attention + network + norms)
    assert count_saved(model, TrainingSetup(length=1000)) == BytesPerToken(0, attention + network + norms + 4 * 2)


def test_attention_weights_with_a_bias_are_saved():
    recipe = load("transformer", overrides=[*STACKS, "reader.positions.kind=alibi", "writer.positions.kind=alibi"])
    model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY)
    short, long = (count_saved(model, TrainingSetup(length=length)) for length in (10, 20))
    assert long.source - short.source == 3 * 3 * 10 * (4 + 2)


def test_hidden_layers_of_scores_are_saved():
    """Weights (4 bytes), scores (2) and a hidden layer of 5 (2 each) for each pair; a dot product saves no weights."""
    additive, general = (
        build(load("transformer", overrides=[*STACKS, f"reader.stack.score={score}"]), source_size=99, target_size=99)
        for score in ("{ kind = 'additive', hidden_dim = 5 }", "general")
    )
    short, long = (count_saved(additive, TrainingSetup(length=length)) for length in (10, 20))
    assert long.source - short.source == 3 * 3 * 10 * (4 + 2 + 5 * 2)
    short, long = (count_saved(general, TrainingSetup(length=length)) for length in (10, 20))
    assert long.source == short.source


def test_other_stacks_are_not_known():
    model = build(load("gnmt"), source_size=VOCABULARY, target_size=VOCABULARY)
    assert count_saved(model, TrainingSetup()) is None


def test_an_embedding_saves_dropout_mask_and_norm_input():
    plain = load("transformer", overrides=[*STACKS, *NO_MASKS])
    more = load("transformer", overrides=[*STACKS, "reader.embedding_norm=true", "writer.dropout=0.0"])
    first, second = (
        count_saved(build(r, source_size=VOCABULARY, target_size=VOCABULARY), TrainingSetup()) for r in (plain, more)
    )
    assert second.source - first.source == 48 + 4 * 48 + 8
    assert second.target == first.target
