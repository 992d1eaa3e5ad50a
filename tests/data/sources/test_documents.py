"""Documents from files, folders and generators."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.documents import hash_documents, read_documents
from saccade.data.sources.pairs import read_pairs
from saccade.errors import SaccadeError

TEXT = "one\ntwo\n\n\nthree\n  \nfour"


def read(*files: object, documents: str = "lines", **settings: object) -> list[tuple[int, str]]:
    corpus = Corpus(files=tuple(map(str, files)), **settings)
    return list(read_documents(corpus, unit=documents))


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("lines", [(1, "one"), (2, "two"), (5, "three"), (7, "four")]),
        ("blank", [(1, "one\ntwo"), (5, "three"), (7, "four")]),
        ("file", [(1, TEXT)]),
    ],
)
def test_what_a_document_is_in_a_text_file(tmp_path: Path, documents: str, expected: object) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
    for name in ("a.txt", "b.txt.gz", "c.txt.xz"):
        assert read(tmp_path / name, documents=documents) == expected


def test_one_column_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "one"}\n{"id": "2", "text": "two\\nlines"}\n')
    (tmp_path / "b.csv").write_text('body\n"one, one"\ntwo\n')
    (tmp_path / "c.tsv").write_text("a\tone\nb\ttwo\n")
    assert read(tmp_path / "a.jsonl") == [(1, "one"), (2, "two\nlines")]
    assert read(tmp_path / "a.jsonl", columns=("id",)) == [(1, "1"), (2, "2")]
    assert [text for _, text in read(tmp_path / "b.csv")] == ["one, one", "two"]
    assert read(tmp_path / "c.tsv", columns=("2",)) == [(1, "one"), (2, "two")]


def test_a_column_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1, 2], "text": ["one", "two"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [(1, "one"), (2, "two")]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "a.jsonl",
            '{"a": "x", "b": "y"}',
            None,
            r'which of the columns a, b is the text\? name it: columns = \["a"\]',
        ),
        ("a.jsonl", '{"a": "x"}', ("a", "b"), "columns names the text, got 2: a, b"),
        ("a.tsv", "x\ty", None, "expected one column of text, got 2"),
        ("a.csv", "a,b\nx,y", ("c",), "no column 'c'"),
        ("a.csv", "\ntext\nx", None, "a.csv:1: expected a column of text, got 0"),
        ("a.txt", " \n\n", None, "a.txt is empty; expected some text"),
        ("a.jsonl", "", None, "a.jsonl is empty; expected at least one text"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(
    tmp_path: Path, name: str, content: str, columns: tuple[str, ...] | None, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SaccadeError, match=message):
        read(tmp_path / name, columns=columns)


def test_pairs_want_two_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": "y"}')
    with pytest.raises(SaccadeError, match="columns names the source and the target, got 1: a"):
        list(read_pairs(Corpus(files=(str(tmp_path / "a.jsonl"),), columns=("a",))))


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("three")
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "zero"}))
    (tmp_path / "notes.md").write_text("no")
    assert [text for _, text in read(tmp_path)] == ["one", "two", "zero", "three"]
    assert [text for _, text in read(tmp_path, examples=2)] == ["one", "two"]
    assert [text for _, text in read(tmp_path / "in", tmp_path / "a.txt")] == ["three", "one", "two"]


def test_a_folder_without_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no")
    with pytest.raises(SaccadeError, match=r"there is no text in the folder .*; expected files that end with \.txt"):
        read(tmp_path)
    with pytest.raises(SaccadeError, match="nothing.txt not found"):
        read(tmp_path / "nothing.txt")


def test_embedded_texts_and_pairs_as_texts() -> None:
    texts = [text for _, text in read("embedded:sentences", examples=50)]
    assert texts == [text for _, text in read("embedded:sentences", examples=60)][:50]
    held = {text for _, text in read("embedded:sentences-heldout", examples=200)}
    assert not held & {text for _, text in read("embedded:sentences", examples=2000)}
    assert all("\t" in text for _, text in read("embedded:dates", examples=3))
    with pytest.raises(SaccadeError, match=r'embedded:sentences has no pairs of texts; .* \(task = "language-model"\)'):
        list(read_pairs(Corpus(files=("embedded:sentences",))))


def test_verbs_of_sentences_agree_with_their_subjects() -> None:
    for _, text in read("embedded:sentences", examples=300):
        words = text.rstrip(".").lower().split()
        if words[0] == "some" and words[2:3] == ["that"]:
            assert not words[3].endswith("s")
        if words[0] == "a" and words[2:3] == ["that"]:
            assert words[3].endswith("s")


def test_the_key_follows_the_content(tmp_path: Path) -> None:
    for name, content in (("a.txt", "one"), ("b.txt", "one"), ("c.txt", "two")):
        (tmp_path / name).write_text(content)

    def key(name: str, documents: str = "lines") -> str:
        return hash_documents(Corpus(files=(str(tmp_path / name),)), unit=documents)

    assert key("a.txt") == key("b.txt")
    assert len({key("a.txt"), key("c.txt"), key("a.txt", "file"), key("")}) == 4


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.json", "it is JSON: write one object a line, and call it .jsonl"),
        ("a.xlsx", "it is a spreadsheet: save it as CSV in UTF-8"),
        ("a.PDF", "it is no plain text: save it as text in UTF-8"),
        ("a.zip", "it is an archive: unpack it"),
    ],
)
def test_files_of_other_programs_are_not_read_as_text(tmp_path, name, advice):
    (tmp_path / name).write_text("[\n{}\n]\n")
    with pytest.raises(SaccadeError, match=f"{name} cannot be read as text; {advice}$"):
        list(read_documents(Corpus(files=(str(tmp_path / name),)), unit="lines"))
