"""How many tokens an output may have, and what is told of one that was cut there."""

from typing import Any

import pytest

from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import END
from saccade.predict.decode import SHORTEST, length_limits
from saccade.predict.outputs import Hypothesis, cut_lengths, told_of_cut


def test_a_short_source_may_have_a_long_output() -> None:
    assert length_limits([1, 9, 15, 16, 40], decoding=Decoding(), longest=256) == [50, 50, 50, 52, 100]


def test_no_output_is_longer_than_the_model_was_made_for() -> None:
    assert length_limits([1, 9, 40], decoding=Decoding(), longest=24) == [23, 23, 23]
    assert length_limits([1, 40], decoding=Decoding(), longest=64) == [50, 63]


def test_what_is_asked_for_holds() -> None:
    assert length_limits([1, 40], decoding=Decoding(max_length=7), longest=64) == [7, 7]
    assert length_limits([1, 40], decoding=Decoding(min_length=55), longest=256) == [55, 100]


@pytest.mark.parametrize("decoding", [Decoding(beam=1), Decoding(beam=3, n_best=2), Decoding(sample=True, beam=1)])
def test_outputs_that_do_not_end_are_cut_and_marked(make_predictor: Any, decoding: Decoding) -> None:
    predictor = make_predictor(seed=2, data={"max_length": 96})
    endless(predictor)
    found = predictor.candidates(["abc", "b" * 20, ""], decoding=decoding)
    assert [{len(one.ids) for one in outputs} for outputs in found] == [{SHORTEST}, {2 * 21 + 20}, {0}]
    assert [{one.finish for one in outputs} for outputs in found] == [{"length"}, {"length"}, {""}]
    assert cut_lengths(outputs[0] for outputs in found) == (50, 62)


def test_what_ends_by_itself_is_not_marked(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=5), ["abc", "gfed", "a", "bb c", "g f", "d", "cab fed"]
    found = [one for [one] in predictor.candidates(lines, decoding=Decoding(sample=True, beam=1))]
    assert [one.finish == "length" for one in found] == [len(one.ids) == 23 for one in found]
    assert {one.finish for one in found} == {"", "length"}


def test_a_length_that_was_asked_for_is_no_cut(make_predictor: Any) -> None:
    [[one]] = make_predictor().candidates(["abc"], decoding=Decoding(beam=1, min_length=4, max_length=4))
    assert (len(one.ids), one.finish) == (4, "")


def test_what_is_told_says_how_to_get_more() -> None:
    assert told_of_cut([50, 62], 1000, longest=96) == (
        "2 of 1,000 outputs were cut at 50 to 62 tokens; with max_length=95 (predict.max_length) they may be longer"
    )
    assert told_of_cut([1], 3, longest=96).startswith("1 of 3 outputs was cut at 1 token; with max_length=95")
    assert told_of_cut([95, 95], 2, longest=96) == (
        "2 of 2 outputs were cut at 95 tokens, the most that the model was made for (data.max_length = 96)"
    )


def test_only_cut_outputs_count() -> None:
    some = [Hypothesis([4, 5], "", 0.0, 0.0, finish=finish) for finish in ("", "end", "stop", "length")]
    assert cut_lengths(some) == (2,)


def endless(predictor: Any) -> None:
    """Makes END the least likely token at every step."""
    head = predictor.model.writer.head

    def without_end(states: Any) -> Any:
        logits = head(states)
        logits[..., END] = -50.0
        return logits

    predictor.model.writer.head = without_end
