"""Lexically constrained beam search against exhaustive search, and its guarantee with random phrases."""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import START
from saccade.predict.search.constraints import Candidate, Phrase, PhraseAutomaton, allocate_beam
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.request import Request
from saccade.predict.search.run import run_search

V, LETTERS = 7, [4, 5, 6]  # of the toy writer


class ToyModel:
    """The toy writer as a model without input."""

    def __init__(self, writer: Any) -> None:
        self.writer, self.ctc = self, None
        self.toy = writer
        self.step = writer.step

    def read(self, batch: Any) -> None:
        return None

    def start(self, memory: None, *, capacity: int, rows: int) -> Any:
        return self.toy.start(rows)


def search(
    writer: Any, limits: list[int], phrases: list[list[Phrase]], *, prefix: tuple[int, ...] = (), **settings
) -> list[list[SearchHypothesis]]:
    class Sized(Request):
        device = torch.device("cpu")

    return run_search(ToyModel(writer), Sized(limits, Decoding(**settings), phrases=phrases, prefix=prefix))  # type: ignore[arg-type]


def contains(ids: list[int], phrase: Phrase) -> bool:
    """Brute force: whether one of the token sequences is a part of the output."""
    whole = [START, *ids]
    return any(whole[i : i + len(part)] == list(part) for part in phrase for i in range(len(whole) - len(part) + 1))


def random_phrase(random: Random, longest: int = 3, letters: Sequence[int] = LETTERS) -> Phrase:
    inside = tuple(random.choices(letters, k=random.randint(1, longest)))
    others = [(START, *random.choices(letters, k=random.randint(1, longest)))] if random.random() < 0.5 else []
    return (inside, *others)


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6])
def test_a_wide_beam_is_exhaustive_search_among_outputs_with_the_phrases(alpha: float, toy: Any) -> None:
    random = Random(3)
    for seed in range(8):
        writer, limit = toy(seed=seed, length=4), 4
        # Two phrases without common letters cannot overlap, which the space that they need is counted without.
        phrases = [[random_phrase(random, 3)], [random_phrase(random, 2, [4, 5]), random_phrase(random, 2, [6])], []]
        found = search(writer, [limit] * 3, phrases, beam=3**limit * 2, n_best=5, length_penalty=alpha)
        for sentence, required in enumerate(phrases):
            every = writer.exhaustive(sentence, limit=limit, alpha=alpha)
            right = [(score, ids) for score, ids in every if all(contains(ids, phrase) for phrase in required)][:5]
            assert [item.ids for item in found[sentence]] == [ids for _, ids in right]
            assert [item.score for item in found[sentence]] == pytest.approx([score for score, _ in right], abs=1e-5)


@pytest.mark.parametrize("beam", [2, 3, 5, 11])
def test_outputs_contain_random_phrases_whatever_the_model_prefers(beam: int, toy: Any) -> None:
    random = Random(beam)
    for seed in range(25):
        phrases = [[random_phrase(random, 4) for _ in range(random.randint(1, 4))] for _ in range(3)]
        limits = [sum(len(phrase[0]) for phrase in required) + random.choice([0, 1, 5]) for required in phrases]
        found = search(toy(seed=seed), limits, phrases, beam=beam, n_best=random.choice([1, 2]))
        for outputs, required, limit in zip(found, phrases, limits, strict=True):
            assert outputs
            for item in outputs:
                assert all(contains(item.ids, phrase) for phrase in required)
                assert len(item.ids) <= limit


def test_scores_are_those_of_the_model(toy: Any) -> None:
    writer = toy(seed=5)
    [[found]] = search(writer, [9], [[((5, 5, 4),)]], beam=3, length_penalty=0.0)
    assert found.log_prob == pytest.approx(writer.replay(found.ids, 0)[0], abs=1e-5)


def test_sentences_are_searched_as_each_alone(toy: Any) -> None:
    writer, limits = toy(seed=2), [7, 5, 9]
    phrases: list[list[Phrase]] = [[((4, 4),)], [((6,),), ((5, 4),)], [((5, 6, 5),)]]
    together = search(writer, limits, phrases, beam=4, n_best=3)
    for n in range(3):
        alone = search(writer, limits[: n + 1], phrases[: n + 1], beam=4, n_best=3)
        assert alone[n] == together[n]


