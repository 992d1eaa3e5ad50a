"""Generated sequences of letters with a chosen maximum length."""

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import hash_pairs, read_pairs
from saccade.errors import SaccadeError


def rows(name: str, examples: int | None = None) -> list[tuple[str, str]]:
    return list(read_pairs(Corpus(files=(f"embedded:{name}",), examples=examples)))


def test_rows_have_one_to_n_letters() -> None:
    assert {len(source) for source, _ in rows("reverse-7", 500)} == set(range(1, 8))
    assert all(target == source[::-1] for source, target in rows("reverse-7", 99))
    assert all(target == source for source, target in rows("copy-7", 99))


def test_training_validation_and_test_are_other_rows() -> None:
    train, valid, test = (set(rows(name)) for name in ("reverse-40", "reverse-40-heldout", "reverse-40-test"))
    assert not train & (valid | test)
    assert not {pair for pair in valid & test if len(pair[0]) > 3}  # of three letters there are not so many
    assert len(rows("reverse-40")) == 20_000
    assert len(rows("reverse-40-test")) == 1_000


def test_each_length_is_data_of_its_own() -> None:
    assert hash_pairs(Corpus(files=("embedded:copy-5",))) != hash_pairs(Corpus(files=("embedded:copy-6",)))


@pytest.mark.parametrize("name", ["reverse-0", "copy-1001"])
def test_a_length_that_makes_no_sense_is_reported(name: str) -> None:
    length = name.partition("-")[2]
    with pytest.raises(SaccadeError, match=rf"have 1 to N letters, with N from 1 to 1,000; got {length}"):
        rows(name)


def test_unknown_names_are_reported_about_lengths() -> None:
    with pytest.raises(SaccadeError, match=r"no embedded data 'reverse-x'.*embedded:reverse-N\)"):
        rows("reverse-x")
