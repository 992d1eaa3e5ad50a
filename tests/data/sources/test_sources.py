import gzip
import io
import json
import lzma
import os

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources import lines
from saccade.data.sources import pairs as sources
from saccade.data.sources.pairs import hash_pairs, read_lines, read_pairs
from saccade.errors import SaccadeError

PAIRS = [("a house", "ein Haus"), ("two", "zwei")]


def corpus(*files, **settings):
    return Corpus(files=tuple(str(file) for file in files), **settings)


def pairs(*files, **settings):
    return list(read_pairs(corpus(*files, **settings)))


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        data = content.encode() if isinstance(content, str) else content
        packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(name[-3:], bytes)(data)
        (tmp_path / name).write_bytes(packed)
        return tmp_path / name

    return write


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_two_files_are_paired_line_by_line(write, ending):
    files = write(f"a.en{ending}", "a house\ntwo\n"), write(f"a.de{ending}", "ein Haus\nzwei")

    assert pairs(*files) == PAIRS


def test_carriage_returns_and_a_byte_order_mark_are_no_text(write):
    files = write("a.en", b"\xef\xbb\xbfa house\r\ntwo\r\n"), write("a.de", "ein Haus\nzwei\n")

    assert pairs(*files) == PAIRS


def test_only_a_line_feed_ends_a_line(write):
    text = "one\u2028still\x85one\x0b\x0c\x1cone\rone"

    assert pairs(write("a.en", f"{text}\nb\n"), write("a.de", "1\n2\n"))[0] == (text, "1")


def test_empty_lines_stay_so_that_lines_keep_their_places(write):
    assert pairs(write("a.en", "a\n\nb\n"), write("a.de", "1\n2\n\n")) == [("a", "1"), ("", "2"), ("b", "")]


def test_examples_limits_what_is_read(write):
    assert pairs(write("a.en", "a\nb\nc\n"), write("a.de", "1\n2\n3\n"), examples=2) == [("a", "1"), ("b", "2")]


TABLES = {
    "a.tsv": ("source\ttarget\na house\tein Haus\ntwo\tzwei\n", None),
    "b.tsv": ("a house\tein Haus\r\ntwo\tzwei\r\n", None),  # no header
    "c.tsv": ("x\ta house\tein Haus\nx\ttwo\tzwei\n", ("2", "3")),  # no header, columns counted
    "e.tsv": ("2\ta house\tein Haus\n3\ttwo\tzwei\n", ("2", "3")),  # a number of a row is no name of a column
    "f.tsv": ("3\tx\t2\nein Haus\t\ta house\nzwei\t\ttwo\n", ("2", "3")),  # but all of them are names
    "d.tsv": ("de\tx\ten\nein Haus\t\ta house\nzwei\t\ttwo\n", ("en", "de")),
    "a.csv": ('en,de\na house,"ein Haus"\ntwo,zwei\n', None),  # the first two
    "b.csv": ("x,target,source\n,ein Haus,a house\n,zwei,two\n", None),
    "a.jsonl": ('{"en": "a house", "de": "ein Haus"}\n{"de": "zwei", "en": "two"}\n', None),
    "b.jsonl": (
        '{"id": 7, "translation": {"de": "ein Haus", "en": "a house"}}\n{"translation": {"de": "zwei", "en": "two"}}\n',
        ("translation.en", "translation.de"),
    ),
}


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
@pytest.mark.parametrize("name", TABLES)
def test_one_file_with_columns(write, name, ending):
    text, columns = TABLES[name]

    assert pairs(write(name + ending, text), columns=columns) == PAIRS


def test_quoted_cells_may_hold_commas_quotes_and_lines(write):
    assert pairs(write("a.csv", 'source,target\n"a, ""b""\nc",d\n')) == [('a, "b"\nc', "d")]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parquet(write, ending):
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    columns = {"translation": [{"en": en, "de": de} for en, de in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), file)

    assert pairs(write(f"a.parquet{ending}", file.getvalue())) == PAIRS


