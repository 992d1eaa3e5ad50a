import importlib.util
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from saccade.config.load import validate
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.model.run import write_tensors
from saccade.predict.engines.convert import SOURCE_HASH_FILE, check_convertible
from saccade.predict.engines.ctranslate import CONVERTED_FOLDER, CTranslate2, check_decoding
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.request import Request
from saccade.runs import RECIPE, WEIGHTS

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
        ({"reader": {"causal": True}}, "reader.causal = true"),
        ({"reader": {"concat_embedding": True}}, "reader.concat_embedding = true"),
        ({"reader": {"embedding_dim": 32}, "writer": {"tie": "output"}}, "reader.embedding_dim = 32"),
        ({"reader": {"segments": 2}}, "reader.segments = 2"),
        ({"reader": {"stack": {"kind": "recurrent"}}}, "reader.stack.kind = 'recurrent'"),
        ({"reader": {"stack": {"kv_heads": 2}}}, "reader.stack.kv_heads = 2"),
        ({"writer": {"stack": {"score": "additive"}}}, "writer.stack.score = 'additive'"),
        ({"writer": {"output_scale": True}}, "writer.output_scale = true"),
        ({"reader": {"stack": {"norm": "none"}}}, "reader.stack.norm = 'none'"),
        ({"writer": {"stack": {"ff": 0}}}, "writer.stack.ff = 0"),
        ({"reader": {"stack": {"experts": {}}}}, "reader.stack.experts"),
        ({"writer": {"stack": {"residual": False}}}, "writer.stack.residual = false"),
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
            for more in (
                {"sample": True},
                {"no_repeat_ngram": 3},
                {"prefix": "a"},
                {"ctc_weight": 0.3},
                {"lm": "x"},
                {"stop": ("a",)},
            )
        ),
    ],
)
def test_searches_that_differ_from_ours_are_refused(settings: dict) -> None:
    name = list(settings)[-1]
    with pytest.raises(SaccadeError, match=f"text of our own search with {name} = .* only, got .*; set {name}="):
        check_decoding(Decoding(**settings))


def test_settings_that_say_what_is_the_default_are_accepted() -> None:
    same = {"stack": {"dim": 24, "heads": 3, "head_dim": 8, "kv_heads": 3, "cross_score": "scaled-dot", "dropout": 0.3}}
    reader, writer = check_convertible(validate({"reader": same, "writer": same}, origin="test"))
    assert reader.stack.head_dim == writer.stack.head_dim == 8


@installed
def test_log_probabilities_are_over_the_whole_vocabulary(make_run: Any) -> None:
    """Tokens that no output may contain have probabilities too; here they have most of it."""
    folder = make_run(
        "one", seed=3, writer={"stack": STACK, "tie": "none", "output_bias": True}, reader={"stack": STACK}
    )
    weights = load_file(folder / WEIGHTS)
    weights["writer.output.bias"][[PAD, START, UNKNOWN, END]] = torch.tensor([25.0, 25.0, 25.0, 20.0])
    write_tensors(weights, folder / WEIGHTS)
    ours, theirs = (Predictor.load(folder, device="cpu", engine=engine) for engine in ("torch", "ctranslate2"))
    expected, found = (one.candidates(LINES, decoding=Decoding(beam=1, min_length=3)) for one in (ours, theirs))
    assert {len(item.ids) for [item] in found} == {3}  # none is left to the plain search
    assert [item.log_prob for [item] in found] == pytest.approx([item.log_prob for [item] in expected], abs=1e-3)
    pairs = [(line, item.text) for line, [item] in zip(LINES, found)]
    assert [item.log_prob for [item] in found] == pytest.approx(ours.score(pairs), abs=1e-3)


@installed
def test_a_model_is_converted_again_when_its_recipe_changes(make_run: Any) -> None:
    """The weights are the same, but not what is computed with them."""
    folder = make_run("one", seed=3)
    Predictor.load(folder, device="cpu", engine="ctranslate2")
    recipe = (folder / RECIPE).read_text()
    (folder / RECIPE).write_text(recipe.replace('activation = "relu"', 'activation = "silu"'))
    ours, theirs = (Predictor.load(folder, device="cpu", engine=engine) for engine in ("torch", "ctranslate2"))
    sources, outputs = ours.tokenizers.source.encode_all(LINES), ours.tokenizers.target.encode_all(LINES[::-1])
    found = theirs.loaded.translator.score(sources, [ids[:-1] for ids in outputs])
    assert found == pytest.approx(ours.score(list(zip(LINES, LINES[::-1]))), abs=1e-3)


@installed
def test_long_and_empty_sources_are_read_as_they_are(make_run: Any) -> None:
    """CTranslate2 truncates sources after 1,024 tokens unless max_input_length is 0, and skips those of END alone."""
    folder = make_run("one", seed=3, data={"max_length": 1200})
    ours, theirs = (Predictor.load(folder, device="cpu", engine=engine) for engine in ("torch", "ctranslate2"))
    sources = [[*([4, 5, 6, 7] * 270), *([8] * 60), END], [END]]
    request = Request([3, 3], Decoding(beam=1, min_length=2), Batch({"source": pad(sources)}))
    [[long], [empty]] = theirs.loaded.decode(request).hypotheses
    [[expected], [also]] = ours.loaded.decode(request).hypotheses
    assert (long.ids, empty.ids) == (expected.ids, also.ids)
    assert [long.log_prob, empty.log_prob] == pytest.approx([expected.log_prob, also.log_prob], abs=1e-3)
    assert theirs.loaded.translator.score(sources[:1], [long.ids]) == pytest.approx([expected.log_prob], abs=1e-3)


@installed
@pytest.mark.parametrize("more", [{"prefix": [5, 6]}, {"prompts": torch.tensor([[START, 5]])}, {"stop_rule": print}])
def test_requests_for_other_searches_are_declined(more: dict, make_run: Any) -> None:
    translator = Predictor.load(make_run("one", seed=3), device="cpu", engine="ctranslate2").loaded.translator
    request = Request([9], GREEDY, Batch({"source": pad([[4, END]])}), **more)
    support = CTranslate2(translator).supports(None, request)
    assert not support and support.reason == "outputs continue prompts or a prefix, or end at a given text"


def test_an_ensemble_is_refused(make_run: Any) -> None:
    with pytest.raises(SaccadeError, match="engine ctranslate2 takes one run, got 2; use engine torch"):
        Predictor.load([make_run("one"), make_run("two")], device="cpu", engine="ctranslate2")
