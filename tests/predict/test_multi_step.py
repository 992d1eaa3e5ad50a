"""Several steps in one C call find the same as single steps."""

from typing import Any

import pytest
import torch
from laid_out import made

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END
from saccade.kernels.cpu import search_steps, step_attention
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.engines.cpu_fused import PREPARED_SEARCHES, CpuFused, explain_request, prepare_search
from saccade.predict.search import filters
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import ScorePenalties, SearchHypothesis, choose_best, decode_rows
from saccade.predict.search.request import Request

pytestmark = pytest.mark.skipif(not search_steps.load_kernels(), reason="needs AVX-512 VNNI and a compiler")

SOURCES = Batch({"source": pad([[5, 6, 7, 2], [8, 2], [5, 9, 2], [7, 7, 7, 9, 11, 2], [12, 2]])})
LIMITS = torch.tensor([14, 9, 22, 17, 3])


def writer_that_ends(*settings: str, **more: Any) -> Model:
    return made(*settings, words=40, end=2.0, **more)


@torch.inference_mode()
def search(
    model: Model, *, beam: int = 1, least: int = 0, fused: bool = True, **settings: Any
) -> list[list[SearchHypothesis]]:
    memory = None if model.reader is None else model.read(SOURCES)
    state = model.writer.start(memory, capacity=26, rows=len(LIMITS))
    rules = [
        filters.forbid_tokens(),
        *([filters.require_min_length(least)] if least else []),
        filters.limit_length(LIMITS),
    ]
    settings["multi_step"] = prepare_search(model.writer.describe_step()) if fused else None
    if beam == 1:
        return decode_rows(
            model.writer, state, sentence_ids=torch.arange(len(LIMITS)), choose=choose_best, rules=rules, **settings
        )
    return beam_search(model.writer, state, limits=LIMITS, width=beam, rules=rules, **settings)


