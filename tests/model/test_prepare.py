import copy

import pytest
import torch
from torch import nn

from saccade.config.load import validate
from saccade.layers import prepared
from saccade.layers.prepared import Int8Linear, Int8Table, PackedLinear
from saccade.model.build import build
from saccade.model.model import Model
from saccade.model.prepare import pack, put_quantised, quantised, scale_names
from saccade.model.run import named_weights

pytestmark = pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")


def made(*, tie: str = "all", kinds=None, **stack) -> Model:
    settings = {"layers": 2, "dim": 24, "heads": 3, "ff": 35, **stack}
    recipe = validate({"reader": {"stack": settings}, "writer": {"stack": settings, "tie": tie}}, origin="test")
    return build(recipe, source_size=29, target_size=29, kinds=kinds).eval()


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


@pytest.mark.parametrize("stack", [{}, {"gated": True, "bias": False, "norm": "pre"}, {"heads_form": "split"}])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_packed_model_computes_the_same(tie: str, stack: dict) -> None:
    got, expected = both(made(tie=tie, **stack), pack)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stack", [{}, {"gated": True, "bias": False, "norm": "pre"}, {"heads_form": "split"}])
@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_an_int8_model_computes_nearly_the_same(tie: str, stack: dict) -> None:
    got, expected = both(made(tie=tie, **stack), lambda model: put_quantised(model, quantised(model)))
    assert 0 < (got - expected).square().mean() < 0.002 * expected.square().mean()


def test_every_product_of_our_own_blocks_is_prepared() -> None:
    model = made()
    pack(model)
    assert not [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert sum(isinstance(part, PackedLinear) for part in model.modules()) == 2 * (4 + 7) + 1


def test_tied_weights_are_quantised_once() -> None:
    model = made()
    tensors = quantised(model)
    assert tensors.keys() == named_weights(model).keys() | scale_names(model)
    assert tensors["reader.embedding.tokens.weight"].dtype == torch.int8
    put_quantised(model, tensors)
    assert isinstance(model.writer.output, Int8Linear)
    assert isinstance(model.writer.embedding.tokens, Int8Table)


def test_a_block_of_a_user_stays_as_it_is() -> None:
    class Own(nn.Module):
        def __init__(self, size: int, memory_dim: int) -> None:
            super().__init__()
            self.inside = nn.Linear(memory_dim, size)

    settings = {"layers": 1, "dim": 24, "heads": 3, "ff": 35}
    recipe = validate({"reader": {"stack": settings}, "writer": {"kind": "own"}}, origin="test", kinds={"own": Own})
    model = build(recipe, source_size=29, target_size=29, kinds={"own": Own})
    pack(model)
    assert type(model.writer.inside) is nn.Linear
