"""Generated sets, sessions and molecules have the documented properties."""

import itertools

import pytest

from saccade.data.synthetic.molecules import find_smiles_error, generate_molecules
from saccade.data.synthetic.sequences import (
    ITEMS_PER_CATEGORY,
    generate_numbers,
    generate_sessions,
    generate_sums,
    spell_number,
)


def test_half_of_the_sets_have_the_sum_and_none_is_in_both_parts():
    rows, held = list(generate_sums(400, seed=1)), list(generate_sums(100, seed=1, heldout=True))
    for text, label in rows + held:
        numbers = [int(word) for word in text.split()]
        pairs = [a + b for i, a in enumerate(numbers) for b in numbers[:i]]
        assert len(set(numbers)) == len(numbers)
        assert (20 in pairs) == (label == "yes")
    assert sum(label == "yes" for _, label in rows) == 200
    known = [{tuple(sorted(text.split())) for text, _ in part} for part in (rows, held)]
    assert not known[0] & known[1]


def test_what_comes_next_in_a_session_is_one_of_two():
    for text in generate_sessions(200, seed=1):
        shelves: dict[str, list[int]] = {}
        for thing in text.split():
            shelves.setdefault(thing[:-1], []).append(int(thing[-1]))
        assert len(shelves) == 2
        for places in shelves.values():
            assert len({(b - a) % ITEMS_PER_CATEGORY for a, b in itertools.pairwise(places)}) <= 1
    assert not set(generate_sessions(500, seed=1)) & set(generate_sessions(500, seed=1, heldout=True))


def test_all_molecules_are_right_and_the_same_each_time():
    made = list(generate_molecules(1000, seed=1))
    assert {find_smiles_error(text) for text in made} == {""}
    assert made[:9] == list(generate_molecules(9, seed=1))
    assert len(set(made)) > 800
    assert not set(made) & set(generate_molecules(1000, seed=1, heldout=True))


@pytest.mark.parametrize(
    "text",
    [
        "C", "c1ccccc1C(=O)O", "[NH4+]", "c1cc[nH]c1", "C#N", "CS(=O)(=O)C", "C1CC1", "[O-]C", "C(C1)C1",
        "O=c1cc[nH]cc1", "c1ccc2ccccc2c1", "c1ccccc1c1ccccc1", "C[N+](C)(C)C", "[B-](F)(F)(F)F", "C[C@@H](N)O",
        "F/C=C\\F", "CC.O", "C%10CCCC%10", "[13CH4]", "[C-]#[O+]", "C[Si](C)(C)C", "[O--]",
    ],
)  # fmt: skip
def test_these_are_molecules(text):
    assert find_smiles_error(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("Xe", "symbols that are not SMILES"),
        ("[Xe]", "is no atom"),
        ("=C", "a bond has no atom before it"),
        ("C==C", "a bond has no atom before it"),
        ("C=", "it ends before a bond does"),
        ("CC(", "it ends before a bond does"),
        ("CC(C", "a branch is not closed"),
        ("(C)", "a branch begins nowhere"),
        ("C()C", "a branch ends that holds nothing"),
        ("C)C", "a branch ends that holds nothing"),
        ("1CC1", "a ring begins nowhere"),
        ("C1CC", "ring 1 is not closed"),
        ("C11", "ring 1 has fewer than three atoms"),
        ("C1(C)C1", "ring 1 has fewer than three atoms"),
        ("C12CC12", "ring 2 has fewer than three atoms"),
        ("C..C", "it is empty"),
        ("F=F", "F has 2 bonds, at most 1"),
        ("CC(=O)(=O)C", "C has 6 bonds, at most 4"),
        ("c1ccc(C)(C)cc1", "c has 4 bonds, at most 3"),
        ("C[C+](C)(C)C", "C has 4 bonds, at most 3"),
        ("c1ccccc1cc1ccccc1", "c is in no aromatic ring"),
        ("cc", "c is in no aromatic ring"),
    ],
)
def test_what_is_wrong_is_reported(text, problem):
    assert problem in find_smiles_error(text)


def test_numbers_are_spelled():
    words = {0: "zero", 13: "thirteen", 80: "eighty", 407: "four hundred seven", 1000: "one thousand"}
    words |= {304512: "three hundred four thousand five hundred twelve", 21021: "twenty one thousand twenty one"}
    for number, expected in words.items():
        assert " ".join(spell_number(number)) == expected


def test_splits_of_numbers_have_none_in_common():
    train, held = (set(generate_numbers(300, seed=1, heldout=heldout)) for heldout in (False, True))
    assert not train & held and len(held) > 200
