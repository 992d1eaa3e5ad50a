import copy
import platform

import pytest
import torch
from torch import nn

from saccade.config.load import validate
from saccade.kernels.cpu import prepared
from saccade.kernels.cpu.fma import FmaLinear
from saccade.kernels.cpu.prepared import CpuLayout, Int8Embedding, Int8Linear, PackedLinear
from saccade.kernels.cpu.vnni import VnniLinear
from saccade.layers.blocks.feedforward import FeedForward
from saccade.model.build.model import build
from saccade.model.inference import (
    get_scale_names,
    keep_freed_memory,
    load_quantized_weights,
    prepack_weights,
    quantize_weights,
)
from saccade.model.model import Model
from saccade.model.run import named_weights

pytestmark = pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")


def build_model(*, tie: str = "all", kinds=None, **stack) -> Model:
    settings = {"layers": 2, "dim": 24, "heads": 3, "ff": 35, **stack}
    recipe = validate({"reader": {"stack": settings}, "writer": {"stack": settings, "tie": tie}}, origin="test")
    return build(recipe, source_size=29, target_size=29).eval()


def logits(model: Model) -> torch.Tensor:
    ids, mask = torch.randint(0, 29, (3, 7)), torch.arange(7) < torch.tensor([[7], [4], [2]])
    with torch.inference_mode():
        return model.writer.head(model.writer(ids, mask, model.reader(ids, mask)))


def both(model: Model, change) -> tuple[torch.Tensor, torch.Tensor]:
    other = copy.deepcopy(model)
    change(other)
    torch.manual_seed(1)
    expected = logits(model)
    torch.manual_seed(1)
    return logits(other), expected


@pytest.mark.parametrize("stack", [{}, {"gated": True, "bias": False, "norm": "pre"}, {"head_projection": "split"}])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_packed_model_computes_the_same(tie: str, stack: dict) -> None:
    got, expected = both(build_model(tie=tie, **stack), prepack_weights)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stack", [{}, {"gated": True, "bias": False, "norm": "pre"}, {"head_projection": "split"}])
@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_an_int8_model_computes_nearly_the_same(tie: str, stack: dict) -> None:
    got, expected = both(
        build_model(tie=tie, **stack), lambda model: load_quantized_weights(model, quantize_weights(model))
    )
    assert 0 < (got - expected).square().mean() < 0.002 * expected.square().mean()


def test_every_product_of_our_own_blocks_is_prepared() -> None:
    model = build_model()
    prepack_weights(model)
    assert not [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert sum(isinstance(part, PackedLinear | FmaLinear) for part in model.modules()) == 2 * (4 + 7) + 1


@pytest.mark.parametrize(
    "change", [prepack_weights, lambda model: load_quantized_weights(model, quantize_weights(model))]
)
def test_only_a_lone_relu_moves_into_the_product_before_it(change) -> None:
    for settings, left in (({}, 0), ({"gated": True}, 4), ({"activation": "gelu"}, 4)):
        model = build_model(**settings)
        change(model)
        assert sum(isinstance(part, FeedForward) for part in model.modules()) == left


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc to keep memory")
def test_memory_of_a_batch_is_kept_for_the_next() -> None:
    import resource

    def new_pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(2 << 20) for _ in range(16)]  # 128 MiB
        del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    new_pages()
    assert new_pages() < 16_384  # of 32,768; some blocks more may be needed, since they begin at round addresses


def test_tied_weights_are_quantised_once() -> None:
    model = build_model()
    tensors = quantize_weights(model)
    assert tensors.keys() == named_weights(model).keys() | get_scale_names(model)
    assert tensors["reader.embedding.tokens.weight"].dtype == torch.int8
    load_quantized_weights(model, tensors)
    assert isinstance(model.writer.output, Int8Linear | VnniLinear)
    assert isinstance(model.writer.embedding.tokens, Int8Embedding)


def test_a_tied_matrix_that_stays_in_float_is_kept_with_the_int8_weights() -> None:
    """The output matrix of a masked language model is its token table, and only the table is replaced."""
    stack = {"layers": 1, "dim": 24, "heads": 3, "ff": 35}
    tables = {"task": "encode", "reader": {"stack": stack}, "writer": {"kind": "masked"}, "train": {"metric": "loss"},
              "objectives": [{"kind": "masked"}], "tokenizer": {"mask_token": True}}  # fmt: skip
    first, second = (build(validate(tables, origin="test"), source_size=29, target_size=29).eval() for _ in range(2))
    trained = first.writer.output.weight.detach().clone()
    tensors = quantize_weights(first)
    assert not torch.equal(second.writer.output.weight, trained)  # as when int8 weights are read from a file
    for model in (first, second):
        load_quantized_weights(model, tensors)
        assert torch.equal(model.writer.output.weight, trained)
    assert torch.equal(first.reader.embedding.tokens.weight, second.reader.embedding.tokens.weight)


def test_a_block_of_a_user_stays_as_it_is() -> None:
    class Own(nn.Module):
        def __init__(self, size: int, memory_dim: int) -> None:
            super().__init__()
            self.inside = nn.Linear(memory_dim, size)

    settings = {"layers": 1, "dim": 24, "heads": 3, "ff": 35}
    recipe = validate({"reader": {"stack": settings}, "writer": {"kind": "own"}}, origin="test", kinds={"own": Own})
    model = build(recipe, source_size=29, target_size=29)
    prepack_weights(model)
    assert type(model.writer.inside) is nn.Linear


class Declared(nn.Module):
    """A custom block that declares its linear layer."""

    cpu_layout = CpuLayout(("inner",))

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hidden = nn.Linear(24, 24), nn.Linear(24, 24)


def test_a_block_of_a_user_is_prepared_where_it_declares_its_products() -> None:
    model = build_model()
    model.reader.stack.more = Declared()
    prepack_weights(model)
    assert isinstance(model.reader.stack.more.inner, FmaLinear | PackedLinear)
    assert type(model.reader.stack.more.hidden) is nn.Linear