@pytest.mark.parametrize("settings", [{"no_repeat_ngram": 1}, {"min_length": 6}, {"no_repeat_ngram": 2}])
def test_phrases_win_over_other_rules(settings: dict, toy: Any) -> None:
    for seed in range(5):
        [[found]] = search(toy(seed=seed), [6], [[((5, 5, 5),), ((4, 4),)]], beam=3, **settings)
        assert contains(found.ids, ((5, 5, 5),)) and contains(found.ids, ((4, 4),))


def test_a_phrase_may_begin_in_the_prefix(toy: Any) -> None:
    for seed in range(5):
        [[found]] = search(toy(seed=seed), [4], [[((5, 6, 4, 4),)]], beam=2, prefix=(5, 6))
        assert found.ids == [5, 6, 4, 4]


def test_phrases_without_space_are_left_out_and_no_others(toy: Any) -> None:
    for required, expected in [
        ([((5, 5),), ((6, 6),), ((4,),)], [True, True, False]),
        ([((5, 6) * 5,), ((6, 6),), ((4, 4),)], [False, True, True]),
    ]:
        [[found]] = search(toy(seed=1), [4], [required], beam=3)  # type: ignore[list-item]
        assert [contains(found.ids, phrase) for phrase in required] == expected
    [[none]] = search(toy(seed=1), [1], [[((5, 5),), ((6, 6),)]], beam=3)
    assert len(none.ids) <= 1


def test_overlapping_phrases_share_tokens() -> None:
    automaton = PhraseAutomaton([((4, 5, 4),), ((4, 5, 6),), ((5,),)])
    progress = automaton.follow([4, 5])
    assert progress.found == {2} and automaton.count_missing(progress) == 4
    assert automaton.list_next_tokens(progress) == {4, 6}
    progress = automaton.follow([4, 5, 4])
    assert automaton.count_missing(progress) == 2  # the last token begins 4 5 6
    assert automaton.follow([4, 5, 4, 5, 6]).found == {0, 1, 2}


def test_the_start_of_an_output_has_its_own_token_sequence() -> None:
    automaton = PhraseAutomaton([((4, 5), (START, 6))])
    assert automaton.count_missing(automaton.start) == 1
    assert automaton.follow([6]).found == {0}
    assert automaton.follow([5, 6]).found == set()
    assert automaton.list_next_tokens(automaton.follow([5])) == {4}
    assert PhraseAutomaton([((4, 5), (START, 6)), ((5,),)]).list_first_tokens() == {5, 6}
    assert PhraseAutomaton([((4, 5),)]).list_first_tokens() == {4}


def test_the_automaton_finds_what_brute_force_finds() -> None:
    random = Random(1)
    for _ in range(40):
        phrases = [random_phrase(random) for _ in range(3)]
        automaton = PhraseAutomaton(phrases)
        for ids in itertools.product(LETTERS, repeat=5):
            progress = automaton.follow(ids)
            assert progress.found == {i for i, phrase in enumerate(phrases) if contains([*ids], phrase)}


def test_all_banks_share_the_beam() -> None:
    banks = {missing: [Candidate(float(i), missing, i) for i in range(5)] for missing in range(3)}
    assert [item.row for item in allocate_beam(banks, 6)] == [0, 1, 2, 0, 1, 2]
    assert [item.row for item in allocate_beam({0: banks[0], 1: banks[1][:1]}, 4)] == [0, 1, 0, 0]
    assert allocate_beam(banks, 99) == sorted(itertools.chain(*banks.values()))
    assert allocate_beam({}, 3) == []


def test_the_best_candidate_and_the_most_advanced_banks_are_kept_in_a_narrow_beam() -> None:
    banks = {missing: [Candidate(float(9 - missing), missing, 4)] for missing in range(5)}
    assert [item.row for item in allocate_beam(banks, 3)] == [4, 1, 0]
