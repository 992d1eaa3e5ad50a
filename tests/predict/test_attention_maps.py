"""Views and labelled attention arrays of all kinds of models."""

from typing import Any

import numpy as np
import pytest

from saccade.config.load import validate
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.outputs import AttentionMaps, get_attention_part
from saccade.predict.predictors.language import LanguageModel

from .conftest import characters
from .test_convolution import SYSTEMS as CONVOLUTION
from .test_mask_predict import STACK
from .test_recurrent import parts

FILL = {
    "writer": {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5},
    "objectives": [{"kind": "fill"}],
}
SYSTEMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "transformer": ({}, ["reader", "reader", "writer", "cross", "writer", "cross"]),
    "nat": (FILL, ["reader", "reader", "writer", "cross", "writer", "cross"]),
    "convs2s": (CONVOLUTION["convs2s"], ["cross", "cross", "cross"]),
    "bytenet": (CONVOLUTION["bytenet"], []),
    "bahdanau": (parts("bahdanau"), ["cross"]),
    "sutskever": (parts("sutskever"), []),
}


@pytest.fixture
def language_model() -> LanguageModel:
    writer = {"stack": {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}, "tie": "none"}
    values = {"task": "language-model", "data": {"max_length": 24}, "reader": {"kind": "none"}, "writer": writer}
    both = characters("abcdefg ")
    recipe = validate(values, origin="test")
    model = build(recipe, source_size=both.size, target_size=both.size)
    return LanguageModel(model, recipe=recipe, tokenizers=Tokenizers(both, both))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_a_view(make_predictor: Any, system: str) -> None:
    sections, found = SYSTEMS[system]
    predictor = make_predictor(seed=2, **sections)
    view = predictor.view("abc d", title="mine")
    assert [entry.part for entry in view.maps] == found
    assert (view.title, view.input, view.output) == ("mine", "abc d", predictor.predict(["abc d"])[0])
    assert view.labels["source"] == [*"abc", "␣", "d", "<end>"]
    assert view.words["source"] == [[0, 1, 2], [3, 4], [5]]
    for entry in view.maps:
        np.testing.assert_allclose(entry.weights.sum(-1), 1.0, atol=1e-5)
    assert (view.steps == []) == (system == "nat")  # all tokens at once: there are none
    assert view.html() and view.document()["schema"] == 1


def test_a_language_model_attends_to_prompt_and_output(language_model: LanguageModel) -> None:
    view = language_model.view("ab c")
    ids = language_model.candidates(["ab c"])[0][0].ids
    assert [entry.name for entry in view.maps] == [f"self-attention of the writer, layer {n}" for n in (1, 2)]
    assert view.input == "ab c" and view.output == language_model.predict(["ab c"])[0]
    assert len(view.steps) == len(view.labels["target"]) == 4 + len(ids) + 1
    assert [bool(step["beam"]) for step in view.steps] == [False] * 4 + [True] * (len(ids) + 1)
    assert view.labels["source"] == [] and view.labels["seen"][:2] == ["<start>", "a"]


def test_a_given_continuation_is_teacher_forced(language_model: LanguageModel) -> None:
    view = language_model.view("ab", " cd")
    assert view.labels["target"] == [*"ab", "␣", *"cd", "<end>"]
    assert view.output == " cd"
    after = sum(step["log_prob"] for step in view.steps[2:-1])
    assert after == pytest.approx(language_model.score([("ab", " cd")])[0], abs=1e-4)


def test_attention_gives_labelled_arrays(make_predictor: Any) -> None:
    seen = make_predictor(seed=2).attention("abcd", "fg")
    entry = seen["writer.stack.blocks.1.cross"]
    assert list(seen) == list(seen.maps) and len(seen) == 6
    assert entry.axes == ("head", "target", "source")
    assert entry.labels == {"target": ["f", "g", "<end>"], "source": [*"abcd", "<end>"]}
    np.testing.assert_array_equal(np.asarray(entry), seen.maps[entry.address].numpy())
    assert [value.layer for value in seen.values() if value.part == "reader"] == [1, 2]


def test_states_without_tokens_are_numbered(make_predictor: Any) -> None:
    """A pyramidal reader returns another number of states than tokens."""
    sections = {name: {**part} for name, part in CONVOLUTION["convs2s"].items()}
    sections["reader"]["stack"] = {**sections["reader"]["stack"], "unfold": [1.0, 3]}
    view = make_predictor(seed=2, **sections).view("abc", "de")
    assert view.maps[0].columns == "source states"
    assert view.labels["source states"] == [str(n) for n in range(1, 8)]
    assert view.document()["labels"]["source states"]


def test_shared_layers_are_labelled_by_part() -> None:
    addresses = ["reader.stack.blocks.0.self#1", "writer.stack.blocks.0.cross#1", "writer.stack.blocks.0.self#2"]
    assert [get_attention_part(address) for address in addresses] == ["reader", "cross", "writer"]


def test_an_empty_text_has_no_words() -> None:
    assert AttentionMaps({}, [], [], "", []).labels == {"source": [], "target": [], "seen": []}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("  ", None, "attention needs a text, got an empty one"),
        ("a" * 30, "b", "source 1 has 31 tokens, but the model was made for at most 24"),
        ("a", "b" * 30, "output 1 has 31 tokens, but the model was made for at most 24"),
    ],
)
def test_inputs_without_attention_are_refused(
    make_predictor: Any, source: str, target: str | None, message: str
) -> None:
    with pytest.raises(SaccadeError, match=message):
        make_predictor().view(source, target)


def test_several_runs_are_refused(make_predictor: Any) -> None:
    predictor = make_predictor()
    predictor.loaded.members = 2
    with pytest.raises(SaccadeError, match="attention is shown for one run at a time, got 2; give one"):
        predictor.view("abc")
