"""Beam search with a coverage penalty (Wu et al. 2016, equation 14)."""

import math
from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.model.writers.tokens import Step
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import forbid_tokens, limit_length
from saccade.predict.search.greedy import ScorePenalties, compute_coverage_penalty, compute_length_penalty

S = 5


def make_weights(attended: int) -> list[float]:
    """Return attention weights with most of the mass at one position."""
    return [0.8 if i == attended else 0.05 for i in range(S)]


def test_coverage_penalty_by_hand() -> None:
    attention = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.75, 0.0625, 0.1875, 0.0]]])
    assert compute_coverage_penalty(attention).tolist() == pytest.approx(
        [math.log(1.0) + math.log(0.3125) + math.log(0.4375)]
    )


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_a_wide_beam_with_coverage_is_exhaustive_search(toy: Any, beta: float) -> None:
    """The best output by log-probability, length and coverage among all outputs is found."""
    writer, sentences, limit = toy(seed=3), 3, 3
    original_step = writer.step

    def step(inputs: torch.Tensor, state: Any, *, align: bool = False) -> Step:
        logits, state, _ = original_step(inputs, state)
        return Step(logits, state, torch.tensor([make_weights(int(h) % S) for h in state.history]))

    writer.step = step
    limits = torch.full((sentences,), limit)
    found = beam_search(
        writer, writer.start(sentences), limits=limits, width=60, penalties=ScorePenalties(0.6, beta), align=True,
        rules=[forbid_tokens(), limit_length(limits)],
    )  # fmt: skip
    writer.step = original_step
    best = []
    for sentence in range(sentences):
        scored = []
        for _, ids in writer.exhaustive(sentence, limit=limit, alpha=0.6):
            log_prob, _ = writer.replay(ids, sentence)
            weights = torch.tensor([[make_weights(attended) for attended in list_attended(writer, ids, sentence)]])
            scored.append(
                (
                    log_prob / compute_length_penalty(len(ids) + 1, 0.6)
                    + beta * float(compute_coverage_penalty(weights)),
                    ids,
                )
            )
        best.append(max(scored))
    assert [outputs[0].ids for outputs in found] == [ids for _, ids in best]
    assert [outputs[0].score for outputs in found] == pytest.approx([score for score, _ in best], abs=1e-4)


def list_attended(writer: Any, ids: list[int], sentence: int) -> list[int]:
    """Return the attended position at each step, END included, which `replay` leaves out."""
    return [*writer.replay(ids, sentence)[1], writer.replay([*ids, 4], sentence)[1][-1]]


def test_coverage_is_a_setting_of_every_model(make_predictor: Any) -> None:
    predictor, lines = make_predictor(seed=6), ["abc", "gfedcba gfedcba", "b"]
    decoding = Decoding(beam=4, n_best=4, coverage_penalty=0.4, min_length=2, max_length=4)
    found = predictor.candidates(lines, decoding=decoding)
    assert all(item.score < item.log_prob / compute_length_penalty(len(item.ids) + 1, 0.6) - 1e-3 for item in found[1])
    for outputs in found:
        assert all(item.alignment is None for item in outputs)
        assert [item.score for item in outputs] == sorted((item.score for item in outputs), reverse=True)
    assert predictor.candidates(lines, decoding=decoding, align=True)[0][0].alignment is not None


def test_coverage_needs_attention(make_predictor: Any) -> None:
    stack = {"kind": "recurrent", "dim": 22}
    side = {"stack": stack, "positions": {"kind": "none"}, "tie": "none"}
    predictor = make_predictor(reader={"stack": stack, "positions": {"kind": "none"}}, writer=side)
    with pytest.raises(SaccadeError, match="does not attend to what it reads.* ask without align, coverage or"):
        predictor.predict(["abc"], decoding=Decoding(beam=2, coverage_penalty=0.2))
