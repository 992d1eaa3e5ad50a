"""Length limits of outputs, and the message about truncated ones."""

from typing import Any

import pytest

from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import END
from saccade.predict.decode import MIN_LENGTH_LIMIT, compute_length_limits
from saccade.predict.outputs import Hypothesis, format_truncation_message, get_truncated_lengths


def test_a_short_source_may_have_a_long_output() -> None:
    assert compute_length_limits([1, 9, 15, 16, 40], decoding=Decoding(), max_length=256) == [50, 50, 50, 52, 100]


def test_no_output_is_longer_than_the_positions_of_the_model() -> None:
    assert compute_length_limits([1, 9, 40], decoding=Decoding(), max_length=24) == [23, 23, 23]
    assert compute_length_limits([1, 40], decoding=Decoding(), max_length=64) == [50, 63]


def test_requested_lengths_are_respected() -> None:
    assert compute_length_limits([1, 40], decoding=Decoding(max_length=7), max_length=64) == [7, 7]
    assert compute_length_limits([1, 40], decoding=Decoding(min_length=55), max_length=256) == [55, 100]


@pytest.mark.parametrize("decoding", [Decoding(beam=1), Decoding(beam=3, n_best=2), Decoding(sample=True, beam=1)])
def test_outputs_that_do_not_end_are_truncated_and_marked(make_predictor: Any, decoding: Decoding) -> None:
    predictor = make_predictor(seed=2, data={"max_length": 96})
    endless(predictor)
    found = predictor.candidates(["abc", "b" * 20, ""], decoding=decoding)
    assert [{len(one.ids) for one in outputs} for outputs in found] == [{MIN_LENGTH_LIMIT}, {2 * 21 + 20}, {0}]
    assert [{one.finish for one in outputs} for outputs in found] == [{"length"}, {"length"}, {""}]
    assert get_truncated_lengths(outputs[0] for outputs in found) == (50, 62)


def test_outputs_that_end_are_not_marked(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=5), ["abc", "gfed", "a", "bb c", "g f", "d", "cab fed"]
    found = [one for [one] in predictor.candidates(lines, decoding=Decoding(sample=True, beam=1))]
    assert [one.finish == "length" for one in found] == [len(one.ids) == 23 for one in found]
    assert {one.finish for one in found} == {"", "length"}


def test_a_requested_length_is_no_truncation(make_predictor: Any) -> None:
    [[one]] = make_predictor().candidates(["abc"], decoding=Decoding(beam=1, min_length=4, max_length=4))
    assert (len(one.ids), one.finish) == (4, "")


def test_the_message_suggests_max_length() -> None:
    assert format_truncation_message([50, 62], 1000, max_length=96) == (
        "2 of 1,000 outputs were cut at 50 to 62 tokens; with max_length=95 (predict.max_length) they may be longer"
    )
    assert format_truncation_message([1], 3, max_length=96).startswith(
        "1 of 3 outputs was cut at 1 token; with max_length=95"
    )
    assert format_truncation_message([95, 95], 2, max_length=96) == (
        "2 of 2 outputs were cut at 95 tokens, the most that the model was made for (data.max_length = 96)"
    )


def test_only_truncated_outputs_count() -> None:
    some = [Hypothesis([4, 5], "", 0.0, 0.0, finish=finish) for finish in ("", "end", "stop", "length")]
    assert get_truncated_lengths(some) == (2,)


def endless(predictor: Any) -> None:
    """Make END the least probable token at every step."""
    head = predictor.model.writer.head

    def without_end(states: Any) -> Any:
        logits = head(states)
        logits[..., END] = -50.0
        return logits

    predictor.model.writer.head = without_end