BAD = {
    "unequal": (("a.en", "a\nb\nc\n"), ("a.de", "1\n2\n"), r"a\.en has 3 lines and \S*a\.de has 2; line n of one"),
    "longer target": (("a.en", "a\n"), ("a.de", "1\n2\n"), r"a\.en has 1 lines and \S*a\.de has 2"),
    "empty": (("a.en", ""), ("a.de", "1\n"), r"a\.en is empty"),
    "empty target": (("a.en", "a\n"), ("a.de", ""), r"a\.de is empty"),
    "empty packed": (("a.en.gz", ""), ("a.de", "1\n"), r"a\.en\.gz is empty"),
    "encoding": (("a.en", b"a\nb\xe4r\n"), ("a.de", "1\n2\n"), r"a\.en:2: not valid UTF-8 \(byte 0xe4 at position 2\)"),
    "table and text": (("a.tsv", "a\tb\n"), ("a.de", "1\n"), r"a\.tsv has columns: give it alone"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_named_with_their_line(write, case):
    first, second, message = BAD[case]
    files = write(*first), write(*second)

    with pytest.raises(SaccadeError, match=message):
        pairs(*files)


BAD_TABLES = {
    "three columns": ("a.tsv", "a\tb\tc\n", None, r"a\.tsv:1: expected two columns, source and target, got 3"),
    "missing cell": ("a.tsv", "source\ttarget\na\tb\na\n", None, r"a\.tsv:3: expected 2 columns, got 1"),
    "extra cell": ("a.csv", "source,target\na,b,c\n", None, r"a\.csv:2: expected 2 columns, got 3"),
    "one column": ("a.csv", "source\na\n", None, r"a\.csv:1: expected at least two columns, source and target, got 1"),
    "unknown column": (
        "a.csv",
        "english,german\na,b\n",
        ("englsh", "german"),
        r"no column 'englsh'; did you mean english",
    ),
    "quote": ("a.csv", 'source,target\na,"b\n', None, r"a\.csv:2: not valid CSV"),
    "empty": ("a.csv", "", None, r"a\.csv is empty"),
    "header only": ("a.csv", "source,target\n", None, r"a\.csv is empty; expected at least one pair"),
    "json": ("a.jsonl", '{"source": "a", "target": "b"}\n{"source"\n', None, r"a\.jsonl:2: not valid JSON"),
    "no object": ("a.jsonl", '["a", "b"]\n', None, r"a\.jsonl:1: expected one JSON object a line, got list"),
    "number": (
        "a.jsonl",
        '{"source": "a", "target": 7}\n',
        None,
        r"a\.jsonl:1: expected text in column 'target', got int",
    ),
    "key": ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": "a"}\n', None, r"a\.jsonl:2: no column 'target'"),
    "surrogate": (
        "a.jsonl",
        '{"source": "a", "target": "\\uD83D\\uDE00"}\n{"source": "a", "target": "\\uD83D"}\n',
        None,
        r"a\.jsonl:2: text holds half a character",
    ),
    "utf-8": ("a.jsonl", b'{"source": "\xff"}\n', None, r"a\.jsonl:1: not valid UTF-8"),
    "parquet": ("a.parquet", "not parquet at all", None, r"a\.parquet is not a whole parquet file"),
    "kind": ("a.txt", "a\n", None, r"a\.txt has no second file: give two line-aligned files, or one \.tsv"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_named_with_their_line(write, case):
    name, content, columns, message = BAD_TABLES[case]
    file = write(name, content)

    with pytest.raises(SaccadeError, match=message):
        pairs(file, columns=columns)


def test_a_missing_file_is_named_with_the_nearest_one(write, tmp_path):
    write("train.en", "a\n")

    with pytest.raises(SaccadeError, match=r"trian\.en not found; did you mean train\.en\?"):
        pairs(tmp_path / "trian.en", tmp_path / "train.en")
    with pytest.raises(SaccadeError, match=r"not found: there is no folder"):
        list(read_lines(tmp_path / "nowhere" / "train.en"))


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(SaccadeError, match="is a directory; expected a file"):
        pairs(tmp_path, tmp_path)
    with pytest.raises(SaccadeError, match="is a directory; expected a file"):
        hash_pairs(corpus(tmp_path, tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"abc\n" * 99)[:-9], gzip.compress(b"abc")[:5]],
    ids=["no gzip", "no end", "no head"],  # not the bytes: they hold the time, and xdist's workers must agree on names
)
def test_a_broken_gzip_file_is_named(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)

    with pytest.raises(SaccadeError, match=r"a\.gz is not a whole \.gz file"):
        list(read_lines(tmp_path / "a.gz"))


def test_a_file_without_permission_is_named(write, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lines, "_open", refuse)  # root may read everything, so modes do not help here
    with pytest.raises(SaccadeError, match=r"a\.en cannot be read: Permission denied"):
        list(read_lines(write("a.en", "a\n")))


@pytest.fixture
def standard_input(monkeypatch):
    """A pipe as standard input; the end that the test writes to."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb", buffering=0) as standard_input:
        monkeypatch.setattr(sources.sys, "stdin", stdin)
        yield standard_input


def test_lines_of_standard_input_come_one_by_one(standard_input):
    given = read_lines("-")

    standard_input.write(b"one\r\n")
    assert next(given) == "one"  # would wait for ever for more
    standard_input.write(b"\nthree")
    standard_input.close()
    assert list(given) == ["", "three"]


def test_bad_bytes_of_standard_input_are_named_by_line(standard_input):
    standard_input.write(b"a\n\xff\n")

    with pytest.raises(SaccadeError, match="standard input:2: not valid UTF-8"):
        list(read_lines("-"))


def test_the_content_key_follows_the_content_and_not_the_name(write):
    first, same, other = write("a.en", "a\n"), write("b.en", "a\n"), write("c.en", "b\n")
    keys = [hash_pairs(corpus(file, first)) for file in (first, same, other)]

    assert keys[0] == keys[1] != keys[2]
    assert hash_pairs(corpus(first, same, examples=1)) != keys[0]


def test_the_text_of_json_is_not_changed(write):
    text = 'tab\t, quote ", \u2028 and \U0001f600'

    assert pairs(write("a.jsonl", json.dumps({"source": text, "target": "x"}))) == [(text, "x")]
