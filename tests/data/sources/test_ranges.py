"""File ranges: together they have each document once, and each can be read on from any place in it."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config.schema import Corpus
from saccade.data.sources import ranges
from saccade.data.sources.documents import DocumentReader
from saccade.data.sources.ranges import FileRange, Place, RangeReader, Share, split_into_ranges
from saccade.errors import SaccadeError


def read(found: list[FileRange], unit: str) -> list[str]:
    return [text for _, text in RangeReader(found, Corpus(files=("x",)), unit, Place())]


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from(["", " ", "a", "bcd", "ü\u2028x", "e" * 9]), min_size=1, max_size=14),
    end=st.sampled_from(["\n", "\r\n"]),
    unit=st.sampled_from(["lines", "blank"]),
    data=st.data(),
)
def test_ranges_have_each_document_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, unit: str, data: Any
) -> None:
    """Whatever the bounds are: at line ends, inside of characters, more than one in a line."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(("x\n\n" + end.join(lines)).encode())
    size = path.stat().st_size
    bounds = sorted(data.draw(st.sets(st.integers(1, size), max_size=5)))
    ends = [*zip([0, *bounds], [*bounds, None], strict=True)]
    whole = read([FileRange(path)], unit)
    assert read([FileRange(path, *each) for each in ends], unit) == whole
    assert [text for each in ends for text in read([FileRange(path, *each)], unit)] == whole


@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.txt.xz", "a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet"]
)
@pytest.mark.parametrize("unit", ["lines", "blank"])
def test_reading_goes_on_at_any_place(tmp_path: Path, name: str, unit: str) -> None:
    path, texts = tmp_path / name, [f"text {number}" for number in range(11)]
    formats = {
        ".txt": "\n\n".join(texts),
        ".jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
        ".csv": "id,text\n" + "".join(f'{len(text)},"{text}"\n' for text in texts),
        ".tsv": "".join(f"{text}\n" for text in texts),
    }
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=4)
    else:
        content = formats["." + name.split(".")[1]].encode()
        compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(compress(content))
    (tmp_path / "b.txt").write_text("the last")
    columns = ("text",) if name == "a.csv" else None
    corpus = Corpus(files=(str(tmp_path),), columns=columns)
    whole = [*DocumentReader(corpus, unit=unit)]
    assert [text for _, text in whole] == [*texts, "the last"]
    for taken in range(13):
        first = DocumentReader(corpus, unit=unit)
        assert [next(first) for _ in range(taken)] == whole[:taken]
        place = json.loads(json.dumps(first.place))
        first.close()  # the garbage collector could otherwise find an open file
        assert [*DocumentReader(corpus, unit=unit, place=place)] == whole[taken:]  # with the same line numbers


def test_ranges_are_of_similar_size_and_end_with_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MIN_RANGE_BYTES", 10)
    monkeypatch.setattr(ranges, "MAX_RANGE_BYTES", 30)
    text, rows = tmp_path / "a.txt", tmp_path / "b.parquet"
    text.write_text("x\n" * 50)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["y"] * 50}), rows, row_group_size=8)
    found = split_into_ranges([text, rows], "lines", 2)
    assert [(each.start, each.stop) for each in found if each.path == text] == [(0, 25), (25, 50), (50, 75), (75, None)]
    bounds = [(each.start, each.stop) for each in found if each.path == rows]
    assert bounds == [(0, 8), (8, 16), (16, 24), (24, 32), (32, 40), (40, 48), (48, 50)]
    assert split_into_ranges([text, rows], "lines", 1) == [FileRange(text), FileRange(rows)]
    assert split_into_ranges([text], "file", 2) == [FileRange(text)]


def test_a_bad_line_of_a_range_is_named_by_its_file_and_the_first_byte_of_the_range(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nthree\n\xff\n")
    with pytest.raises(SaccadeError, match=r"a\.txt:4: not valid UTF-8"):
        read([FileRange(path)], "lines")
    with pytest.raises(SaccadeError, match=r"a\.txt from byte 4:3: not valid UTF-8"):
        read([FileRange(path, 4, None)], "lines")


def test_shares_of_a_generated_corpus_are_every_nth_document() -> None:
    corpus = Corpus(files=("embedded:sentences",), examples=10)
    whole = [*DocumentReader(corpus, unit="lines")]
    shares = [DocumentReader(corpus, unit="lines", share=Share(number, 3)) for number in range(3)]
    assert [next(shares[number % 3]) for number in range(6)] == whole[:6]
    resumed = DocumentReader(corpus, unit="lines", share=Share(1, 3), place=shares[1].place)
    assert [*resumed] == whole[7::3] == [*shares[1]]