@pytest.fixture
def c_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every C function called."""
    calls: list[str] = []
    take = search_steps.SearchSteps._call

    def count_call(self: Any, name: str, *given: Any) -> int:
        calls.append(name)
        return take(self, name, *given)

    monkeypatch.setattr(search_steps.SearchSteps, "_call", count_call)
    return calls


def assert_same(ours: list[list[SearchHypothesis]], theirs: list[list[SearchHypothesis]]) -> None:
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
    kind: str, recipe: str, settings: list[str], least: int, seed: int, c_calls: list[str]
) -> None:
    model = writer_that_ends(*settings, recipe=recipe, kind=kind, seed=seed)
    ours = search(model, least=least)
    assert set(c_calls) == {"greedy_steps"}
    assert_same(ours, search(model, least=least, fused=False))


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize(("recipe", "settings"), FORMS)
@pytest.mark.parametrize(
    ("beam", "n_best", "alpha", "least"), [(2, 1, 0.0, 0), (4, 1, 1.0, 2), (5, 3, 0.6, 0), (3, 2, -0.5, 4)]
)
@pytest.mark.parametrize("seed", [2, 4, 7])
def test_beam_search_finds_the_same(
    kind: str, recipe: str, settings: list[str], beam: int, n_best: int, alpha: float, least: int, seed: int,
    c_calls: list[str],
) -> None:  # fmt: skip
    model = writer_that_ends(*settings, recipe=recipe, kind=kind, seed=seed)
    ours = search(model, beam=beam, n_best=n_best, penalties=ScorePenalties(alpha), least=least)
    assert set(c_calls) == {"beam_steps"}
    assert_same(
        ours, search(model, beam=beam, n_best=n_best, penalties=ScorePenalties(alpha), least=least, fused=False)
    )


def test_unscored_outputs_have_no_log_probability() -> None:
    assert {item.log_prob for group in search(writer_that_ends(), scored=False) for item in group} == {0.0}


@pytest.mark.parametrize("beam", [1, 3])
def test_nan_logits_are_left_to_single_steps(beam: int, c_calls: list[str]) -> None:
    model = writer_that_ends()
    model.writer.output.weight.fill_(torch.nan)
    outputs = search(model, beam=beam)
    assert c_calls
    assert all(item.log_prob != item.log_prob for group in outputs for item in group)  # NaN, and not a guess


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("writer.stack.activation=gelu", "the writer: the C step supports only ReLU, without a gate"),
        ("writer.embedding_norm=true", "the writer: its embedding is more than a sum of token and position"),
        ("writer.output_scale=true", "the writer: its states are scaled before the output"),
    ],
)
def test_unsupported_writers_are_decoded_step_by_step(setting: str, reason: str, c_calls: list[str]) -> None:
    with torch.inference_mode():
        done = decode(writer_that_ends(setting), Request(LIMITS.tolist(), Decoding(beam=1), SOURCES))
    assert not c_calls
    assert done.decision.engine == "plain" and done.decision.declined["cpu-fused"] == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"no_repeat_ngram": 2}, "each step depends on previous tokens (no_repeat_ngram, coverage_penalty or prefix)"),
        (
            {"coverage_penalty": 0.2, "beam": 2},
            "each step depends on previous tokens (no_repeat_ngram, coverage_penalty or prefix)",
        ),
        ({"sample": True}, "tokens are sampled"),
    ],
)
def test_unsupported_settings_are_decoded_step_by_step(change: dict[str, Any], reason: str, c_calls: list[str]) -> None:
    request = Request(LIMITS.tolist(), Decoding(**{"beam": 1, **change}), SOURCES, generator=torch.Generator())
    with torch.inference_mode():
        done = decode(writer_that_ends(), request)
    assert not c_calls
    assert done.decision.engine == "plain" and done.decision.declined["cpu-fused"] == reason


def test_the_c_step_is_not_used_with_gradients() -> None:
    support = CpuFused().supports(writer_that_ends(), Request(LIMITS.tolist(), Decoding(beam=1), SOURCES))
    assert support.reason == "gradients or attention weights are recorded"


def test_packed_weights_are_described_again() -> None:
    model = writer_that_ends()
    search(model)
    before = model.writer.describe_step()
    search(model)
    assert model.writer.describe_step() is before and PREPARED_SEARCHES[before][0] is not None
    other = writer_that_ends(kind="int8")
    model.writer.embedding.tokens, model.writer.output = other.writer.embedding.tokens, other.writer.output
    search(model)
    after = model.writer.describe_step()
    assert after is not before and PREPARED_SEARCHES[after][0] is not PREPARED_SEARCHES[before][0]


def test_multiple_steps_end_with_the_first_row_or_limit() -> None:
    model = writer_that_ends()
    with torch.inference_mode():
        state = model.writer.start(model.read(SOURCES), capacity=26)
        start = torch.full((5, 1), 1)
        rules = [filters.forbid_tokens((0, 1, 2, 3)), filters.limit_length(LIMITS)]
        run = prepare_search(model.writer.describe_step()).take_greedy(state, start, torch.zeros(5), rules)
    # the shortest limit; END was forbidden
    assert run is not None and run[0].shape == (5, 3) and run[2].max_length == 3


def test_beams_that_do_not_fit_on_the_stack_of_c_are_left_to_the_plain_search() -> None:
    batch = Batch({"source": pad([[5, 6, END]] * 3)})
    fits, exceeds = (Request([9] * 3, Decoding(beam=beam), batch) for beam in (5461, 5462))
    assert "rows" not in explain_request(fits)
    assert explain_request(exceeds) == "a batch of 3 inputs with 5462 beams each has more than 16384 rows"


@pytest.mark.parametrize("rows", [0, 2])
def test_attention_of_no_row_is_no_division_by_zero(rows: int) -> None:
    query, key = torch.randn(rows, 1, 2, 8), torch.randn(rows, 5, 2, 8)
    with torch.no_grad():
        assert step_attention.attend_few_queries(query, key, key, scale=1.0, keep=None).shape == (rows, 1, 2, 8)
