from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.ensemble import average_log_probs

LINES = ["abc", "", "gfedcba ab", "b"]


def test_the_mean_is_that_of_probabilities() -> None:
    one, other = torch.randn(3, 7), torch.randn(3, 7)
    expected = (one.softmax(-1) + other.softmax(-1)) / 2
    torch.testing.assert_close(average_log_probs([one, other]).exp(), expected)


@pytest.mark.parametrize("decoding", [Decoding(beam=1), Decoding(beam=4, n_best=2)])
def test_twice_the_same_model_is_the_model(make_run: Any, decoding: Decoding) -> None:
    folder = make_run("one", seed=2)
    one, both = Predictor.load(folder, device="cpu"), Predictor.load([folder, folder], device="cpu")
    expected, got = (predictor.candidates(LINES, decoding=decoding, align=True) for predictor in (one, both))
    for a, b in zip(expected, got, strict=True):
        assert [item.ids for item in a] == [item.ids for item in b]
        assert [item.score for item in a] == pytest.approx([item.score for item in b], abs=1e-4)
        torch.testing.assert_close(torch.tensor(a[0].alignment), torch.tensor(b[0].alignment))


def test_an_ensemble_differs_from_its_members_and_scores_its_own_outputs(make_run: Any) -> None:
    paths = [make_run("one", seed=2), make_run("two", seed=6)]
    one, two, both = (Predictor.load(path, device="cpu") for path in (*paths, paths))
    outputs = both.candidates(["abc", "b"])
    assert both.predict(LINES) not in (one.predict(LINES), two.predict(LINES))
    pairs = [("abc", outputs[0][0].text), ("b", outputs[1][0].text)]
    assert both.score(pairs) == pytest.approx([items[0].log_prob for items in outputs], abs=1e-4)


def test_members_may_differ_in_size(make_run: Any) -> None:
    small = {"stack": {"layers": 1, "dim": 14, "heads": 7, "ff": 5}}
    paths = [make_run("one"), make_run("small", reader=small, writer=small)]
    assert len(Predictor.load(paths, device="cpu").predict(LINES)) == len(LINES)


def test_unequal_vocabularies_are_refused(make_run: Any) -> None:
    paths = [make_run("one"), make_run("two", letters="abcdefgh ")]
    message = r"the source vocabulary of .*two \(13 tokens\) is not that of .*one \(12 tokens\)"
    with pytest.raises(SaccadeError, match=message):
        Predictor.load(paths, device="cpu")


def test_vocabularies_in_another_order_are_refused(make_run: Any) -> None:
    with pytest.raises(SaccadeError, match="must share their tokenizers"):
        Predictor.load([make_run("one"), make_run("two", letters="gfedcba ")], device="cpu")


def test_attention_of_an_ensemble_is_refused(make_run: Any) -> None:
    folder = make_run("one")
    with pytest.raises(SaccadeError, match="one run at a time, got 2"):
        Predictor.load([folder, folder], device="cpu").attention("abc")
