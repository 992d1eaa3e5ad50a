"""Which engine decodes and why others do not; custom parts that declare what they support."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from laid_out import made
from torch import Tensor, nn

import saccade.predict.decode as module
from saccade.config.protocols import Capabilities, Support
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.kernels.cpu import search_steps
from saccade.kernels.weights import WriterWeights
from saccade.layers.attention.cache import AttentionState
from saccade.layers.memory import Memory
from saccade.model.model import Model
from saccade.model.writers.tokens import Step, TokenWriter
from saccade.predict.decode import ENGINES, decode, prepare_at_once
from saccade.predict.engines import graphs
from saccade.predict.engines import replay as replay_module
from saccade.predict.engines.cpu_fused import CpuFused
from saccade.predict.engines.engine import Decision, EngineTally
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.engines.plain import PlainSearch
from saccade.predict.search.ensemble import Ensemble
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.request import Request

fused = pytest.mark.skipif(not search_steps.load_kernels(), reason="needs AVX-512 VNNI and a compiler")

SOURCES = Batch({"source": pad([[5, 6, 7, 2], [8, 2], [5, 9, 2]])})
LIMITS = [14, 9, 12]


class OwnStack(nn.Module):
    """A custom stack around one of ours, which declares what that supports, or nothing."""

    def __init__(self, inner: Any, *, declares: bool) -> None:
        super().__init__()
        self.inner, self.dim = inner, inner.dim
        self.start, self.norm = inner.start, inner.norm
        if declares:
            self.capabilities = Capabilities(static_step=True, fused_cpu_step=True)
            self.describe_step, self.start_static = inner.describe_step, inner.start_static
            self.step_static, self.project_memory = inner.step_static, inner.project_memory

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.inner(*given, **named)


class OwnWriter(nn.Module):
    """A custom writer that is no TokenWriter but contains one."""

    def __init__(self, inner: TokenWriter, *, declares: bool) -> None:
        super().__init__()
        self.inner = inner
        if declares:
            self.capabilities = Capabilities(fused_cpu_step=True)

    def describe_step(self) -> WriterWeights:
        return self.inner.describe_step()

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> AttentionState:
        return self.inner.start(memory, capacity=capacity, rows=rows)

    def step(self, inputs: Tensor, state: AttentionState, *, align: bool = False) -> Step:
        return self.inner.step(inputs, state, align=align)


def with_own_stack(*, declares: bool) -> Model:
    model = made(words=40, end=2.0)
    model.writer.stack = OwnStack(model.writer.stack, declares=declares)
    return model


def with_own_writer(*, declares: bool) -> Model:
    model = made(words=40, end=2.0)
    model.writer = OwnWriter(model.writer, declares=declares)
    return model


def assert_near(found: list[list[SearchHypothesis]], expected: list[list[SearchHypothesis]]) -> None:
    assert [[item.ids for item in group] for group in found] == [[item.ids for item in group] for group in expected]
    for group, other in zip(found, expected, strict=True):
        assert [item.score for item in group] == pytest.approx([item.score for item in other], abs=1e-3)


@fused
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("make", [with_own_stack, with_own_writer])
def test_a_part_of_your_own_that_declares_it_is_decoded_in_c(make: Any, beam: int) -> None:
    model, request = make(declares=True), Request(LIMITS, Decoding(beam=beam, n_best=beam), SOURCES)
    with torch.inference_mode():
        done = decode(model, request)
        assert done.decision.engine == "cpu-fused"
        # as our own parts are, to the last bit
        assert done.hypotheses == decode(made(words=40, end=2.0), request).hypotheses
        assert_near(done.hypotheses, PlainSearch().run(model, request))


@fused
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_own_stack, "the writer's stack OwnStack does not declare fused_cpu_step"),
        (with_own_writer, "the writer OwnWriter does not declare fused_cpu_step"),
    ],
)
def test_a_part_of_your_own_that_declares_nothing_is_decoded_plainly(make: Any, reason: str) -> None:
    model, request = make(declares=False), Request(LIMITS, Decoding(beam=3), SOURCES)
    with torch.inference_mode():
        done = decode(model, request)
        assert done.decision.engine == "plain" and done.decision.declined["cpu-fused"] == reason
        assert done.hypotheses == PlainSearch().run(model, request)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_stack_of_your_own_that_declares_it_is_decoded_on_static_buffers(make_predictor: Any, beam: int) -> None:
    model, request = make_predictor(seed=1).model.eval(), Request([9, 4, 7], Decoding(beam=beam, n_best=beam), SOURCES)
    engines = (CudaGraphs(device_type="cpu"), PlainSearch())
    plain, inner = PlainSearch().run(model, request), model.writer.stack
    for declares in (True, False):
        model.writer.stack = OwnStack(inner, declares=declares)
        with torch.inference_mode():
            done = decode(model, request, engines=engines)
        assert done.decision.engine == ("cuda-graphs" if declares else "plain")
        assert_near(done.hypotheses, plain)
    assert done.decision.declined == {"cuda-graphs": "the writer's stack OwnStack does not declare static_step"}


def test_an_ensemble_is_decoded_plainly_and_says_why(make_predictor: Any) -> None:
    model = Ensemble([make_predictor(seed=seed).model.eval() for seed in (1, 2)])
    with torch.inference_mode():
        done = decode(model, Request([9, 4, 7], Decoding(), SOURCES), engines=(CudaGraphs("cpu"), PlainSearch()))
    assert done.decision == Decision("plain", {"cuda-graphs": "the writer EnsembleWriter does not declare static_step"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"align": True}, "attention weights are requested (align)"),
        (
            {"decoding": Decoding(no_repeat_ngram=2)},
            "each step depends on previous tokens (no_repeat_ngram, coverage_penalty or stop)",
        ),
        ({"decoding": Decoding(beam=9)}, "the vocabulary is too small for so many beams"),
    ],
)
def test_graphs_say_why_they_are_not_for_a_request(make_predictor: Any, change: dict[str, Any], reason: str) -> None:
    request = replace(Request([9, 4, 7], Decoding(), SOURCES), **change)
    assert CudaGraphs("cpu").supports(make_predictor().model, request) == Support(reason)


def test_graphs_are_prepared_when_they_repay_it(make_predictor: Any, monkeypatch) -> None:
    monkeypatch.setattr(module, "ENGINES", (CudaGraphs("cpu"), PlainSearch()))
    model, request = make_predictor(seed=1).model.eval(), Request([9, 4, 7], Decoding(), SOURCES)

    def list_engines(model: Any, steps: int) -> list[str]:
        monkeypatch.setattr(graphs, "REPAYING_STEPS", steps)
        with torch.inference_mode():
            return [decode(model, request).decision.engine for _ in range(4)]

    assert list_engines(model, 28) == ["plain", "plain", "plain", "cuda-graphs"]  # 9, 18, 27 and 36 steps
    assert list_engines(make_predictor(seed=1).model.eval(), 9) == ["cuda-graphs"] * 4
    served = make_predictor(seed=1).model.eval()
    prepare_at_once(served)
    assert list_engines(served, 28) == ["cuda-graphs"] * 4


def test_slow_preparation_is_announced(monkeypatch, capsys) -> None:
    monkeypatch.setattr(replay_module, "SECONDS_IN_SILENCE", 0.01)
    with replay_module.announce_if_slow("compiling"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "compiling\n"
    monkeypatch.setattr(replay_module, "SECONDS_IN_SILENCE", 0.1)
    with replay_module.announce_if_slow("compiling"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_the_engines_in_their_order(make_predictor: Any) -> None:
    assert [engine.name for engine in ENGINES if not engine.non_autoregressive] == ["cuda-graphs", "cpu-fused", "plain"]
    assert [engine.name for engine in ENGINES if engine.non_autoregressive] == ["cuda-graphs", "plain"]
    with torch.inference_mode():
        done = decode(make_predictor(seed=1).model.eval(), Request([9, 4, 7], Decoding(), SOURCES))
    assert [*done.decision.declined] == ["ctranslate2", "cuda-graphs", "cpu-fused"]
    assert done.decision.declined["ctranslate2"] == "it was not requested (--engine ctranslate2)"


def test_a_tally_counts_and_is_reset_by_pop_counts() -> None:
    tally = EngineTally()
    tally.add(Decision("plain", {"cuda-graphs": "no GPU"}))
    tally.add(Decision("plain", {"cuda-graphs": "no GPU"}))
    taken = tally.pop_counts()
    assert taken.decoded == {"plain": 2} and taken.declined == {("cuda-graphs", "no GPU"): 2}
    assert taken.describe() == [
        "engine cuda-graphs: not used for 2 batches: no GPU", "engine plain: decoded 2 batches"
    ]  # fmt: skip
    assert not tally.decoded and not tally.declined


def test_unprepared_products_are_explained(make_predictor: Any) -> None:
    if not search_steps.load_kernels():
        pytest.skip("needs AVX-512 VNNI and a compiler")
    with torch.inference_mode():
        support = CpuFused().supports(make_predictor().model, Request([9, 4, 7], Decoding(), SOURCES))
    assert support.reason == "the writer: its weights are not packed for C"
