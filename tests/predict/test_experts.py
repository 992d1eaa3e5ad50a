"""A Transformer with experts: packed weights, int8, bfloat16, static buffers."""

from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.kernels.cpu import prepared
from saccade.layers.blocks.experts import Experts
from saccade.predict.decode import decode
from saccade.predict.engines import graphs
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.request import Request

STACK = {"layers": 2, "dim": 32, "heads": 4, "ff": 24, "norm": "pre", "experts": {"count": 5, "every_n_layers": 2}}
PARTS: Any = {"reader": {"stack": STACK}, "writer": {"stack": STACK, "tie": "none"}}
LINES = ["abc", "gfedcba ab", "b", "a b c d e f g"]
PAIRS = [(line, line[::-1]) for line in LINES]


def sharpen(model: Any) -> None:
    """Give gates random weights, so that they depend on the input; they are initialized with zeros."""
    torch.manual_seed(3)
    for part in model.modules():
        if isinstance(part, Experts):
            torch.nn.init.normal_(part.gate.clean.weight)


def test_batched_is_one_at_a_time(make_predictor: Any) -> None:
    one = make_predictor(seed=4, **PARTS)
    sharpen(one.model)
    together = one.predict(LINES, decoding=Decoding(beam=3, min_length=2))
    assert together == [one.predict([line], decoding=Decoding(beam=3, min_length=2))[0] for line in LINES]
    assert len(set(together)) > 2


@pytest.mark.parametrize("beam", [1, 3])
def test_static_buffers_give_what_the_plain_search_gives(make_predictor: Any, beam: int) -> None:
    one = make_predictor(seed=4, **PARTS)
    sharpen(one.model)
    model, settings = one.model.eval(), Decoding(beam=beam, n_best=beam, min_length=2)
    rows = one.tokenizers.source.encode_all(LINES)
    batch, limits = Batch({"source": pad(rows)}), [9, 4, 12, 7]
    with torch.inference_mode():
        request = Request(limits, settings, batch)
        plain, found = decode(model, request).hypotheses, graphs.decode_static(model.writer, model.read(batch), request)
    assert [[item.ids for item in row] for row in plain] == [[item.ids for item in row[:beam]] for row in found]


@pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")
@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-4), ("bf16", 0.5), ("int8", 0.5)])
def test_every_precision_supports_experts(make_run: Any, precision: str, near: float) -> None:
    """Experts stay in fp32 where the layers around them are packed or int8."""
    folder = make_run("one", seed=4, **PARTS)
    plain = Predictor.load(folder, device="cpu")
    one = Predictor.load(folder, device="cpu", precision=precision)
    assert isinstance(one.model.writer.stack.blocks[1].feedforward, Experts)
    for exact, got in zip(plain.score(PAIRS), one.score(PAIRS), strict=True):
        assert got == pytest.approx(exact, abs=near)
