from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.data.tokenization.tokenizers import END
from saccade.predict.search import filters
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import (
    ScorePenalties,
    SearchHypothesis,
    best_tokens,
    build_sampler,
    choose_best,
    compute_length_penalty,
    decode_rows,
)

V, LETTERS = 7, [4, 5, 6]  # of the toy writer


def beam(writer: Any, limits: list[int], *, width: int, alpha: float = 0.0, **settings) -> list[list[SearchHypothesis]]:
    most, state = torch.tensor(limits), writer.start(len(limits))
    rules = [filters.forbid_tokens(), filters.limit_length(most)]
    return beam_search(
        writer, state, limits=most, width=width, rules=rules, penalties=ScorePenalties(alpha), **settings
    )


def one_path(
    writer: Any, limits: list[int], *, choose=choose_best, copies: int = 1, **settings
) -> list[list[SearchHypothesis]]:
    most = torch.tensor(limits)
    rows = torch.arange(len(limits)).repeat_interleave(copies)
    rules = [filters.forbid_tokens(), filters.limit_length(most)]
    return decode_rows(
        writer, writer.start(len(limits)).reorder(rows), sentence_ids=rows, choose=choose, rules=rules, **settings
    )


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6, 1.5])
def test_a_wide_beam_is_exhaustive_search(alpha: float, toy: Any) -> None:
    writer, limit, n_best = toy(length=4), 3, 11
    found = beam(writer, [limit] * 3, width=V**limit, n_best=n_best, alpha=alpha)
    for sentence in range(3):
        expected = writer.exhaustive(sentence, limit=limit, alpha=alpha)[:n_best]
        assert [item.ids for item in found[sentence][:n_best]] == [ids for _, ids in expected]
        scores = [item.score for item in found[sentence][:n_best]]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6, 1.5])
def test_greedy_is_a_beam_of_one(alpha: float, toy: Any) -> None:
    for seed in range(20):
        writer = toy(seed=seed)
        assert beam(writer, [7, 2, 5], width=1, alpha=alpha) == one_path(writer, [7, 2, 5], alpha=alpha)


def test_greedy_takes_the_best_token_at_each_step(toy: Any) -> None:
    writer = toy(seed=3)
    [[found]] = one_path(writer, [5])
    state, ids = writer.start(1), [1]
    while ids[-1] != END and len(ids) <= 5:
        logits, state, _ = writer.step(torch.tensor([ids[-1:]]), state)
        ids.append(max([*LETTERS, END], key=lambda token: float(logits[0, token])))
    assert found.ids == [token for token in ids[1:] if token != END]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_many_sentences_are_searched_as_each_alone(width: int, toy: Any) -> None:
    limits = [3, 9, 1, 6, 0, 9, 4]
    writer = toy(seed=5, scale=1.0)
    together = beam(writer, limits, width=width, n_best=width, alpha=0.6)
    for sentence, limit in enumerate(limits):
        writer_rows = torch.tensor([limit])
        rules = [filters.forbid_tokens(), filters.limit_length(writer_rows)]
        state = writer.start(len(limits)).reorder(torch.tensor([sentence]))
        [alone] = beam_search(
            writer, state, limits=writer_rows, width=width, n_best=width, rules=rules, penalties=ScorePenalties(0.6)
        )
        assert alone[:width] == together[sentence][:width]


def test_scores_are_the_models_log_probabilities_over_the_penalty(toy: Any) -> None:
    writer = toy(seed=2)
    for sentence, outputs in enumerate(beam(writer, [6, 6, 6], width=5, n_best=5, alpha=0.6)):
        for item in outputs:
            assert item.log_prob == pytest.approx(writer.replay(item.ids, sentence)[0], abs=1e-5)
            assert item.score == pytest.approx(item.log_prob / ((5 + len(item.ids) + 1) / 6) ** 0.6, abs=1e-5)


def test_n_best_is_sorted_and_distinct(toy: Any) -> None:
    for outputs in beam(toy(seed=4), [8] * 5, width=6, n_best=6, alpha=1.0):
        assert len(outputs) >= 6
        assert [item.score for item in outputs] == sorted((item.score for item in outputs), reverse=True)
        assert len({tuple(item.ids) for item in outputs}) == len(outputs)


def test_alignments_follow_the_path_of_each_output(toy: Any) -> None:
    writer = toy(seed=6, scale=0.5)
    for sentence, outputs in enumerate(beam(writer, [7] * 3, width=5, n_best=5, align=True)):
        for item in outputs:
            attended = [row.index(1.0) for row in item.alignment or []]
            assert attended == writer.replay(item.ids, sentence)[1]
    assert any(len(item.ids) > 2 for item in outputs)


def test_greedy_keeps_alignments_of_finished_rows(toy: Any) -> None:
    writer = toy(seed=6)
    for sentence, [item] in enumerate(one_path(writer, [1, 6, 3, 6], align=True)):
        assert [row.index(1.0) for row in item.alignment or []] == writer.replay(item.ids, sentence)[1]


