"""Continuations of prompts, and log-probabilities of texts."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.config.load import save, validate
from saccade.config.schema import Decoding, Tokenizer
from saccade.data.tokenization.tokenizers import END, START, Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.build.model import build
from saccade.model.inference import load_quantized_weights, prepack_weights, quantize_weights
from saccade.model.run import named_weights, write_tensors
from saccade.predict.decode import decode
from saccade.predict.engines import graphs
from saccade.predict.predictors.language import LanguageModel, count_unstable_characters, split_windows
from saccade.predict.search.greedy import log_softmax
from saccade.predict.search.prompted import PromptedWriter
from saccade.predict.search.request import Request
from saccade.runs import RECIPE, WEIGHTS

from .conftest import characters

LONGEST = 24
GREEDY = Decoding(beam=1)
SHORT = Decoding(beam=1, max_length=8)
DRAWN = SHORT.model_copy(update={"sample": True})
PROMPTS = ["abc", "a", "", "gfe dcb", "ÄÖ"]
FORMS = {
    "gpt": {},
    "banded": {"stack": {"window": ["none", 3]}},
    "grouped": {"stack": {"kv_heads": 1, "norm_kind": "rms"}, "positions": {"kind": "rotary"}},
    "relative": {"positions": {"kind": "transformer-xl"}},
}


@pytest.fixture
def make() -> Callable[..., LanguageModel]:
    def make(form: str = "gpt", *, seed: int = 0, letters: str = "abcdefg ", **sections: Any) -> LanguageModel:
        stack = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
        chosen = FORMS[form]
        writer = {"tie": "none", **chosen, "stack": {**stack, **chosen.get("stack", {})}}
        values = {
            "task": "language-model",
            "data": {"max_length": LONGEST},
            "reader": {"kind": "none"},
            "writer": writer,
        }
        recipe = validate({**values, **sections}, origin="test")
        both = characters(letters)
        torch.manual_seed(seed)
        model = build(recipe, source_size=both.size, target_size=both.size)
        with torch.no_grad():
            model.writer.output.weight.mul_(4.0)  # sharp enough for outputs of several lengths
        return LanguageModel(model, recipe=recipe, tokenizers=Tokenizers(both, both))

    return make


@pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")
def test_a_model_without_norms_has_no_parameters_once_it_is_packed(make: Callable[..., LanguageModel]) -> None:
    stack = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "none"}
    model = make(writer={"stack": stack, "tie": "none"})
    expected = model.predict(PROMPTS, decoding=SHORT)
    prepack_weights(model.model)
    assert model.predict(PROMPTS, decoding=SHORT) == expected
    quantized = make(writer={"stack": stack, "tie": "none"})
    load_quantized_weights(quantized.model, quantize_weights(quantized.model))
    assert not list(quantized.model.parameters()) and quantized.device.type == "cpu"
    assert len(quantized.predict(PROMPTS, decoding=SHORT)) == len(PROMPTS)


@torch.no_grad()
def by_hand(model: LanguageModel, prompt: str, *, most: int) -> str:
    """Greedy search with a full forward pass per token."""
    writer, ids = model.model.eval().writer, [START, *model.tokenizers.target.encode(prompt)[:-1]]
    written: list[int] = []
    while len(written) < most:
        logits = writer.head(writer(torch.tensor([[*ids, *written]]), None, None))[0, -1]
        logits[[0, 1, 3]] = -torch.inf
        token = int(logits.argmax())
        if token == END:
            break
        written.append(token)
    return model.tokenizers.target.decode(written)


@pytest.mark.parametrize("form", FORMS)
def test_continuations_are_those_of_greedy_search_by_hand(make: Any, form: str) -> None:
    model = make(form, seed=3)
    outputs = model.predict(PROMPTS, decoding=SHORT)
    assert outputs == [by_hand(model, prompt, most=8) for prompt in PROMPTS]
    assert len(set(outputs)) > 2


def test_without_max_length_all_positions_are_used(make: Any) -> None:
    model = make(seed=3)
    [[item]] = model.candidates(["abc"], decoding=Decoding(beam=1, min_length=20))
    assert (len(item.ids), item.finish) == (LONGEST - 4, "length")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decoding", [GREEDY, Decoding(beam=3, n_best=2), Decoding(beam=1, min_length=4, max_length=5)])
def test_static_buffers_give_the_same_continuations(make: Any, form: str, decoding: Decoding) -> None:
    """The steps that CUDA graphs replay, as plain calls."""
    model = make(form, seed=4)
    model.model.eval()
    prompts = torch.tensor([[START, 4, 5, 6], [START, 9, 8, 4]])
    with torch.no_grad():
        request = Request([7, 9], decoding, prompts=prompts)
        plain, fixed = decode(model.model, request).hypotheses, graphs.decode_static(model.model.writer, None, request)
    for one, other in zip(plain, fixed, strict=True):
        assert [item.ids for item in one] == [item.ids for item in other[: len(one)]]


def test_a_beam_finds_what_is_at_least_as_likely(make: Any) -> None:
    model = make(seed=5)
    for prompt in PROMPTS:
        [[greedy]] = model.candidates([prompt], decoding=Decoding(beam=1, length_penalty=0.0, max_length=4))
        [[wide]] = model.candidates([prompt], decoding=Decoding(beam=30, length_penalty=0.0, max_length=4))
        assert wide.score >= greedy.score - 1e-5


def test_samples_depend_on_the_seed_only(make: Any) -> None:
    model = make(seed=1)
    drawn = [model.predict(PROMPTS, decoding=DRAWN.model_copy(update={"seed": seed})) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("decoding", [SHORT, DRAWN, Decoding(beam=1, max_length=8, repetition_penalty=1.7)])
def test_streamed_tokens_are_those_of_the_whole_output(make: Any, decoding: Decoding) -> None:
    model = make(seed=3)
    for prompt in PROMPTS:
        pieces = list(model.write(prompt, decoding=decoding))
        assert "".join(pieces) == model.predict([prompt], decoding=decoding)[0]
    assert len(list(model.write("abc", decoding=SHORT))) > 3


def test_streaming_needs_a_single_output(make: Any) -> None:
    with pytest.raises(SaccadeError, match="tokens come one by one from a single output, got beam = 4"):
        next(make().write("abc", decoding=Decoding()))


# ---- stop texts


def test_an_output_ends_before_the_first_stop_string(make: Any) -> None:
    model = make(seed=3)
    plain = model.predict(PROMPTS, decoding=SHORT)
    stops = tuple(text[len(text) // 2 :][:2] for text in plain if len(text) > 3)[:2]
    decoding = SHORT.model_copy(update={"stop": stops})
    found = model.candidates(PROMPTS, decoding=decoding)
    for whole, [item], prompt in zip(plain, found, PROMPTS, strict=True):
        ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
        assert item.text == whole[: min(ends)] if ends else whole
        assert (item.finish == "stop") == bool(ends)
        assert "".join(model.write(prompt, decoding=decoding)) == item.text
        assert model.tokenizers.target.decode(item.ids) == item.text
    assert {item.finish for [item] in found} >= {"stop"}


def test_the_start_of_a_stop_string_is_held_back() -> None:
    assert count_unstable_characters("a b", ["bcd"]) == 1
    assert count_unstable_characters("a bc", ["bcd", "cx"]) == 2
    assert count_unstable_characters("a b\ufffd\ufffd", []) == 2
    assert count_unstable_characters("a", ["bcd"]) == 0


# ---- penalties


def test_penalties_by_hand() -> None:
    writer = PromptedWriter(None, repetition=2.0, frequency=0.5)
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    log_probs = logits.log_softmax(-1)[0].tolist()
    got = writer.penalize_repetition(logits, torch.tensor([[1, 3, 3]]))[0].tolist()
    expected = [log_probs[0], 2 * log_probs[1] - 0.5, log_probs[2], 2 * log_probs[3] - 1.0]
    assert got == pytest.approx(expected)
    assert writer.penalize_repetition(logits + 7, torch.tensor([[1, 3, 3]]))[0].tolist() == pytest.approx(
        expected, abs=1e-5
    )


@torch.no_grad()
def test_penalties_count_prompt_and_output(make: Any) -> None:
    model = make(seed=3)
    writer = PromptedWriter(model.model.eval().writer, frequency=3.0)
    plain = PromptedWriter(model.model.writer)
    prompt = torch.tensor([[START, 4, 5, 5]])
    one, other = (w.start(None, prompt, capacity=9) for w in (writer, plain))
    for token, seen in ((START, {4: 1, 5: 2}), (6, {4: 1, 5: 2, 6: 1})):
        ours, theirs = (w.step(torch.tensor([[token]]), s) for w, s in ((writer, one), (plain, other)))
        lower = log_softmax(theirs.logits.clone()) - ours.logits
        for number in range(lower.shape[1]):
            assert float(lower[0, number]) == pytest.approx(3.0 * seen.get(number, 0), abs=1e-4)
        one, other = ours.state, theirs.state


def test_a_large_penalty_lets_nothing_occur_twice(make: Any) -> None:
    model = make(seed=3)
    decoding = Decoding(beam=1, frequency_penalty=1e4, min_length=6, max_length=6)
    for prompt, output in zip(PROMPTS[:4], model.predict(PROMPTS[:4], decoding=decoding), strict=True):
        fresh = [letter for letter in output[: 8 - len(set(prompt))] if letter in prompt]
        assert not fresh


# ---- lengths


def test_too_long_a_prompt_is_refused_with_suggestions(make: Any) -> None:
    model = make(seed=3)
    with pytest.raises(
        SaccadeError, match=r"prompt 2 has 23 tokens, and at least 1 more .* for 24 .*truncate_prompt=true"
    ):
        model.predict(["a", "a" * 23])
    with pytest.raises(SaccadeError, match=r"prompt 1 has 10 tokens, and at least 14 more are to be generated"):
        model.predict(["a" * 10], decoding=Decoding(max_length=14))
    with pytest.raises(
        SaccadeError, match="outputs of 24 tokens were requested .* made for 24 with <end>; request fewer"
    ):
        model.predict(["a"], decoding=Decoding(max_length=24))


def test_truncate_prompt_keeps_the_last_tokens(make: Any) -> None:
    model = make(seed=3)
    long = "gfedcba" * 9
    some = model.predict([long, "ab"], decoding=Decoding(beam=1, truncate_prompt=True, max_length=5))
    assert some == model.predict([long[-18:], "ab"], decoding=Decoding(beam=1, max_length=5))
    half = Decoding(beam=1, truncate_prompt=True)
    assert model.predict([long], decoding=half) == model.predict([long[-12:]], decoding=GREEDY)


def test_outputs_before_too_long_a_prompt_are_not_lost(make: Any) -> None:
    model = make(seed=3)
    found = model.stream(["a", "b", "a" * 30], decoding=GREEDY)
    assert [item.text for item in (next(found)[0], next(found)[0])] == model.predict(["a", "b"], decoding=GREEDY)
    with pytest.raises(SaccadeError, match="prompt 3 has 30 tokens"):
        next(found)


def test_the_finish_reason_is_reported(make: Any) -> None:
    model = make(seed=3)
    [[short]] = model.candidates(["abc"], decoding=Decoding(beam=1, max_length=2, min_length=2))
    assert (short.finish, len(short.ids)) == ("length", 2)
    ends = [item.finish for [item] in model.candidates(PROMPTS * 3, decoding=Decoding(sample=True, beam=1))]
    assert "end" in ends


# ---- how likely


@torch.no_grad()
def log_probs_by_hand(model: LanguageModel, ids: list[int]) -> list[float]:
    writer = model.model.eval().writer
    logs = writer.head(writer(torch.tensor([[START, *ids[:-1]]]), None, None)).log_softmax(-1)
    return [float(logs[0, i, token]) for i, token in enumerate(ids)]


def test_each_token_of_a_completion_has_its_log_probability(make: Any) -> None:
    model = make(seed=3)
    decoding = Decoding(sample=True, beam=1, temperature=2.0, repetition_penalty=1.5, max_length=8)
    for prompt, [item] in zip(PROMPTS, model.candidates(PROMPTS, decoding=decoding), strict=True):
        before = model.tokenizers.target.encode(prompt)[:-1]
        expected = log_probs_by_hand(model, [*before, *item.ids])[len(before) :] if item.ids else []
        assert item.log_probs == pytest.approx(expected, abs=1e-4)
        assert item.log_prob == pytest.approx(sum(expected), abs=1e-4)


def test_score_of_a_completion_is_the_sum_of_its_tokens(make: Any) -> None:
    model = make(seed=2)
    whole = log_probs_by_hand(model, model.tokenizers.target.encode("abc def")[:-1])
    assert model.score([("abc", " def"), ("", "abc def")]) == pytest.approx([sum(whole[3:]), sum(whole)], abs=1e-4)


def test_tokens_of_a_text_with_their_log_probabilities(make: Any) -> None:
    model = make(seed=2)
    [scores] = model.token_scores(["ab c"])
    assert [score.token for score in scores] == ["a", "b", "␣", "c"]
    expected = log_probs_by_hand(model, model.tokenizers.target.encode("ab c")[:-1])
    assert [score.log_prob for score in scores] == pytest.approx(expected, abs=1e-4)


def test_windows_contain_every_token_once_after_one_of_context() -> None:
    ids = list(range(20))
    windows = list(split_windows(ids, 6))
    assert [token for given, window in windows for token in window[given:]] == ids
    assert [window[0] for given, window in windows if given] == [5, 10, 15]
    assert max(len(window) for _, window in windows) == 6
    assert list(split_windows([7], 6)) == [(0, [7])]


def test_likelihood_sums_all_documents_in_windows(make: Any) -> None:
    model = make(seed=2)
    long = "gfe dcba" * 6
    fit = model.compute_likelihood([long, "abc", "äb"])
    ids = model.tokenizers.target.encode(long)
    nll = -sum(log_probs_by_hand(model, ids[:LONGEST]))
    for begin in (24, 47):
        nll -= sum(log_probs_by_hand(model, ids[begin - 1 : begin + 23])[1:])
    for text in ("abc", "äb"):
        nll -= sum(log_probs_by_hand(model, model.tokenizers.target.encode(text)))
    assert fit.nll == pytest.approx(nll, abs=1e-3)
    assert fit[1:] == (49 + 4 + 3, 48 + 3 + 3, 3, 1)
    assert math.isclose(model.compute_likelihood([]).nll, 0.0)


# ---- around it


def test_loading_a_run_gives_a_language_model(make: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        model = make(seed=seed)
        (tmp_path / name).mkdir()
        save(model.recipe, tmp_path / name / RECIPE)
        model.tokenizers.save(tmp_path / name)
        write_tensors(named_weights(model.model), tmp_path / name / WEIGHTS)
    loaded = saccade.load(tmp_path / "b")
    assert isinstance(loaded, LanguageModel)
    assert loaded.predict(PROMPTS, decoding=SHORT) == model.predict(PROMPTS, decoding=SHORT)
    both = saccade.load([tmp_path / "a", tmp_path / "b"])
    assert len(both.predict(PROMPTS, decoding=SHORT)) == len(PROMPTS)
    alone = [saccade.load(tmp_path / name).token_scores(["abc"])[0] for name in ("a", "b")]
    mean = [math.log((math.exp(a.log_prob) + math.exp(b.log_prob)) / 2) for a, b in zip(*alone, strict=True)]
    assert [score.log_prob for score in both.token_scores(["abc"])[0]] == pytest.approx(mean, abs=1e-4)
    with pytest.raises(SaccadeError, match="CTranslate2 cannot express reader.kind = 'none'"):
        saccade.load(tmp_path / "a", engine="ctranslate2")


def test_attention_of_prompt_and_output(make: Any) -> None:
    model = make(seed=3)
    seen = model.attention("abc", " de")
    assert seen.text == "abc de"
    assert seen.source_labels == []
    assert set(seen.maps) == {"writer.stack.blocks.0.self", "writer.stack.blocks.1.self"}
    assert seen.maps["writer.stack.blocks.0.self"].shape == (11, 7, 7)
    with pytest.raises(SaccadeError, match="has no source that its output could be aligned to"):
        model.candidates(["abc"], align=True)


def test_settings_of_prompts_are_refused_by_other_models(make_predictor: Any) -> None:
    for change in (
        {"stop": ("a",)},
        {"truncate_prompt": True},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.5},
    ):
        [name] = change
        with pytest.raises(
            SaccadeError, match=f'{name} is for models that continue a prompt .task = "language-model".'
        ):
            make_predictor().predict(["abc"], decoding=Decoding(beam=1, **change))


def test_an_incomplete_character_is_held_back(make: Any) -> None:
    """Bytes are generated one by one: emitted text is never taken back, and adds up to the whole."""
    model = make(seed=8)
    both = train_tokenizers(Tokenizer(kind="bytes"), lambda: ())
    torch.manual_seed(2)
    model.model = build(model.recipe, source_size=both.target.size, target_size=both.target.size)
    model.tokenizers = both
    for seed in range(6):
        drawn = Decoding(sample=True, beam=1, seed=seed, min_length=12, max_length=12)
        pieces = list(model.write("ä", decoding=drawn))
        assert "".join(pieces) == model.predict(["ä"], decoding=drawn)[0]
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
