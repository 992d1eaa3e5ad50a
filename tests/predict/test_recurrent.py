"""Recurrent writers in search, ensembles and attention maps."""

from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor

LINES = ["abc", "", "gfedcba ab", "b", "ggg", "ÄÖÜ", "a b c d e f g"]
DECODINGS = [
    Decoding(beam=1, min_length=2),
    Decoding(beam=4, n_best=3, length_penalty=1.0, min_length=2),
    Decoding(beam=3, no_repeat_ngram=2, min_length=2),
]
SYSTEMS: dict[str, dict[str, Any]] = {
    "sutskever": {"cell": "lstm", "attention": "none", "input_feeding": False, "initial_state": "copied"},
    "fixed context": {"cell": "gru", "attention": "none"},
    "bahdanau": {"cell": "gru", "attention": "additive"},
    "luong": {"cell": "lstm", "attention": "general", "layers": 2},
    "deep-att": {"cell": "lstm", "attention": "additive", "layers": 3, "fast_forward": True},
    "moe": {"cell": "lstm", "attention": "additive", "layers": 2, "experts": {"count": 4}},
    "luong with experts": {"cell": "lstm", "attention": "general", "layers": 3, "experts": {"count": 4}},
    "luong, all at once": {"cell": "rnn", "attention": "dot", "input_feeding": False},
}
WITH_ATTENTION = [name for name, settings in SYSTEMS.items() if settings["attention"] != "none"]


def parts(system: str) -> dict[str, Any]:
    writer = {"kind": "recurrent", "dim": 22, **SYSTEMS[system]}
    directions = {"bahdanau": True, "deep-att": "alternate"}.get(system, False)
    reader = {"kind": "recurrent", "dim": 22, "cell": writer["cell"], "bidirectional": directions}
    if system == "deep-att":
        reader |= {"layers": 3, "fast_forward": True}
    return {
        "reader": {"stack": reader, "positions": {"kind": "none"}},
        "writer": {"stack": writer, "positions": {"kind": "none"}, "tie": "none"},
    }


@pytest.fixture
def predictor(make_predictor: Any) -> Any:
    return lambda system, **settings: make_predictor(seed=4, **parts(system), **settings)


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_batched_is_one_at_a_time(predictor: Any, system: str, decoding: Decoding) -> None:
    one = predictor(system)
    together = one.candidates(LINES, decoding=decoding)
    for line, found in zip(LINES, together, strict=True):
        [alone] = one.candidates([line], decoding=decoding)
        assert [item.ids for item in found] == [item.ids for item in alone]
        assert [item.score for item in found] == pytest.approx([item.score for item in alone], abs=1e-5)
    assert len({tuple(found[0].ids) for found in together}) > 2


@pytest.mark.parametrize("decoding", [*DECODINGS[:2], Decoding(sample=True, n_best=3)])
@pytest.mark.parametrize("system", SYSTEMS)
def test_score_is_the_log_probability_of_the_search(predictor: Any, system: str, decoding: Decoding) -> None:
    one = predictor(system)
    found = [(line, item) for line in LINES if line for item in one.candidates([line], decoding=decoding)[0]]
    scores = one.score([(line, item.text) for line, item in found if "<" not in item.text])
    kept = [item.log_prob for _, item in found if "<" not in item.text]
    assert len(kept) > 3
    assert scores == pytest.approx(kept, abs=1e-4)


@pytest.mark.parametrize("system", WITH_ATTENTION)
def test_alignments_are_the_displayed_attention(predictor: Any, system: str) -> None:
    """One row of weights per output token; beams keep their own."""
    one = predictor(system)
    [[best]] = one.candidates(["gfedcba ab"], decoding=Decoding(beam=4, min_length=4), align=True)
    seen = one.attention("gfedcba ab", best.text)
    [(address, weights)] = seen.maps.items()
    assert address == "writer.stack.recurrence.cross"
    assert weights.shape == (1, len(best.ids) + 1, 11)
    assert seen.target_labels[-1] == seen.source_labels[-1] == "<end>"
    torch.testing.assert_close(torch.tensor(best.alignment), weights[0, :-1], atol=1e-5, rtol=1e-4)


def test_alignment_needs_attention(predictor: Any) -> None:
    one = predictor("sutskever")
    with pytest.raises(SaccadeError, match="does not attend to what it reads"):
        one.candidates(["abc"], align=True)
    assert one.attention("abc", "cba").maps == {}


def test_members_of_an_ensemble_may_be_of_any_kind(make_run: Any) -> None:
    paths = [make_run("one"), *(make_run(name, **parts(name)) for name in ("sutskever", "bahdanau"))]
    both = Predictor.load(paths, device="cpu")
    outputs = both.candidates(["abc", "b"])
    scores = both.score([("abc", outputs[0][0].text), ("b", outputs[1][0].text)])
    assert scores == pytest.approx([items[0].log_prob for items in outputs], abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("system", ["sutskever", "bahdanau", "luong", "deep-att"])
def test_runs_are_loaded_in_every_precision(make_run: Any, system: str, precision: str) -> None:
    folder = make_run("one", seed=4, **parts(system))
    expected = Predictor.load(folder, device="cpu").score([("abc", "cba"), ("gfe dcb", "b")])
    got = Predictor.load(folder, device="cpu", precision=precision).score([("abc", "cba"), ("gfe dcb", "b")])
    assert got == pytest.approx(expected, abs=1e-5 if precision == "fp32" else 0.5)


def test_other_engines_explain_what_they_lack(make_run: Any) -> None:
    pytest.importorskip("ctranslate2")
    folder = make_run("one", **parts("bahdanau"))
    with pytest.raises(SaccadeError, match=r"CTranslate2 cannot express reader\.stack\.kind = 'recurrent'"):
        Predictor.load(folder, device="cpu", engine="ctranslate2")