def test_finished_sentences_leave_the_batch(toy: Any) -> None:
    writer = toy()
    writer.table[:, END] = -50.0  # nobody ends before the limit
    one_path(writer, [1, 4, 2])
    assert writer.rows == [3, 3, 2, 1, 1]
    writer.rows.clear()
    beam(writer, [1, 4, 2], width=2)
    assert writer.rows == [3, 6, 4, 2, 2]


def test_a_sentence_is_complete_when_no_live_row_can_improve(toy: Any) -> None:
    writer = toy()
    writer.table[:] = -100.0
    writer.table[:, LETTERS[0]], writer.table[:, END] = 1.0, 3.0  # END now is far better than END later
    beam(writer, [50], width=4, n_best=1, alpha=0.0)
    assert len(writer.rows) == 1


def test_the_bound_considers_the_length_penalty(toy: Any) -> None:
    """With a length penalty, END now (p = 0.505) loses to a path of five certain letters (p = 0.495)."""
    writer = toy()
    writer.table[:] = -100.0
    writer.table[:, LETTERS[0]] = 0.0
    state = writer.step(torch.tensor([[1]]), writer.start(1)).state
    writer.table[state.history, END] = 0.02
    for _ in range(5):
        state = writer.step(torch.tensor([[LETTERS[0]]]), state).state
    writer.table[state.history, END] = 100.0
    assert beam(writer, [20], width=2, alpha=1.0)[0][0].ids == [LETTERS[0]] * 5
    assert beam(writer, [20], width=2, alpha=0.0)[0][0].ids == []


def test_a_model_without_finite_logits_ends_with_nothing(toy: Any) -> None:
    writer = toy()
    writer.table[:] = torch.nan
    assert beam(writer, [5, 3], width=3) == [[], []]


def test_equal_scores_take_the_smaller_token(toy: Any) -> None:
    writer = toy()
    writer.table[:] = 0.0
    outputs = beam(writer, [2], width=3, n_best=3, alpha=0.0)[0]
    assert [item.ids for item in outputs] == [[], [4], [4, 4], [4, 5]]


def test_samples_have_the_frequencies_of_the_distribution() -> None:
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -0.4]).expand(20_000, -1)
    drawn = build_sampler([], torch.Generator().manual_seed(7))(logits)
    expected = logits[0].softmax(-1) * 20_000
    counts = torch.bincount(drawn, minlength=5)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.5  # 0.1% of true samples lie above, 4 degrees of freedom


def test_samples_repeat_with_their_seed_only(toy: Any) -> None:
    def draw(seed: int) -> list[list[SearchHypothesis]]:
        choose = build_sampler([filters.scale_by_temperature(1.3)], torch.Generator().manual_seed(seed))
        return one_path(toy(scale=0.5), [6] * 11, choose=choose, copies=3)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert all(len(outputs) == 3 for outputs in draw(1))


def test_sampled_log_probabilities_are_the_models_own(toy: Any) -> None:
    writer = toy(scale=0.5)
    choose = build_sampler([filters.scale_by_temperature(2.0), filters.keep_top_k(2)], torch.Generator().manual_seed(1))
    for sentence, [item] in enumerate(one_path(writer, [6] * 5, choose=choose)):
        assert item.log_prob == pytest.approx(writer.replay(item.ids, sentence)[0], abs=1e-5)


def test_the_length_penalty_is_that_of_gnmt() -> None:
    assert compute_length_penalty(1, 0.6) == 1.0
    assert compute_length_penalty(7, 0.5) == pytest.approx(2**0.5)
    lengths: Tensor = compute_length_penalty(torch.tensor([1.0, 13.0]), 1.0)
    assert lengths.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("size", [7, 131, 3000, 3072])
@pytest.mark.parametrize("count", [1, 4, 11])
def test_the_best_tokens_are_found_block_by_block(size: int, count: int) -> None:
    scores = torch.randn(5, size)
    values, tokens = best_tokens(scores, count)
    expected = scores.topk(min(count, size))
    assert torch.equal(values.sort(1, descending=True).values, expected.values)
    assert torch.equal(scores.gather(1, tokens), values)
    assert all(len(set(row)) == len(row) for row in tokens.tolist())


def test_a_single_best_token_is_the_first_of_equal_ones() -> None:
    scores = torch.zeros(3, 3000)
    scores[0, [500, 300, 2999]] = scores[1, [2999, 2998]] = 1.0
    assert choose_best(scores).tolist() == [300, 2998, 0]


def test_unscored_outputs_are_the_same(toy: Any) -> None:
    scored, plain = (one_path(toy(seed=3), [5, 2], scored=scored) for scored in (True, False))
    assert [[item.ids for item in found] for found in plain] == [[item.ids for item in found] for found in scored]
    assert [item.log_prob for found in plain for item in found] == [0.0, 0.0]
    assert all(item.log_prob < 0 for found in scored for item in found)
