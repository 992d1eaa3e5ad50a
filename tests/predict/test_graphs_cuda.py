"""Decoding with Triton kernels and CUDA graphs against the plain search, on a GPU."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config import schema
from saccade.config.load import validate
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.model.build.model import build, build_writer
from saccade.predict.decode import decode, prepare_at_once
from saccade.predict.engines import graphs
from saccade.predict.engines.plain import PlainSearch
from saccade.predict.engines.static_writer import has_kernels
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.request import Request

pytestmark = pytest.mark.cuda

V = 101


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The comparisons that also run in Triton's interpreter."""
    pytest.importorskip("triton")
    spec = importlib.util.spec_from_file_location("kernels", Path(__file__).with_name("decoding_kernels.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", range(5))
def test_kernels_agree_with_the_reference(kernels: Any, case: int, dtype: torch.dtype) -> None:
    kernels.assert_same_steps(*kernels.CASES[case], dtype=dtype, device="cuda", steps=40)


@pytest.mark.parametrize("rows", [1, 17, 64, 200])
def test_kernels_agree_for_any_number_of_rows(kernels: Any, rows: int) -> None:
    stack = {"dim": 96, "heads": 3, "ff": 520} if rows % 2 else {"dim": 256, "heads": 4, "ff": 1024, **GPT}
    kernels.assert_same_steps(rows, 1, stack, "sinusoidal", device="cuda")


@pytest.mark.parametrize("beams", [1, 3, 6])
def test_bookkeeping_agrees(kernels: Any, beams: int) -> None:
    for sentences in (5, 64):
        kernels.assert_same_bookkeeping(sentences, beams, device="cuda")


GPT = {"norm": "pre", "activation": "gelu-tanh"}
STACKS = {
    "post": {"layers": 2, "dim": 64, "heads": 4, "ff": 130},
    "gpt": {"layers": 2, "dim": 128, "heads": 4, "ff": 256, **GPT},
    "gated": {"layers": 2, "dim": 96, "heads": 3, "ff": 200, "gated": True, "activation": "silu", "norm_kind": "rms"},
}


def build_test_model(stack: dict[str, Any], positions: str = "sinusoidal", seed: int = 0) -> Any:
    part = {"stack": stack, "positions": {"kind": positions}}
    recipe = validate({"reader": part, "writer": {**part, "tie": "none"}, "data": {"max_length": 64}}, origin="test")
    torch.manual_seed(seed)
    model = build(recipe, source_size=V, target_size=V)
    with torch.no_grad():
        model.writer.output.weight.mul_(4.0)  # sharp enough for outputs of several lengths
    return model.cuda().eval()


def sources(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [[*torch.randint(4, V, (n - 1,), generator=generator).tolist(), 2] for n in lengths]
    return Batch({"source": pad(rows)}).to("cuda")


@torch.inference_mode()
def search_twice(
    model: Any, batch: Batch, limits: list[int], decoding: Decoding
) -> tuple[list[list[SearchHypothesis]], list[list[SearchHypothesis]]]:
    """Return the hypotheses of the plain search and of CUDA graphs, whose failures are errors here."""
    generators = [torch.Generator("cuda").manual_seed(decoding.seed) for _ in range(2)]
    requests = [Request(limits, decoding, batch, generator=one) for one in generators]
    prepare_at_once(model)
    found = decode(model, requests[1])
    assert found.decision.engine == "cuda-graphs"
    return PlainSearch().run(model, requests[0]), found.hypotheses


def assert_same(plain: list[list[SearchHypothesis]], found: list[list[SearchHypothesis]]) -> None:
    for expected, got in zip(plain, found, strict=True):
        assert [item.ids for item in got] == [item.ids for item in expected]
        assert [item.score for item in got] == pytest.approx([item.score for item in expected], abs=1e-3)


@pytest.mark.parametrize(("stack", "beam"), [("gpt", 1), ("post", 4), ("gpt", 4), ("gated", 7)])
def test_graphs_find_what_the_plain_search_finds(stack: str, beam: int) -> None:
    model = build_test_model(STACKS[stack])
    assert has_kernels(model.writer, beam)
    decoding = Decoding(beam=beam, n_best=min(beam, 2))
    for lengths in ((5,), (6, 8, 7) * 11):  # several sizes of batches, then the first again
        limits = [2 * n + 7 for n in lengths]
        assert_same(*search_twice(model, sources(*lengths), limits, decoding))
    assert_same(*search_twice(model, sources(5), [17], decoding))


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_every_kind_of_positions(positions: str) -> None:
    model = build_test_model(STACKS["gpt"], positions)
    assert_same(*search_twice(model, sources(9, 3, 17, 4), [25, 13, 30, 9], Decoding(beam=3)))


def test_lengths_are_kept_to_and_the_search_shrinks() -> None:
    model = build_test_model(STACKS["post"], seed=1)
    limits = [2, 3, 40, 2, 1, 2, 3, 1] * 4
    for beam in (1, 4):
        decoding = Decoding(beam=beam, min_length=1, length_penalty=1.3)
        assert_same(*search_twice(model, sources(*[4] * 32), limits, decoding))


def test_weights_changed_by_training_are_used() -> None:
    model = build_test_model(STACKS["gpt"], "learned")
    before = search_twice(model, sources(9, 3), [25, 13], Decoding(beam=2))[1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    plain, found = search_twice(model, sources(9, 3), [25, 13], Decoding(beam=2))
    assert_same(plain, found)
    assert found != before


def test_samples_repeat_with_their_seed() -> None:
    model = build_test_model(STACKS["gpt"])

    def draw(seed: int) -> list[list[list[int]]]:
        decoding = Decoding(sample=True, n_best=3, seed=seed, temperature=1.5, top_k=20)
        found = search_twice(model, sources(9, 3, 5), [25, 13, 30], decoding)[1]
        return [[item.ids for item in outputs] for outputs in found]

    first = draw(3)
    assert [len(outputs) for outputs in first] == [3, 3, 3]
    assert draw(3) == first
    assert draw(4) != first


def test_samples_follow_the_distribution() -> None:
    model = build_test_model(STACKS["post"])
    with torch.inference_mode():
        memory = model.read(sources(5))
        logits = model.writer.step(torch.tensor([[1]], device="cuda"), model.writer.start(memory, capacity=2)).logits
    decoding = Decoding(sample=True, n_best=4096, min_length=1, max_length=1)
    found = search_twice(model, sources(5), [1], decoding)[1]
    counts = torch.bincount(torch.tensor([item.ids[0] for item in found[0]]), minlength=V).float()
    logits = logits.clone()  # what inference mode made may not be changed outside of it
    logits[:, [0, 1, 2, 3]] = -torch.inf
    expected = logits[0].float().softmax(-1).cpu() * 4096
    torch.testing.assert_close(counts, expected, atol=float(6 * expected.max().sqrt()), rtol=0.0)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_language_model_continues_its_prompt(rows: int) -> None:
    stack = schema.TransformerStack(layers=2, dim=128, heads=4, ff=512, norm="pre", activation="gelu-tanh")
    settings = schema.TokenWriter(
        stack=stack, positions=schema.Learned(length=128), scale_embedding=False, tie="output"
    )
    writer = build_writer(settings, size=V).cuda().eval()
    prompt = torch.randint(4, V, (rows, 9), device="cuda")
    found = graphs.decode_static(writer, None, Request([80] * rows, Decoding(beam=1, min_length=80), prompts=prompt))
    made = torch.tensor([outputs[0].ids for outputs in found], device="cuda")
    assert made.shape == (rows, 80)
    with torch.inference_mode():
        logits = writer.head(writer(torch.cat((prompt, made[:, :-1]), 1), None, None))[:, 8:]
        logits[..., :4] = -torch.inf
    chosen = logits.gather(2, made[..., None])[..., 0]
    torch.testing.assert_close(chosen, logits.max(-1).values, atol=1e-3, rtol=0.0)  # a near tie may go either way


def test_half_precision_stays_near() -> None:
    model = build_test_model(STACKS["gpt"]).bfloat16()
    plain, found = search_twice(model, sources(*[7] * 16), [20] * 16, Decoding(beam=1, min_length=20))
    pairs = [(a, b) for x, y in zip(plain, found) for a, b in zip(x[0].ids, y[0].ids)]
    assert sum(a == b for a, b in pairs) > 0.5 * len(pairs)
