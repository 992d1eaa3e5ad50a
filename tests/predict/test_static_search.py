"""The search on static buffers against the plain search: the same ids for all lengths, beams and limits."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config import schema
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.kernels import failures
from saccade.kernels.next_token import DecodingConstraints, select_top_tokens
from saccade.model.build.model import build_writer
from saccade.predict.decode import decode
from saccade.predict.engines import graphs
from saccade.predict.engines.engine import Decision
from saccade.predict.engines.job import round_up_batch_size, round_up_length
from saccade.predict.engines.mask_predict_graphs import MaskPredictGraphs
from saccade.predict.engines.plain import PlainSearch
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.request import Request

PREFIX = [5, 9]
ON_CPU = graphs.CudaGraphs(device_type="cpu")  # steps as plain calls


def sources(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [[*torch.randint(4, 12, (n - 1,), generator=generator).tolist(), 2] for n in lengths]
    return Batch({"source": pad(rows)})


def search_twice(
    model: Any, batch: Batch, limits: list[int], decoding: Decoding, prefix: list[int] | None = None
) -> tuple[list[list[SearchHypothesis]], list[list[SearchHypothesis]]]:
    """Return the hypotheses of the plain search, and of the search on static buffers."""
    generators = [torch.Generator().manual_seed(decoding.seed) if decoding.sample else None for _ in range(2)]
    requests = [Request(limits, decoding, batch, prefix=prefix or [], generator=one) for one in generators]
    with torch.inference_mode():
        return PlainSearch().run(model, requests[0]), ON_CPU.run(model, requests[1])


def assert_same(plain: list[list[SearchHypothesis]], found: list[list[SearchHypothesis]]) -> None:
    for expected, got in zip(plain, found, strict=True):
        assert [item.ids for item in got] == [item.ids for item in expected]
        assert [item.score for item in got] == pytest.approx([item.score for item in expected], abs=1e-4)
        assert [item.log_prob for item in got] == pytest.approx([item.log_prob for item in expected], abs=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_ids_are_those_of_the_plain_search(make_predictor: Any, norm: str, beam: int) -> None:
    for seed in range(2):
        model = make_predictor(seed=seed, norm=norm).model.eval()
        plain, found = search_twice(model, sources(3, 9, 1, 5, 7), [9, 4, 0, 17, 12], Decoding(beam=beam, n_best=beam))
        assert_same(plain, found)


@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 15)), min_size=1, max_size=7),
    beam=st.integers(1, 4),
    alpha=st.sampled_from([-0.7, 0.0, 0.6, 1.5]),
    least=st.integers(0, 4),
    forced=st.integers(0, 2),
    seed=st.integers(0, 3),
)
def test_ids_are_those_of_the_plain_search_for_any_settings(
    models: Any, lengths: list[tuple[int, int]], beam: int, alpha: float, least: int, forced: int, seed: int
) -> None:
    decoding = Decoding(beam=beam, n_best=beam, length_penalty=alpha, min_length=least)
    limits = [max(limit, least, forced) for _, limit in lengths]
    plain, found = search_twice(models[seed], sources(*(n for n, _ in lengths)), limits, decoding, PREFIX[:forced])
    assert_same(plain, found)


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return []


@pytest.fixture(autouse=True)
def build_models(models: list[Any], make_predictor: Any) -> None:
    """Build four models for all tests of this module."""
    while len(models) < 4:
        models.append(make_predictor(seed=len(models)).model.eval())


@pytest.mark.parametrize(
    "section",
    [
        {"positions": {"kind": "rotary"}},
        {"positions": {"kind": "alibi"}},
        {"positions": {"kind": "learned", "length": 24, "combine": "concat"}},
        {"positions": {"kind": "learned", "length": 24}},
        {"stack": {"layers": 1, "dim": 22, "heads": 11, "ff": 13, "window": 2}},
        {"stack": {"layers": 2, "dim": 24, "heads": 6, "kv_heads": 2, "ff": 13}},
    ],
)
def test_every_kind_of_writer_is_decoded_on_static_buffers(make_predictor: Any, section: dict[str, Any]) -> None:
    stack = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
    model = make_predictor(seed=1, writer={"stack": stack, "tie": "none", **section}).model.eval()
    assert_same(*search_twice(model, sources(4, 6, 2), [11, 7, 12], Decoding(beam=3, n_best=2)))


def test_samples_are_those_of_the_plain_search(models: Any) -> None:
    """With min_length = limit, because the plain search samples for fewer rows once some have ended."""
    decoding = Decoding(sample=True, n_best=2, temperature=1.7, top_k=5, min_length=8)
    plain, found = search_twice(models[0], sources(4, 6), [8, 8], decoding)
    assert_same(plain, found)
    assert len({tuple(item.ids) for outputs in found for item in outputs}) == 4


def test_samples_repeat_with_their_seed_whatever_was_decoded_before(models: Any) -> None:
    model, batch = models[1], sources(4, 6, 3)

    def draw(seed: int) -> list[list[SearchHypothesis]]:
        return search_twice(model, batch, [15, 9, 11], Decoding(sample=True, n_best=3, seed=seed))[1]

    first = draw(3)
    search_twice(model, sources(5), [5], Decoding(beam=2))
    assert draw(3) == first
    assert draw(4) != first
    assert [len(outputs) for outputs in first] == [3, 3, 3]


def test_the_batch_shrinks_when_sentences_finish(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    steps = graphs.SearchBuffers._get_steps
    monkeypatch.setattr(
        graphs.SearchBuffers,
        "_get_steps",
        lambda self, w, job, n, count: sizes.extend([n] * count) or steps(self, w, job, n, count),
    )
    for beam in (1, 3):
        sizes.clear()
        limits = [2, 3, 20, 2, 1, 2, 3, 1] * 3
        plain, found = search_twice(
            models[2], sources(*[4] * 24), limits, Decoding(beam=beam, min_length=1, n_best=beam)
        )
        assert_same(plain, found)
        assert sizes[0] == 24
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == 8
        assert len(sizes) <= 20 + graphs.STEPS_PER_GRAPH


def test_search_ends_soon_after_the_last_sentence(make_predictor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_predictor(seed=0).model.eval()
    with torch.no_grad():
        model.writer.output.weight[:] = 0.0
        model.writer.stack.norm.weight.zero_()
        model.writer.stack.norm.bias[:] = 1.0
        model.writer.output.weight[2] = 1.0  # END, always
    count = []
    advance = graphs.advance
    monkeypatch.setattr(graphs, "advance", lambda *given: count.append(1) or advance(*given))
    plain, found = search_twice(model, sources(4, 4), [22, 22], Decoding(beam=1, min_length=1))
    assert_same(plain, found)
    assert len(count) <= 3 * graphs.STEPS_PER_GRAPH


def test_weights_changed_by_training_are_used(make_predictor: Any) -> None:
    stack = {"layers": 1, "dim": 22, "heads": 11, "ff": 13}
    positions = {"kind": "learned", "length": 24}
    model = make_predictor(seed=1, writer={"stack": stack, "tie": "none", "positions": positions}).model.eval()
    batch = sources(4, 6, 2)
    before = search_twice(model, batch, [11, 7, 12], Decoding(beam=2))[1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    plain, found = search_twice(model, batch, [11, 7, 12], Decoding(beam=2))
    assert_same(plain, found)
    assert found != before


@pytest.mark.parametrize("beam", [1, 3])
def test_nan_weights_end_the_search(make_predictor: Any, beam: int) -> None:
    model = make_predictor().model.eval()
    with torch.no_grad():
        model.writer.output.weight.fill_(torch.nan)
    plain, found = search_twice(model, sources(3, 2), [4, 3], Decoding(beam=beam))
    assert [len(outputs) for outputs in found] == [len(outputs) for outputs in plain]
    assert all(item.log_prob != item.log_prob for outputs in found for item in outputs)


def test_equal_logits_give_the_smaller_token() -> None:
    rules = DecodingConstraints(
        torch.tensor([0]), torch.tensor([0]), torch.tensor([5, 5]), torch.tensor([-1, -1]),
        torch.tensor([1, 1, 0, 1, 0, 0, 0], dtype=torch.int8), 2,
    )  # fmt: skip
    for count in (1, 3):
        assert select_top_tokens(torch.zeros(2, 7), rules, count).tokens.tolist() == [[2, 4, 5][:count]] * 2


def test_rounded_batch_sizes_are_few_and_large_enough() -> None:
    sizes = [round_up_batch_size(n) for n in range(1, 1025)]
    rooms = [round_up_length(n) for n in range(1, 1025)]
    assert all(n <= size < 2 * n for n, size in enumerate(sizes, 1))
    assert all(n <= room < max(2 * n, 33) for n, room in enumerate(rooms, 1))
    assert (len(set(sizes)), len(set(rooms))) == (17, 7)


def test_only_cuda_is_decoded_with_graphs(make_predictor: Any) -> None:
    support = graphs.CudaGraphs().supports(make_predictor().model, Request([3], Decoding(), sources(4)))
    assert support.reason == "the batch is on cpu, not on cuda"


@pytest.mark.parametrize("decoding", [Decoding(beam=1), Decoding(beam=3, n_best=3), Decoding(sample=True, n_best=2)])
@torch.no_grad()
def test_a_language_model_continues_its_prompt(decoding: Decoding) -> None:
    stack = schema.TransformerStack(layers=2, dim=12, heads=3, ff=17, norm="pre", activation="gelu-tanh")
    settings = schema.TokenWriter(stack=stack, positions=schema.Learned(length=24), scale_embedding=False, tie="output")
    writer = build_writer(settings, size=23).eval()
    prompt = torch.tensor([[5, 7, 6], [4, 11, 20]])
    generator = torch.Generator() if decoding.sample else None
    found = graphs.decode_static(writer, None, Request([6, 9], decoding, prompts=prompt, generator=generator))
    assert [len(outputs) >= decoding.n_best for outputs in found] == [True, True]
    for row, outputs in zip(prompt.tolist(), found):
        for item in outputs:
            logits = writer.head(writer(torch.tensor([row + item.ids]), None, None))[0, len(row) - 1 :]
            log_probs = logits.log_softmax(-1).gather(1, torch.tensor([*item.ids, 2])[:, None])
            assert item.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-4)


def test_a_failure_of_graphs_is_counted_reported_once_and_falls_back(
    make_predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **settings: Any) -> None:
        raise RuntimeError("out of luck")

    model, request = make_predictor(seed=1).model.eval(), Request([7, 9], Decoding(beam=2), sources(4, 6))
    engines = (ON_CPU, PlainSearch())
    monkeypatch.setattr(graphs, "decode_static", fail)
    monkeypatch.setattr(failures, "FAILURES", Counter())
    with torch.inference_mode():
        plain = PlainSearch().run(model, request)
        monkeypatch.setenv(failures.STRICT, "0")
        with pytest.warns(RuntimeWarning, match="continues without CUDA graphs, which failed: out of luck"):
            first = decode(model, request, engines=engines)
        again = decode(model, request, engines=engines)  # and no other warning
        assert_same(plain, first.hypotheses)
        assert_same(plain, again.hypotheses)
    assert first.decision == Decision("plain", {"cuda-graphs": "it failed (RuntimeError)"})
    assert again.decision == Decision("plain", {"cuda-graphs": "it failed with this model before"})
    assert failures.FAILURES == {("cuda-graphs", "RuntimeError"): 1}


def test_failures_of_triton_are_known_once_it_is_imported() -> None:
    errors = pytest.importorskip("triton.errors")
    assert issubclass(errors.TritonError, graphs.CudaGraphs().failures)
    assert issubclass(errors.TritonError, MaskPredictGraphs().failures)


def test_a_failure_of_graphs_is_an_error_where_engines_are_strict(
    make_predictor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **settings: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(graphs, "decode_static", fail)
    monkeypatch.setenv(failures.STRICT, "1")
    request = Request([7, 9], Decoding(beam=2), sources(4, 6))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="out of luck"):
        decode(make_predictor(seed=1).model.eval(), request, engines=(ON_CPU, PlainSearch()))
