import random
import re
from collections import defaultdict
from datetime import date

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import hash_pairs, read_pairs
from saccade.data.synthetic import embedded as embedded_data
from saccade.data.synthetic.dates import (
    LANGUAGES,
    YEARS,
    _build_misspellings,
    format_date,
    generate_dates,
    get_patterns,
    is_heldout_year,
)
from saccade.errors import SaccadeError

PAIRS = list(generate_dates(20_000, seed=1))


def read_embedded(name, examples=None):
    return list(read_pairs(Corpus(files=(f"embedded:{name}",), examples=examples)))


def test_a_date_is_written_in_many_languages_and_meant_once():
    day = date(2024, 3, 5)
    written = {
        language: {format_date(day, pattern, {}) for pattern in get_patterns(language)} for language in LANGUAGES
    }

    assert len(LANGUAGES) >= 25
    assert written["en"] >= {"Tuesday, March 5, 2024", "5 March 2024", "Mar 5, 2024"}
    assert written["de"] >= {"Dienstag, 5. März 2024", "05.03.2024"}
    assert written["he"] >= {"5 במרץ 2024"}
    assert all(len(texts) >= 2 for texts in written.values())


def test_no_text_ever_means_two_days():
    meaning = {}
    for ordinal in range(date(1999, 1, 1).toordinal(), date(2001, 1, 1).toordinal()):
        day = date.fromordinal(ordinal)
        for text in {format_date(day, pattern, {}) for language in LANGUAGES for pattern in get_patterns(language)}:
            assert meaning.setdefault(text, day) == day
    assert all(meaning.get(source, iso) in (iso, date.fromisoformat(iso)) for source, iso in PAIRS)
    assert len(dict(PAIRS)) == len(set(PAIRS))


def test_no_misspelt_month_is_another_month_too():
    months = defaultdict(set)
    pieces = {piece for language in LANGUAGES for pattern in get_patterns(language) for piece in pattern}
    for piece in pieces:
        for number, name in enumerate(piece.names if piece.field == "month" else ()):
            for spelling in (name, *_build_misspellings()[name]):
                months[spelling.casefold()].add(number)
    assert months["march"] == months["maarch"] == {2}
    assert all(len(found) == 1 for found in months.values())


def test_at_least_a_fifth_has_a_misspelling_and_digits_never_have():
    rng, names = random.Random(5), _build_misspellings()
    clean = {
        format_date(date.fromisoformat(iso), p, {})
        for _, iso in PAIRS[:1000]
        for lang in LANGUAGES
        for p in get_patterns(lang)
    }
    share = sum(source not in clean for source, _ in PAIRS[:1000]) / 1000
    assert 0.20 <= share <= 0.30
    for language in LANGUAGES:
        for pattern in get_patterns(language):
            noisy = format_date(date(2024, 3, 5), pattern, names, rng)
            assert re.sub(r"\D", "", noisy) == re.sub(r"\D", "", format_date(date(2024, 3, 5), pattern, {}))


def test_held_out_years_are_never_trained_on():
    heldout = {iso[:4] for _, iso in read_embedded("dates-heldout")}
    trained = {iso[:4] for _, iso in PAIRS}

    assert 0.05 * len(YEARS) < len(heldout) < 0.2 * len(YEARS)
    assert len(trained) > 0.8 * len(YEARS)
    assert not heldout & trained
    assert all(is_heldout_year(int(year)) for year in heldout)
    assert not set(read_embedded("dates-heldout")) & set(read_embedded("dates-test"))


def test_the_same_dates_every_time_and_as_many_as_asked_for():
    assert PAIRS[:7] == read_embedded("dates", 7)
    assert list(generate_dates(7, seed=2)) != PAIRS[:7]


def test_all_letters_can_be_drawn_by_a_common_font():
    from matplotlib import font_manager, ft2font

    known = ft2font.FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap()

    assert not {letter for source, _ in PAIRS for letter in source if ord(letter) not in known}


@pytest.mark.parametrize("name", embedded_data.PAIRS)
def test_every_embedded_name_gives_pairs_and_a_key(name):
    corpus = Corpus(files=(f"embedded:{name}",), examples=11)

    assert len(list(read_pairs(corpus))) == 11
    assert len(hash_pairs(corpus)) == 32


def test_letters_are_copied_and_reversed_and_some_held_out():
    assert all(source == target for source, target in read_embedded("copy", 99))
    assert all(source == target[::-1] and 4 <= len(source) <= 12 for source, target in read_embedded("reverse", 99))
    assert not set(read_embedded("reverse")) & set(read_embedded("reverse-heldout"))
    assert len(read_embedded("reverse")) == 20_000


def test_an_unknown_embedded_name_is_answered_with_the_nearest():
    with pytest.raises(SaccadeError, match=r"no embedded data 'date'; did you mean dates\? \(known: embedded:dates, "):
        read_embedded("date")
