import random
import re
import threading
from typing import Any

import pytest
import torch

import saccade
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.model.writers.tokens import shift_right
from saccade.predict.lines import group_by_length
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Texts of random lengths, some empty, some of unknown characters."""
    draw = random.Random(seed)
    some = ["".join(draw.choices("abcdefg ", k=draw.randint(1, 19))).strip() for _ in range(count)]
    return [*some, "", "ÄÖÜ", "   ", "a"]


def assert_same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    for a, b in zip(one, other, strict=True):
        assert [item.ids for item in a] == [item.ids for item in b]
        assert [item.score for item in a] == pytest.approx([item.score for item in b], abs=1e-5, rel=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_steps_give_the_logits_of_teacher_forcing(make_predictor: Any, norm: str) -> None:
    model = make_predictor(norm=norm).model.eval()
    batch = Batch({"source": pad([[4, 5, 6, 2], [7, 2]]), "target": pad([[5, 5, 6, 7, 2], [8, 4, 9, 10, 2]])})
    ids = shift_right(batch["target"].ids, START)
    with torch.inference_mode():
        memory = model.read(batch)
        whole = model.writer.head(model.writer(ids, batch["target"].mask, memory))
        state = model.writer.start(memory, capacity=5)
        for t in range(5):
            step = model.writer.step(ids[:, t : t + 1], state)
            state = step.state.reorder(torch.tensor([0, 1]))
            torch.testing.assert_close(step.logits, whole[:, t], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "decoding", [Decoding(beam=1), Decoding(beam=5, n_best=3), Decoding(beam=3, no_repeat_ngram=2)]
)
def test_batched_is_one_at_a_time(make_predictor: Any, decoding: Decoding) -> None:
    predictor, lines = make_predictor(seed=5), texts(9)
    together = predictor.candidates(lines, decoding=decoding)
    alone = [predictor.candidates([line], decoding=decoding)[0] for line in lines]
    assert_same(together, alone)
    assert len({len(item[0].ids) for item in together}) > 4


def test_small_batches_give_the_same_in_the_order_of_the_lines(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=11), texts(9)
    large = predictor.candidates(lines, decoding=Decoding())
    small = predictor.candidates(lines, decoding=Decoding(batch_tokens=50))
    assert_same(large, small)


def test_decoding_defaults_to_the_recipe(make_predictor: Any) -> None:
    predictor = make_predictor(seed=2, predict={"beam": 1, "max_length": 3})
    assert predictor.predict(["abc"]) == predictor.predict(["abc"], decoding=Decoding(beam=1, max_length=3))
    assert len(predictor.predict(["abc"])[0]) <= 3


def test_an_empty_line_stays_empty(make_predictor: Any) -> None:
    assert make_predictor(seed=2).predict(["", "abc", "  "])[::2] == ["", ""]
    assert make_predictor().predict([]) == []


def test_only_unknown_characters_give_some_output(make_predictor: Any) -> None:
    [output] = make_predictor(seed=2).predict(["ÄÖÜ"], decoding=Decoding(min_length=2))
    assert len(output) >= 2


@pytest.mark.parametrize("decoding", [Decoding(beam=4, n_best=4), Decoding(beam=1), Decoding(sample=True, n_best=3)])
def test_score_is_the_log_probability_of_the_search(make_predictor: Any, decoding: Decoding) -> None:
    predictor, lines = make_predictor(seed=6), ["abc", "gfedcba gfedcba", "b"]
    outputs = predictor.candidates(lines, decoding=decoding)
    pairs = [(line, item.text) for line, items in zip(lines, outputs, strict=True) for item in items]
    expected = [item.log_prob for items in outputs for item in items]
    assert predictor.score(pairs) == pytest.approx(expected, abs=1e-4)


def test_score_does_not_depend_on_the_batch(make_predictor: Any) -> None:
    predictor = make_predictor(predict={"batch_tokens": 64})
    pairs = list(zip(texts(9), texts(9, seed=1), strict=True))
    assert predictor.score(pairs) == pytest.approx([predictor.score([pair])[0] for pair in pairs], abs=1e-4)


def test_n_best_is_sorted_and_distinct(make_predictor: Any) -> None:
    for outputs in make_predictor(seed=2).candidates(["abc", "gg a"], decoding=Decoding(beam=7, n_best=7)):
        assert len({tuple(item.ids) for item in outputs}) == 7
        assert [item.score for item in outputs] == sorted((item.score for item in outputs), reverse=True)


def test_outputs_begin_with_the_prefix_and_keep_to_the_lengths(make_predictor: Any) -> None:
    decoding = Decoding(beam=3, n_best=3, prefix="fade", min_length=6, max_length=9)
    for outputs in make_predictor(seed=2).candidates(["abc", "g", "d d d"], decoding=decoding):
        assert all(item.text.startswith("fade") and 6 <= len(item.ids) <= 9 for item in outputs)


def test_no_sequence_repeats_when_forbidden(make_predictor: Any) -> None:
    plain, strict = (make_predictor(seed=0).predict(["abc"], decoding=Decoding(no_repeat_ngram=n))[0] for n in (0, 2))
    pairs = [strict[i : i + 2] for i in range(len(strict) - 1)]
    assert len(set(pairs)) == len(pairs) > 2
    assert "cccc" in plain


def test_samples_repeat_with_their_seed(make_predictor: Any) -> None:
    predictor, lines = make_predictor(), texts(5)
    first, again, other = (
        predictor.predict(lines, decoding=Decoding(sample=True, top_k=5, top_p=0.9, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_streamed_samples_do_not_depend_on_timing(make_predictor: Any) -> None:
    predictor, decoding = make_predictor(), Decoding(sample=True)
    first, again = (list(predictor.stream(iter(texts(3)), decoding=decoding)) for _ in range(2))
    assert first == again


def test_alignments_have_one_weight_for_each_source_token(make_predictor: Any) -> None:
    predictor = make_predictor(seed=2)
    for line, outputs in zip(["abc", "gfedc"], predictor.candidates(["abc", "gfedc"], align=True), strict=True):
        weights = torch.tensor(outputs[0].alignment)
        assert weights.shape == (len(outputs[0].ids), len(line) + 1)
        torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))


def test_stream_is_predict(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=2), texts(11)
    streamed = predictor.stream(line + "\n" for line in lines)
    assert [outputs[0].text for outputs in streamed] == predictor.predict(lines)


def test_the_first_output_comes_before_the_last_line(make_predictor: Any) -> None:
    answered = threading.Event()

    def slow() -> Any:
        yield "abc"
        assert answered.wait(20)
        yield "b"

    outputs = make_predictor(seed=2).stream(slow())
    assert next(outputs)
    answered.set()
    assert len(list(outputs)) == 1


def test_a_long_line_is_named(make_predictor: Any) -> None:
    predictor = make_predictor()
    message = "line 2 has 100001 tokens, but the model was made for at most 24"
    with pytest.raises(SaccadeError, match=message):
        predictor.predict(["a", "b" * 100_000])
    streamed = predictor.stream(["a", "b", "c" * 24])
    assert len([next(streamed), next(streamed)]) == 2  # what stands before it comes out
    with pytest.raises(SaccadeError, match="line 3 has 25 tokens"):
        next(streamed)
    with pytest.raises(SaccadeError, match="output 1 has 25 tokens"):
        predictor.score([("a", "c" * 24)])


def test_impossible_lengths_are_refused(make_predictor: Any) -> None:
    predictor = make_predictor()
    with pytest.raises(SaccadeError, match="max_length must be at most 23"):
        predictor.predict(["a"], decoding=Decoding(max_length=24))
    with pytest.raises(SaccadeError, match="at least 5 tokens .* at most 3"):
        predictor.predict(["a"], decoding=Decoding(max_length=3, min_length=5))
    with pytest.raises(SaccadeError, match="prefix of 4 tokens"):
        predictor.predict(["a"], decoding=Decoding(max_length=3, prefix="abcd"))


@pytest.mark.parametrize("beam", [1, 3])
def test_nan_weights_are_reported(make_predictor: Any, beam: int) -> None:
    predictor = make_predictor()
    with torch.no_grad():
        predictor.model.writer.output.weight.fill_(torch.nan)
    with pytest.raises(SaccadeError, match="no finite probabilities for line 2"):
        predictor.predict(["", "abc"], decoding=Decoding(beam=beam))


def test_attention_shows_every_layer_and_head(make_predictor: Any) -> None:
    seen = make_predictor(seed=2).attention("abcd", "fg")
    assert seen.source_labels == ["a", "b", "c", "d", "<end>"]
    assert seen.target_labels == ["f", "g", "<end>"]
    shapes = {address: tuple(weights.shape) for address, weights in seen.maps.items()}
    assert set(shapes.values()) == {(11, 5, 5), (11, 3, 3), (11, 3, 5)}
    assert len([address for address in shapes if re.fullmatch(r"writer\.stack\.blocks\.[01]\.cross.*", address)]) == 2
    for address, weights in seen.maps.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), msg=address)


def test_attention_of_a_prediction_is_that_of_its_text(make_predictor: Any) -> None:
    predictor = make_predictor(seed=6)
    own = predictor.attention("abc")
    given = predictor.attention("abc", own.text)
    assert own.text == predictor.predict(["abc"])[0]
    assert all(torch.equal(own.maps[address], given.maps[address]) for address in given.maps)


def test_attention_needs_a_text(make_predictor: Any) -> None:
    with pytest.raises(SaccadeError, match="got an empty one"):
        make_predictor().attention("  ")


def test_a_model_in_training_mode_returns_to_it(make_predictor: Any) -> None:
    predictor = make_predictor(seed=2)
    predictor.model.train()
    first, again = predictor.predict(["abc"]), predictor.predict(["abc"])  # no dropout
    assert first == again
    assert predictor.model.training
    loss = predictor.model.read(Batch({"source": pad([[4, 2]])})).states.sum()
    loss.backward()  # nothing of inference mode stays behind


def test_a_run_folder_predicts_as_the_model_in_memory(make_predictor: Any, make_run: Any) -> None:
    lines, folder = texts(5), make_run("one", seed=2)
    expected = make_predictor(seed=2).candidates(lines)
    assert_same(Predictor.load(folder, device="cpu").candidates(lines), expected)
    assert_same(saccade.load(folder.rename(folder.parent / "moved"), device="cpu").candidates(lines), expected)


def test_no_run_is_refused() -> None:
    with pytest.raises(SaccadeError, match="no run was given"):
        Predictor.load([])


def test_groups_keep_to_the_budget_and_lose_nothing() -> None:
    lengths = [3, 50, 9, 9, 1, 20, 6, 9]
    groups = list(group_by_length(lengths, budget=27))
    assert groups == [[1], [5], [2, 3, 7], [6, 0, 4]]


def test_a_single_text_is_not_taken_for_a_list_of_letters(make_predictor: Any) -> None:
    predictor = make_predictor()
    assert [predictor.predict("abc")] == predictor.predict(["abc"])
    with pytest.raises(SaccadeError, match="got the single text 'abc'; put it in a list"):
        next(predictor.decoder.candidates("abc", decoding=predictor.recipe.predict))


def test_nothing_to_score_gives_no_scores(make_predictor: Any) -> None:
    assert make_predictor().score([]) == []
