"""Fusion of a picture and a question into one memory, against the formulas of the papers."""

import pytest
import torch

from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.layers.vision.joining import (
    Concat,
    Glimpses,
    Hops,
    QuestionOnly,
    WeightedWords,
    summarize_question,
)

B, S, T, D, E, W = 2, 7, 5, 3, 4, 11


def real(*lengths, size):
    return torch.arange(size) < torch.tensor(lengths)[:, None]


@pytest.fixture
def look():
    return Memory(torch.randn(B, S, D), torch.ones(B, S, dtype=torch.bool))


@pytest.fixture
def ask():
    return Memory(torch.randn(B, T, E), real(5, 3, size=T), inputs=torch.randn(B, T, E))


def cells_of(look):
    return D**0.5 * look.states / look.states.norm(dim=-1, keepdim=True)


def changed_behind(ask):
    """The same question with something else in its padding."""
    states, inputs = ask.states.clone(), ask.inputs.clone()
    states[1, 3:], inputs[1, 3:] = 99.0, 99.0
    return Memory(states, ask.mask, inputs=inputs)


def test_the_first_hop_is_that_of_the_word_that_fits_best(look, ask):
    join = Hops(D, E, E, dim=W, hops=1, dropout=0.0)
    with record(join) as maps:
        seen = join(look, ask).states[:, 0]
    [weights] = maps.values()
    assert weights.shape == (B, 1, T, S)
    for row, words in enumerate((5, 3)):
        scores = ask.inputs[row, :words] @ join.match(cells_of(look)[row]).T / E**0.5
        wanted = scores.max(0).values.softmax(0)
        torch.testing.assert_close(weights[row, 0].sum(0), wanted)
        assert torch.equal(weights[row, 0].argmax(0), scores.argmax(0))
        evidence = join.question(ask.states[row, :words].mean(0)) + wanted @ join.evidence[0](cells_of(look)[row])
        torch.testing.assert_close(seen[row], torch.relu(evidence))


def test_the_second_hop_asks_with_what_was_seen(look, ask):
    torch.manual_seed(1)
    join = Hops(D, E, E, dim=W, hops=2, dropout=0.0)
    with record(join) as maps:
        seen = join(look, ask).states[0, 0]
    assert list(maps) == ["", "#1"]
    cells, first = cells_of(look)[0], maps[""][0, 0].sum(0)
    before = join.question(ask.states[0].mean(0)) + first @ join.evidence[0](cells)
    second = (join.evidence[0](cells) @ before / W**0.5).softmax(0)
    torch.testing.assert_close(maps["#1"][0, 0, 0], second)
    torch.testing.assert_close(seen, torch.relu(before + second @ join.evidence[1](cells)))


def weighted_hops(hops=2, length=T):
    """With the question as the weighted sum of its words; weights and bias are random."""
    words = WeightedWords(E, length=length)
    torch.nn.init.normal_(words.weights)
    torch.nn.init.normal_(words.bias)
    return Hops(D, E, E, dim=E, hops=hops, words=words, dropout=0.0)


def test_a_question_is_the_weighted_sum_of_its_words(look, ask):
    """Xu and Saenko 2016, equation 4: one weight for each position, and a bias."""
    join = weighted_hops(hops=1, length=T + 2)
    with record(join) as maps:
        seen = join(look, ask).states[:, 0]
    for row, words in enumerate((5, 3)):
        question = sum(join.words.weights[t] * ask.inputs[row, t] for t in range(words)) + join.words.bias
        evidence = maps[""][row, 0].sum(0) @ join.evidence[0](cells_of(look)[row])
        torch.testing.assert_close(seen[row], torch.relu(question + evidence))
    assert join.question is None
    other = Memory(ask.states + 1, ask.mask, inputs=ask.inputs)
    assert torch.equal(join(look, other).states[:, 0], seen)  # the states of a reader do not count


def test_glimpses_attend_with_the_whole_question(look, ask):
    join = Glimpses(D, E, hidden_dim=W, glimpses=2)
    with record(join) as maps:
        state = join(look, ask).states[1, 0]
    assert state.shape == (2 * D + E,) == (join.dim,)
    cells, question = cells_of(look)[1], ask.states[1, :3].mean(0)
    hidden = torch.relu(join.cell(cells) + join.question(question))
    wanted = join.energy(hidden).softmax(0).T
    torch.testing.assert_close(maps[""][1, :, 0], wanted)
    torch.testing.assert_close(state, torch.cat(((wanted @ cells).flatten(), question)))


@pytest.mark.parametrize(
    "join",
    [
        Hops(D, E, E, dim=W, hops=2, dropout=0.0),
        weighted_hops(),
        Glimpses(D, E, hidden_dim=W, glimpses=3),
        QuestionOnly(E),
    ],
)
def test_padding_of_a_question_says_nothing(join, look, ask):
    torch.testing.assert_close(join(look, ask).states, join(look, changed_behind(ask)).states)


def test_a_row_that_asks_nothing_gives_numbers(look, ask):
    empty = Memory(ask.states, real(5, 0, size=T), inputs=ask.inputs)
    for join in (Hops(D, E, E, dim=W, hops=2, dropout=0.0), weighted_hops(), Glimpses(D, E, hidden_dim=W, glimpses=2)):
        assert join(look, empty).states.isfinite().all()


def test_both_stand_one_after_the_other(look, ask):
    join = Concat(D, E, dim=W)
    both = join(look, ask)
    assert both.states.shape == (B, S + T, W)
    torch.testing.assert_close(both.states[:, :S], join.cell(look.states))
    torch.testing.assert_close(both.states[:, S:], join.word(ask.states))
    assert both.mask.sum(1).tolist() == [S + 5, S + 3]


def test_the_last_state_of_a_recurrent_reader_stands_for_the_question(ask):
    last = torch.randn(B, E)
    assert torch.equal(summarize_question(Memory(ask.states, ask.mask, final=((torch.zeros(B, E),), (last,)))), last)
