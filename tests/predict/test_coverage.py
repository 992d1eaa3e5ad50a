"""Beams that pay for what they did not attend to (Wu et al. 2016, equation 14)."""

import math
from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.model.writers.tokens import Step
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import max_length, never
from saccade.predict.search.greedy import Price, coverage, penalty

S = 5


def shared(look: int) -> list[float]:
    """Most of the weight at one place, and some everywhere."""
    return [0.8 if i == look else 0.05 for i in range(S)]


def test_the_formula_by_hand() -> None:
    maps = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.75, 0.0625, 0.1875, 0.0]]])
    assert coverage(maps).tolist() == pytest.approx([math.log(1.0) + math.log(0.3125) + math.log(0.4375)])


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_a_wide_beam_finds_the_best_of_all(toy: Any, beta: float) -> None:
    """What is found first is what is best by log-probability, length and coverage among all outputs."""
    writer, sentences, limit = toy(seed=3), 3, 3
    plain = writer.step

    def step(inputs: torch.Tensor, state: Any, *, align: bool = False) -> Step:
        logits, state, _ = plain(inputs, state)
        return Step(logits, state, torch.tensor([shared(int(h) % S) for h in state.history]))

    writer.step = step
    limits = torch.full((sentences,), limit)
    found = beam_search(
        writer, writer.start(sentences), limits=limits, width=60, price=Price(0.6, beta), align=True,
        rules=[never(), max_length(limits)],
    )  # fmt: skip
    writer.step = plain
    best = []
    for sentence in range(sentences):
        scored = []
        for _, ids in writer.exhaustive(sentence, limit=limit, alpha=0.6):
            log_prob, _ = writer.replay(ids, sentence)
            looks = torch.tensor([[shared(look) for look in all_looks(writer, ids, sentence)]])
            scored.append((log_prob / penalty(len(ids) + 1, 0.6) + beta * float(coverage(looks)), ids))
        best.append(max(scored))
    assert [outputs[0].ids for outputs in found] == [ids for _, ids in best]
    assert [outputs[0].score for outputs in found] == pytest.approx([score for score, _ in best], abs=1e-4)


def all_looks(writer: Any, ids: list[int], sentence: int) -> list[int]:
    """Where the output looked at each step, that of END included: replay leaves the last one out."""
    return [*writer.replay(ids, sentence)[1], writer.replay([*ids, 4], sentence)[1][-1]]


def test_coverage_is_a_setting_of_every_model(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=6), ["abc", "gfedcba gfedcba", "b"]
    decoding = Decoding(beam=4, n_best=4, coverage=0.4, min_length=2, max_length=4)
    found = predictor.candidates(lines, decoding=decoding)
    assert all(item.score < item.log_prob / penalty(len(item.ids) + 1, 0.6) - 1e-3 for item in found[1])
    for outputs in found:
        assert all(item.alignment is None for item in outputs)
        assert [item.score for item in outputs] == sorted((item.score for item in outputs), reverse=True)
    assert predictor.candidates(lines, decoding=decoding, align=True)[0][0].alignment is not None


def test_coverage_needs_attention(make_predictor: Any) -> None:
    stack = {"kind": "recurrent", "dim": 22}
    side = {"stack": stack, "positions": {"kind": "none"}, "tie": "none"}
    predictor = make_predictor(reader={"stack": stack, "positions": {"kind": "none"}}, writer=side)
    with pytest.raises(SaccadeError, match="does not attend to what it reads.* ask without align, coverage or"):
        predictor.predict(["abc"], decoding=Decoding(beam=2, coverage=0.2))
