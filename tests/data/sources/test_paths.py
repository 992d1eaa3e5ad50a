"""Corpora by pattern and by URL, of file systems that are always there: memory:// and file://."""

import gzip
import json
import sys
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.documents import DocumentReader, find_columns, hash_documents, read_documents
from saccade.data.sources.paths import find_glob, is_glob, to_path
from saccade.errors import SaccadeError

pytest.importorskip("upath")
TEXTS = ["the first", "the second", "the third", "the fourth"]


@pytest.fixture(params=["memory", "file"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a folder with a text file, lines of JSON, and a table."""
    url = "memory://shards" if request.param == "memory" else f"file://{tmp_path}"
    files = fsspec.filesystem(request.param)
    folder = url.partition("://")[2]
    files.makedirs(f"{folder}/more", exist_ok=True)
    files.pipe(f"{folder}/a.jsonl", b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS[:2]))
    files.pipe(f"{folder}/more/b.txt.gz", gzip.compress(TEXTS[2].encode()))
    with files.open(f"{folder}/more/c.parquet", "wb") as file:
        pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS[3:]}), file)
    files.pipe(f"{folder}/ignored.bin", b"0")
    return url


def read(name: str) -> list[str]:
    return [text for _, text in read_documents(Corpus(files=(name,)), unit="lines")]


def test_a_folder_a_file_and_a_pattern_of_a_url_are_read(base: str) -> None:
    assert read(base) == TEXTS
    assert read(f"{base}/a.jsonl") == TEXTS[:2]
    assert read(f"{base}/**/*.txt.gz") == TEXTS[2:3]
    assert read(f"{base}/more/*.parquet") == TEXTS[3:]
    assert find_columns(Corpus(files=(f"{base}/a.jsonl",))) == ("text",)
    whole, other = (hash_documents(Corpus(files=(name,)), unit="lines") for name in (base, f"{base}/a.jsonl"))
    assert whole != other


def test_reading_a_url_goes_on_at_a_place(base: str) -> None:
    corpus = Corpus(files=(base,))
    for taken in range(5):
        first = DocumentReader(corpus, unit="lines")
        found = [next(first)[1] for _ in range(taken)]
        assert found + [text for _, text in DocumentReader(corpus, unit="lines", place=first.place)] == TEXTS


def test_a_pattern_of_local_files_is_read_in_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text(name)
    assert read(str(tmp_path / "*.txt")) == ["a.txt", "b.txt"]
    (tmp_path / "odd[1].txt").write_text("its own name")
    assert read(str(tmp_path / "odd[1].txt")) == ["its own name"] and not is_glob(str(tmp_path / "odd[1].txt"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memory://nowhere/a.jsonl", r"memory://nowhere/a.jsonl not found"),
        ("nosuch://bucket/a.jsonl", r"nosuch://bucket/a.jsonl cannot be opened \(.*nosuch"),
        ("memory://nowhere/*.jsonl", r"no file is called memory://nowhere/\*.jsonl; expected a pattern"),
    ],
)
def test_what_is_wrong_with_a_url_is_one_line(name: str, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        read(name)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(SaccadeError, match=r"is a URL, for which a package is missing; .*pip install .*\[urls\]"):
        to_path("memory://a")


def test_a_pattern_without_files_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"no file is called .*/\*\.txt; expected a pattern of existing files"):
        find_glob(str(tmp_path / "*.txt"))
