import pytest
import torch
from torch import Tensor

from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.predict.search import filters

V = 7  # letters are 4, 5, 6


def allowed_tokens(
    rule: filters.Rule, sequences: list[list[int]], sentence_ids: list[int] | None = None
) -> list[set[int]]:
    """Return the tokens that a rule allows, row by row; START is prepended to the sequences."""
    tokens = torch.tensor([[START, *row] for row in sequences])
    everything = torch.ones(1, V, dtype=torch.bool)
    allowed = rule(everything, tokens, torch.tensor(sentence_ids or range(len(sequences)))).expand(len(sequences), V)
    return [set(row.nonzero()[:, 0].tolist()) for row in allowed]


def list_finite(logits: Tensor) -> list[int]:
    return logits.isfinite().nonzero()[:, 0].tolist()


def test_padding_start_and_unknown_are_forbidden() -> None:
    assert allowed_tokens(filters.forbid_tokens(), [[4]]) == [set(range(V)) - {PAD, START, UNKNOWN}]


def test_end_is_forbidden_before_the_minimum_length() -> None:
    rule = filters.require_min_length(2)
    assert END not in allowed_tokens(rule, [[4]])[0]
    assert END in allowed_tokens(rule, [[4, 4]])[0]


def test_only_end_is_allowed_at_the_limit_of_each_sentence() -> None:
    rule = filters.limit_length(torch.tensor([2, 3, 1]))
    assert allowed_tokens(rule, [[], [], []]) == [set(range(V))] * 3
    assert allowed_tokens(rule, [[4, 4], [4, 4]], sentence_ids=[1, 0]) == [set(range(V)), {END}]


def test_no_bigram_is_repeated() -> None:
    rule = filters.forbid_repeated_ngrams(2)
    everything = set(range(1, V))
    assert allowed_tokens(rule, [[4, 5, 4], [4, 5, 5], [4, 5, 6]]) == [everything - {5}, everything - {5}, everything]


def test_no_trigram_is_repeated() -> None:
    rule = filters.forbid_repeated_ngrams(3)
    everything = set(range(1, V))
    # 4 5 was followed by 6 and by 4
    assert allowed_tokens(rule, [[4, 5, 6, 4, 5, 4, 5], [4, 5, 6, 5, 6, 5, 4]]) == [everything - {6, 4}, everything]


def test_no_unigram_is_repeated() -> None:
    assert allowed_tokens(filters.forbid_repeated_ngrams(1), [[4, 6]]) == [{PAD, END, UNKNOWN, 5}]


def test_repeats_are_impossible_before_n_tokens() -> None:
    assert allowed_tokens(filters.forbid_repeated_ngrams(3), [[4]]) == [set(range(V))]


def test_each_sentence_begins_with_its_prefix() -> None:
    rule = filters.force_prefix([[4, 5], [6], []])
    everything = set(range(V))
    assert allowed_tokens(rule, [[], [], []]) == [{4}, {6}, everything]
    assert allowed_tokens(rule, [[4], [6], [6]]) == [{5}, everything, everything]
    assert allowed_tokens(rule, [[4, 5]]) == [everything]


def test_a_prefix_wins_over_the_rules_before_it() -> None:
    logits, written = torch.zeros(1, V), torch.tensor([[START, 4]])
    rules = [filters.forbid_repeated_ngrams(1), filters.force_prefix([[4, 4]])]
    assert list_finite(filters.apply_rules(logits, rules, written, torch.tensor([0]))[0]) == [4]


def test_a_row_without_an_allowed_token_ends() -> None:
    logits, written = torch.randn(2, V), torch.tensor([[START, 4, 5, 6], [START, 4, 5, 5]])
    rules = [filters.forbid_tokens(), filters.require_min_length(9), filters.forbid_repeated_ngrams(1)]
    left = filters.apply_rules(logits, rules, written, torch.tensor([0, 1]))
    assert [list_finite(row) for row in left] == [[END], [6]]
    assert left[0, END].isfinite()


def test_log_probabilities_of_allowed_tokens_do_not_change() -> None:
    before = torch.randn(2, V)
    left = filters.apply_rules(
        before.clone(), [filters.forbid_tokens()], torch.tensor([[START]] * 2), torch.tensor([0, 1])
    )
    assert torch.equal(left[:, END], before[:, END])
    assert torch.equal(left.isinf().sum(1), torch.tensor([3, 3]))


def test_temperature_divides() -> None:
    assert filters.scale_by_temperature(0.5)(torch.tensor([1.0, -3.0])).tolist() == [2.0, -6.0]


@pytest.mark.parametrize(("k", "expected"), [(1, [2]), (2, [0, 2]), (99, [0, 1, 2, 3])])
def test_top_k_keeps_the_k_best(k: int, expected: list[int]) -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0, 0.0]])
    shaped = filters.keep_top_k(k)(logits)[0]
    assert list_finite(shaped) == expected
    assert torch.equal(shaped[expected], logits[0, expected])


@pytest.mark.parametrize(("p", "expected"), [(0.05, [2]), (0.55, [0, 2]), (0.75, [0, 2]), (0.85, [0, 2, 3])])
def test_top_p_keeps_the_smallest_set_of_that_probability(p: float, expected: list[int]) -> None:
    logits = torch.tensor([0.3, 0.05, 0.5, 0.15]).log()[None]
    assert list_finite(filters.keep_top_p(p)(logits)[0]) == expected


def test_top_p_keeps_one_of_two_equal_tokens() -> None:
    assert list_finite(filters.keep_top_p(0.4)(torch.zeros(1, 2))[0]) == [0]
