"""Models with other attention scores: which engines decode them, and what else declines, with the reason."""

import threading
from typing import Any

import pytest
import torch
from laid_out import SMALL, made
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import find_family
from saccade.layers import regions
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.predict.decode import decode
from saccade.predict.engines.convert import check_convertible
from saccade.predict.engines.cpu_fused import CpuFused
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.engines.plain import PlainSearch
from saccade.predict.search.request import Request

SOURCES = Batch({"source": pad([[5, 6, 7, 2], [8, 2], [5, 9, 2]])})
LIMITS = [14, 9, 12]


def make_product(query_dim: int, key_dim: int) -> Any:
    """A user's score that says nothing about itself."""

    def compute(query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT

    return compute


def build_model(score: str) -> Any:
    return made(f"reader.stack.score={score}", f"writer.stack.score={score}", words=40, end=2.0)


def load_own(*more: str, recipe: str = "transformer") -> Any:
    return load(recipe, overrides=[*more], kinds={"product": make_product})


@torch.inference_mode()
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("score", ["dot", "general", "additive", "concat"])
def test_engines_decode_what_plain_search_does_or_decline(score: str, beam: int) -> None:
    model, request = build_model(score), Request(LIMITS, Decoding(beam=beam), SOURCES)
    plain, found = decode(model, request, engines=(PlainSearch(),)).hypotheses, decode(model, request)
    assert [[one.ids for one in group] for group in found.hypotheses] == [[one.ids for one in group] for group in plain]
    expected = {
        "dot": "", "general": "the writer: its attention score is Bilinear, not a scaled dot product",
        "additive": "the writer's stack's attention score Additive is not a dot product",
        "concat": "the writer's stack's attention score Concat is not a dot product",
    }[score]  # fmt: skip
    if "C kernels" not in (reason := CpuFused().supports(model, request).reason):
        assert reason == expected
    graphs = CudaGraphs("cpu")
    assert graphs.supports(model, request).reason == ("" if score in ("dot", "general") else expected)
    if score in ("dot", "general"):
        static = decode(model, request, engines=(graphs,)).hypotheses
        assert [[one.ids for one in group] for group in static] == [[one.ids for one in group] for group in plain]


def test_a_users_score_is_never_taken_for_a_dot_product() -> None:
    """The same numbers as "dot", which every kernel knows, but by the plain search, since it declares nothing."""
    scores = ["reader.stack.score=product", "writer.stack.score=product"]
    known, request = build_model("dot"), Request(LIMITS, Decoding(beam=3), SOURCES)
    own = build(load_own(*SMALL, *scores), source_size=40, target_size=40).eval()
    torch.manual_seed(1)
    fresh = build(load_own(*SMALL, "reader.stack.score=dot", "writer.stack.score=dot"), source_size=40, target_size=40)
    own.load_state_dict(fresh.state_dict())
    fresh.eval()
    with torch.inference_mode():
        found, expected = decode(own, request), decode(fresh, request, engines=(PlainSearch(),))
    assert found.decision.engine == "plain"
    reason = "the writer's stack's attention score compute is not a dot product"
    if found.decision.declined["cpu-fused"].startswith("the writer"):
        assert found.decision.declined["cpu-fused"] == reason
    assert CudaGraphs("cpu").supports(own, request).reason == reason
    assert [[one.ids for one in group] for group in found.hypotheses] == [
        [one.ids for one in group] for group in expected.hypotheses
    ]
    assert known.capabilities.packed_rows and not own.capabilities.packed_rows


def test_a_score_that_declares_nothing_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("was compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setitem(regions._threads, threading.get_ident(), True)
    small = ["reader.stack.dim=10", "writer.stack.dim=10", "writer.stack.attention=score", "writer.stack.score=product"]
    real = torch.ones(2, 3, dtype=torch.bool)
    for recipe, more in (("bahdanau", small), ("transformer", [*SMALL, "writer.stack.score=product"])):
        model = build(load_own(*more, recipe=recipe), source_size=20, target_size=20)
        memory = torch.randn(2, 3, 10 if recipe == "bahdanau" else 48)
        x = torch.randn(2, 4, memory.shape[-1])
        model.writer.stack(x, None, Memory(memory, real))
    with pytest.raises(AssertionError, match="was compiled"):
        build_model("dot").writer.stack(torch.randn(2, 4, 48), None, Memory(memory, real))


@pytest.mark.parametrize("score", ["additive", "product"])
def test_ctranslate2_and_hugging_face_cannot_express_a_score(score: str) -> None:
    with pytest.raises(SaccadeError, match=rf"CTranslate2 cannot express reader.stack.score = '{score}'; use engine"):
        check_convertible(load_own(f"reader.stack.score={score}"))
    with pytest.raises(SaccadeError, match=rf"cannot express writer.stack.cross_score = '{score}'; use engine"):
        check_convertible(load_own(f"writer.stack.cross_score={score}"))
    for key in ("score", "cross_score"):
        with pytest.raises(SaccadeError, match=rf"gpt2: writer.stack.{key}.kind = '{score}'"):
            find_family(load_own(f"writer.stack.{key}={score}", recipe="gpt2"))
    assert find_family(load_own("writer.stack.cross_score=scaled-dot", recipe="gpt2")).name == "gpt2"


def test_a_trace_of_the_lectures_needs_dot_products(make_predictor: Any) -> None:
    from saccade.layers.attention.scores import Additive
    from saccade.lectures.trace import get_layer

    predictor = make_predictor()
    attention = get_layer(predictor, 1)
    attention.heads.set_score(Additive(8, key_dim=8, hidden_dim=3, heads=2))
    with pytest.raises(SaccadeError, match="a trace shows dot products of queries and keys"):
        get_layer(predictor, 1)
