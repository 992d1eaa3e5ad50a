import importlib.util
from typing import Any

import pytest

from saccade.config.load import validate
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.engines.convert import MADE_FROM, expressible
from saccade.predict.engines.ctranslate import FOLDER, check_decoding
from saccade.predict.predictors.predictor import Predictor

LINES = ["abcd efg", "gfe", "a", "bad cab bag", "fed", "gggg", "abcdefg abc"]
GREEDY = Decoding(beam=1)
installed = pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")

STACK = {"layers": 2, "dim": 24, "heads": 3, "ff": 35}
SYSTEMS: dict[str, dict[str, Any]] = {
    "post-norm": {"reader": {"stack": {**STACK, "norm": "post"}}, "writer": {"stack": {**STACK, "norm": "post"}}},
    "learned, gated, rms, no bias": {
        side: {
            "stack": {**STACK, "norm": "pre", "gated": True, "norm_kind": "rms", "activation": "silu", "bias": False},
            "positions": {"kind": "learned", "length": 24},
        }
        for side in ("reader", "writer")
    },
    "as Marian": {
        side: {"stack": {**STACK, "norm_epsilon": 0.01}, "positions": {"layout": "concatenated"}, **more}
        for side, more in (("reader", {}), ("writer", {"start": "pad", "output_bias": True}))
    },
    "two sizes": {
        "reader": {"stack": {**STACK, "dim": 36, "layers": 1}, "positions": {"layout": "concatenated"}},
        "writer": {"stack": {**STACK, "activation": "gelu"}, "tie": "output", "scale": False},
    },
}


@installed
@pytest.mark.parametrize("system", SYSTEMS)
def test_ctranslate2_writes_the_same_text(system: str, make_run: Any) -> None:
    folder = make_run("one", seed=3, **SYSTEMS[system])
    ours = Predictor.load(folder, device="cpu").candidates(LINES, decoding=GREEDY)
    theirs = Predictor.load(folder, device="cpu", engine="ctranslate2").candidates(LINES, decoding=GREEDY)
    assert [item.ids for [item] in theirs] == [item.ids for [item] in ours]
    assert [item.score for [item] in theirs] == pytest.approx([item.score for [item] in ours], abs=1e-3)


@installed
def test_an_output_at_its_limit_is_ours(make_run: Any) -> None:
    folder, decoding = make_run("one", seed=3), Decoding(beam=1, max_length=2, min_length=1)
    ours = Predictor.load(folder, device="cpu").candidates(LINES, decoding=decoding)
    theirs = Predictor.load(folder, device="cpu", engine="ctranslate2").candidates(LINES, decoding=decoding)
    assert [item.ids for [item] in theirs] == [item.ids for [item] in ours]
    assert {len(item.ids) for [item] in ours} >= {2}


@installed
def test_what_was_converted_is_used_until_the_weights_change(make_run: Any) -> None:
    folder, note = make_run("one", seed=3), FOLDER + "/" + MADE_FROM
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    when = (folder / note).stat().st_mtime_ns
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    assert (folder / note).stat().st_mtime_ns == when
    (folder / note).write_text("other weights")
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    assert (folder / note).read_text() != "other weights"


@installed
def test_a_folder_that_cannot_be_written_is_told(make_run: Any) -> None:
    folder = make_run("one", seed=3)
    (folder / FOLDER).write_text("a file where a folder should be")
    with pytest.raises(SaccadeError, match=r"cannot write .*ctranslate2: .*; use engine torch"):
        Predictor.load(folder, device="cpu", engine="ctranslate2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reader": {"positions": {"kind": "rotary"}}}, "reader.positions.kind = 'rotary'"),
        ({"writer": {"positions": {"how": "concat"}, "tie": "none"}}, "writer.positions.how = 'concat'"),
        ({"writer": {"stack": {"window": 5}}}, r"writer.stack.window = \(5,\)"),
        ({"reader": {"stack": {"heads_form": "full"}}}, "reader.stack.heads_form = 'full'"),
        ({"reader": {"stack": {"norm_kind": "rms"}}}, "two kinds of norm"),
        ({"reader": {"stack": {"norm_epsilon": 0.1}}}, "two values of norm_epsilon"),
        ({"reader": {"stack": {"head_dim": 5}}}, "reader.stack.head_dim = 5"),
        ({"reader": {"embedding_norm": True}}, "reader.embedding_norm = true"),
        ({"writer": {"output_scale": True}}, "writer.output_scale = true"),
        ({"reader": {"stack": {"norm": "none"}}}, "reader.stack.norm = 'none'"),
        ({"writer": {"stack": {"ff": 0}}}, "writer.stack.ff = 0"),
        ({"reader": {"stack": {"experts": {}}}}, "reader.stack.experts"),
        ({"writer": {"stack": {"residual": False}}}, "writer.stack.residual = False"),
        ({"reader": {"kind": "own"}, "writer": {"tie": "output"}}, "a reader of your own kind"),
    ],
)
def test_what_it_cannot_express_is_refused_by_name(change: dict, message: str) -> None:
    recipe = validate(change, origin="test", kinds={"own": object})
    with pytest.raises(SaccadeError, match=f"CTranslate2 cannot express {message}.*; use engine torch"):
        expressible(recipe)


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 4},
        *(
            {"beam": 1, **more}
            for more in ({"sample": True}, {"no_repeat": 3}, {"prefix": "a"}, {"ctc": 0.3}, {"lm": "x"})
        ),
    ],
)
def test_a_search_that_is_not_ours_is_refused(settings: dict) -> None:
    name = list(settings)[-1]
    with pytest.raises(SaccadeError, match=f"text of our own search with {name} = .* only, got .*; set {name}="):
        check_decoding(Decoding(**settings))


def test_an_ensemble_is_refused(make_run: Any) -> None:
    with pytest.raises(SaccadeError, match="engine ctranslate2 takes one run, got 2; use engine torch"):
        Predictor.load([make_run("one"), make_run("two")], device="cpu", engine="ctranslate2")
