"""Many steps in one call find what single steps find."""

from typing import Any

import pytest
import torch
from laid_out import made

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.kernels.cpu import search_steps
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.engines.cpu_fused import PREPARED, CpuFused, prepare_search
from saccade.predict.search import filters
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import Found, Price, greedy, write_rows
from saccade.predict.search.request import Request

pytestmark = pytest.mark.skipif(not search_steps.kernels(), reason="needs AVX-512 VNNI and a compiler")

SOURCES = Batch({"source": pad([[5, 6, 7, 2], [8, 2], [5, 9, 2], [7, 7, 7, 9, 11, 2], [12, 2]])})
LIMITS = torch.tensor([14, 9, 22, 17, 3])


def writer_that_ends(*settings: str, **more: Any) -> Model:
    return made(*settings, words=40, end=2.0, **more)


@torch.inference_mode()
def found(model: Model, *, beam: int = 1, least: int = 0, fused: bool = True, **settings: Any) -> list[list[Found]]:
    memory = None if model.reader is None else model.read(SOURCES)
    state = model.writer.start(memory, capacity=26, rows=len(LIMITS))
    rules = [filters.never(), *([filters.min_length(least)] if least else []), filters.max_length(LIMITS)]
    settings["multi_step"] = prepare_search(model.writer.describe_step()) if fused else None
    if beam == 1:
        return write_rows(model.writer, state, rows=torch.arange(len(LIMITS)), choose=greedy, rules=rules, **settings)
    return beam_search(model.writer, state, limits=LIMITS, width=beam, rules=rules, **settings)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every call of the source."""
    calls: list[str] = []
    take = search_steps.SearchSteps._take

    def counted(self: Any, name: str, *given: Any) -> int:
        calls.append(name)
        return take(self, name, *given)

    monkeypatch.setattr(search_steps.SearchSteps, "_take", counted)
    return calls


def assert_same(ours: list[list[Found]], theirs: list[list[Found]]) -> None:
    assert [[item.ids for item in group] for group in ours] == [[item.ids for item in group] for group in theirs]
    for group, other in zip(ours, theirs, strict=True):
        for item, wanted in zip(group, other, strict=True):
            assert item.log_prob == pytest.approx(wanted.log_prob, abs=1e-3)
            assert item.score == pytest.approx(wanted.score, abs=1e-3)


FORMS = [("transformer", ["writer.stack.norm=post"]), ("transformer", ["writer.stack.norm=pre"]), ("gpt2", [])]


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize(("recipe", "settings"), FORMS)
@pytest.mark.parametrize("least", [0, 2])
@pytest.mark.parametrize("seed", [2, 4, 7])
def test_greedy_search_finds_the_same(
    kind: str, recipe: str, settings: list[str], least: int, seed: int, taken: list[str]
) -> None:
    model = writer_that_ends(*settings, recipe=recipe, kind=kind, seed=seed)
    ours = found(model, least=least)
    assert set(taken) == {"greedy_steps"}
    assert_same(ours, found(model, least=least, fused=False))


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize(("recipe", "settings"), FORMS)
@pytest.mark.parametrize(
    ("beam", "n_best", "alpha", "least"), [(2, 1, 0.0, 0), (4, 1, 1.0, 2), (5, 3, 0.6, 0), (3, 2, -0.5, 4)]
)
@pytest.mark.parametrize("seed", [2, 4, 7])
def test_beam_search_finds_the_same(
    kind: str, recipe: str, settings: list[str], beam: int, n_best: int, alpha: float, least: int, seed: int,
    taken: list[str],
) -> None:  # fmt: skip
    model = writer_that_ends(*settings, recipe=recipe, kind=kind, seed=seed)
    ours = found(model, beam=beam, n_best=n_best, price=Price(alpha), least=least)
    assert set(taken) == {"beam_steps"}
    assert_same(ours, found(model, beam=beam, n_best=n_best, price=Price(alpha), least=least, fused=False))


def test_unscored_outputs_have_no_log_probability() -> None:
    assert {item.log_prob for group in found(writer_that_ends(), scored=False) for item in group} == {0.0}


@pytest.mark.parametrize("beam", [1, 3])
def test_what_is_no_number_is_left_to_single_steps(beam: int, taken: list[str]) -> None:
    model = writer_that_ends()
    model.writer.output.weight.fill_(torch.nan)
    outputs = found(model, beam=beam)
    assert taken
    assert all(item.log_prob != item.log_prob for group in outputs for item in group)  # NaN, and not a guess


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("writer.stack.activation=gelu", "the writer: the C step knows no activation but ReLU, and no gate"),
        ("writer.embedding_norm=true", "the writer: its embedding is more than a sum of token and position"),
        ("writer.output_scale=true", "the writer: its states are scaled before the output"),
    ],
)
def test_other_writers_go_on_step_by_step(setting: str, reason: str, taken: list[str]) -> None:
    with torch.inference_mode():
        done = decode(writer_that_ends(setting), Request(LIMITS.tolist(), Decoding(beam=1), SOURCES))
    assert not taken
    assert done.decision.engine == "plain" and done.decision.declined["cpu-fused"] == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"no_repeat": 2}, "each step depends on what was written (no_repeat, coverage or prefix)"),
        ({"coverage": 0.2, "beam": 2}, "each step depends on what was written (no_repeat, coverage or prefix)"),
        ({"sample": True}, "tokens are sampled"),
    ],
)
def test_other_settings_are_asked_at_every_step(change: dict[str, Any], reason: str, taken: list[str]) -> None:
    request = Request(LIMITS.tolist(), Decoding(**{"beam": 1, **change}), SOURCES, generator=torch.Generator())
    with torch.inference_mode():
        done = decode(writer_that_ends(), request)
    assert not taken
    assert done.decision.engine == "plain" and done.decision.declined["cpu-fused"] == reason


def test_it_is_not_for_gradients() -> None:
    support = CpuFused().supports(writer_that_ends(), Request(LIMITS.tolist(), Decoding(beam=1), SOURCES))
    assert support.reason == "gradients or attention weights are recorded"


def test_weights_that_are_laid_out_anew_are_described_anew() -> None:
    model = writer_that_ends()
    found(model)
    before = model.writer.describe_step()
    found(model)
    assert model.writer.describe_step() is before and PREPARED[before][0] is not None
    other = writer_that_ends(kind="int8")
    model.writer.embedding.tokens, model.writer.output = other.writer.embedding.tokens, other.writer.output
    found(model)
    after = model.writer.describe_step()
    assert after is not before and PREPARED[after][0] is not PREPARED[before][0]


def test_a_run_ends_where_the_first_row_ends_or_could_have_to() -> None:
    model = writer_that_ends()
    with torch.inference_mode():
        state = model.writer.start(model.read(SOURCES), capacity=26)
        start = torch.full((5, 1), 1)
        rules = [filters.never((0, 1, 2, 3)), filters.max_length(LIMITS)]
        run = prepare_search(model.writer.describe_step()).take_greedy(state, start, torch.zeros(5), rules)
    assert run is not None and run[0].shape == (5, 3) and run[2].longest == 3  # the shortest limit; END was forbidden
