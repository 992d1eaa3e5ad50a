import importlib.util
from typing import Any

import pytest

from saccade.config.load import validate
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.engines.convert import SOURCE_HASH_FILE, check_convertible
from saccade.predict.engines.ctranslate import CONVERTED_FOLDER, check_decoding
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
        for side, more in (("reader", {}), ("writer", {"start_token": "pad", "output_bias": True}))
    },
    "two sizes": {
        "reader": {"stack": {**STACK, "dim": 36, "layers": 1}, "positions": {"layout": "concatenated"}},
        "writer": {"stack": {**STACK, "activation": "gelu"}, "tie": "output", "scale_embedding": False},
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
def test_an_output_at_its_limit_is_left_to_the_plain_search(make_run: Any) -> None:
    folder, decoding = make_run("one", seed=3), Decoding(beam=1, max_length=2, min_length=1)
    ours = Predictor.load(folder, device="cpu").candidates(LINES, decoding=decoding)
    theirs = Predictor.load(folder, device="cpu", engine="ctranslate2").candidates(LINES, decoding=decoding)
    assert [item.ids for [item] in theirs] == [item.ids for [item] in ours]
    assert {len(item.ids) for [item] in ours} >= {2}


@installed
def test_a_converted_model_is_reused_until_the_weights_change(make_run: Any) -> None:
    folder, note = make_run("one", seed=3), CONVERTED_FOLDER + "/" + SOURCE_HASH_FILE
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    when = (folder / note).stat().st_mtime_ns
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    assert (folder / note).stat().st_mtime_ns == when
    (folder / note).write_text("other weights")
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    assert (folder / note).read_text() != "other weights"


@installed
def test_an_unwritable_folder_is_reported(make_run: Any) -> None:
    folder = make_run("one", seed=3)
    (folder / CONVERTED_FOLDER).write_text("a file where a folder should be")
    with pytest.raises(SaccadeError, match=r"cannot write .*ctranslate2: .*; use engine torch"):
        Predictor.load(folder, device="cpu", engine="ctranslate2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reader": {"positions": {"kind": "rotary"}}}, "reader.positions.kind = 'rotary'"),
        ({"writer": {"positions": {"combine": "concat"}, "tie": "none"}}, "writer.positions.combine = 'concat'"),
        ({"writer": {"stack": {"window": 5}}}, r"writer.stack.window = \(5,\)"),
        ({"reader": {"stack": {"head_projection": "full"}}}, "reader.stack.head_projection = 'full'"),
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
def test_settings_that_ctranslate2_lacks_are_refused_by_name(change: dict, message: str) -> None:
    recipe = validate(change, origin="test", kinds={"own": object})
    with pytest.raises(SaccadeError, match=f"CTranslate2 cannot express {message}.*; use engine torch"):
        check_convertible(recipe)


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 4},
        *(
            {"beam": 1, **more}
            for more in ({"sample": True}, {"no_repeat_ngram": 3}, {"prefix": "a"}, {"ctc_weight": 0.3}, {"lm": "x"})
        ),
    ],
)
def test_searches_that_differ_from_ours_are_refused(settings: dict) -> None:
    name = list(settings)[-1]
    with pytest.raises(SaccadeError, match=f"text of our own search with {name} = .* only, got .*; set {name}="):
        check_decoding(Decoding(**settings))


def test_an_ensemble_is_refused(make_run: Any) -> None:
    with pytest.raises(SaccadeError, match="engine ctranslate2 takes one run, got 2; use engine torch"):
        Predictor.load([make_run("one"), make_run("two")], device="cpu", engine="ctranslate2")
