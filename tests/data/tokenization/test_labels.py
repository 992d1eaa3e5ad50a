"""Labels as ids, and texts with labels from files of all kinds."""

import json
import struct

import pytest

from saccade.config.schema import Corpus
from saccade.data.sources.labelled import inherit_columns, read_labelled, validate_labels
from saccade.data.tokenization.labels import MAX_CLASSES, Labels, collect_labels
from saccade.errors import SaccadeError


def rows(*labels, texts=1):
    return [(number, *["text"] * texts, label) for number, label in enumerate(labels, 1)]


def read(files, kind="label", **settings):
    files = [files] if not isinstance(files, list) else files
    return list(read_labelled(Corpus(files=tuple(map(str, files)), **settings), kind=kind))


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


# ---- labels


def test_classes_are_numbered_by_their_names_and_numbers_by_their_value():
    assert collect_labels("label", rows("b", "a", "b", "")).names == ("a", "b")
    assert collect_labels("label", rows("10", "9", "-1")).names == ("-1", "9", "10")
    assert collect_labels("label", rows("10", "9", "--1")).names == ("--1", "10", "9")
    assert collect_labels("tags", rows("O B O", "I")).names == ("B", "I", "O")


def test_ids_are_one_more_than_numbers_so_that_0_is_none():
    labels = Labels("label", ("no", "yes"))
    assert (labels.encode("no"), labels.encode("yes"), labels.size) == ([1], [2], 2)
    assert Labels("tags", ("A", "B")).encode("B A B") == [2, 1, 2]


@pytest.mark.parametrize("value", [0.0, -1.5, 3.25, -0.0])
def test_a_number_is_the_bits_of_a_float(value):
    labels = Labels("number")
    [bits] = labels.encode(str(value))
    assert struct.unpack("<f", struct.pack("<I", bits))[0] == value
    assert labels.size == 1


def test_how_many_texts_a_label_is_about_is_learned():
    assert collect_labels("label", rows("a", "b", texts=2)).num_texts == 2
    assert collect_labels("number", rows("1", texts=2)).num_texts == 2


def test_labels_come_back_from_their_file(tmp_path):
    labels = Labels("label", ("ä", "b c"), num_texts=2)
    labels.save(tmp_path)
    assert Labels.load(tmp_path) == labels
    assert Labels.load(tmp_path / "elsewhere") is None
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(SaccadeError, match="is not a file of labels"):
        Labels.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Labels("label", ("yes", "no")).encode("yess"), r"unknown label 'yess'; did you mean yes\?"),
        (lambda: Labels("number").encode("nan"), "expected a number, got 'nan'"),
        (lambda: Labels("number").encode("a"), "expected a number, got 'a'"),
        (lambda: Labels("number").encode("-1e40"), "expected a number, got '-1e40'"),
        (lambda: collect_labels("label", rows("a", "a")), "at least two different labels .* only one: 'a'"),
        (lambda: collect_labels("label", []), "needed to tell texts apart, but the data has none"),
        (lambda: collect_labels("label", [], noun="sounds"), "needed to tell sounds apart"),
        (lambda: collect_labels("label", rows(*map(str, range(MAX_CLASSES + 1)))), "more than 1,000 different labels"),
    ],
)
def test_what_is_no_label_is_reported(make, message):
    with pytest.raises(SaccadeError, match=message):
        make()


# ---- files


def test_the_label_is_the_column_of_that_name(write):
    path = write("a.tsv", "index\tsentence1\tlabel\tsentence2\n0\tone\tyes\ttwo\n")
    assert read(path) == [(2, "one", "two", "yes")]


def test_without_a_header_the_last_column_is_the_label(write):
    assert read(write("a.tsv", "one\tyes\ntwo \t no\n")) == [(1, "one", "yes"), (2, "two ", "no")]
    assert read(write("b.tsv", "one\ttwo\tyes\n")) == [(1, "one", "two", "yes")]


def test_columns_can_be_counted_and_named(write):
    path = write("a.tsv", "x\t1\t\tThe text\n")
    assert read(path, columns=("4", "2")) == [(1, "The text", "1")]
    path = write("b.csv", "score,premise,hypothesis\n1.5,one,two\n")
    assert read(path, kind="number") == [(2, "one", "two", "1.5")]
    assert read(path, columns=("hypothesis", "premise")) == [(2, "two", "one")]


def test_counted_columns_may_be_among_the_numbers_of_rows(write):
    path = write("a.tsv", "2\tone\ttwo\tyes\n3\tthree\tfour\tno\n")
    assert read(path, columns=("2", "3", "4")) == [(1, "one", "two", "yes"), (2, "three", "four", "no")]


def test_json_has_numbers_truths_and_lists(write):
    lines = [{"text": "a", "label": 1}, {"text": "b", "label": True}]
    path = write("a.jsonl", "\n".join(map(json.dumps, lines)))
    assert [row[-1] for row in read(path)] == ["1", "true"]
    path = write("b.jsonl", json.dumps({"words": ["New", "York"], "tags": [3, 4], "id": "7"}))
    assert read(path, kind="tags") == [(1, "New York", "3 4")]


def test_two_files_are_texts_and_labels(write):
    files = [write("a.txt", "one\ntwo\n"), write("a.labels", "yes\nno\n")]
    assert read(files) == [(1, "one", "yes"), (2, "two", "no")]


def test_a_word_a_line_is_read_text_by_text(write):
    path = write("a.conll", "-DOCSTART- -X- O\n\nNew NNP B\nYork NNP I\n\n\nis VBZ O\n")
    assert read(path, kind="tags") == [(3, "New York", "B I"), (7, "is", "O")]


def test_a_data_set_has_the_names_of_its_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({
        "tokens": datasets.Sequence(datasets.Value("string")),
        "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "NAME"])),
    })  # fmt: skip
    data = datasets.Dataset.from_dict({"tokens": [["Ada", "sleeps"]], "tags": [[1, 0]]}, features=kinds)
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "set"))
    assert read(tmp_path / "set", kind="tags") == [(1, "Ada sleeps", "NAME O")]


@pytest.mark.parametrize(
    ("name", "text", "kind", "message"),
    [
        (
            "a.tsv",
            "a\tb\tc\td\n",
            "label",
            r"a.tsv:1: which of the columns 1 \(a\), 2 \(b\), 3 \(c\), 4 \(d\) are .* these alone$",
        ),
        ("a.tsv", "text\tlabel\na\n", "label", "a.tsv:2: expected 2 columns, got 1"),
        ("a.tsv", "a text\n", "label", "a.tsv:1: expected one text or two and a label, got only the column '1'"),
        ("a.csv", "text,text,label\na,b,c\n", "label", "a.csv:1: two columns are called 'text'"),
        ("a.tsv", "", "label", "is empty; expected at least one row"),
        ("a.txt", "a text\n", "label", "has no labels: give one .tsv"),
        ("a.conll", "word\n", "tags", "a.conll:1: expected a word and its tag in each line"),
        ("a.tsv", "two words\tO\n", "tags", "a.tsv:1: there are 2 words and 1 tags; each word needs one"),
        ("a.tsv", "a\tb\tO\n", "tags", "a.tsv:1: words and their tags are two columns, got 3"),
        ("a.jsonl", '{"words": ["a b"], "tags": ["O"]}', "tags", "'a b' in column 'words' is not one word"),
        ("a.jsonl", '{"words": [""], "tags": ["O"]}', "tags", "'' in column 'words' is not one word"),
        ("a.jsonl", '{"text": "a", "label": null}', "label", "expected text, a number or a list in column 'label'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}', "label", "a.jsonl:2: no column 'label'"),
    ],
)
def test_what_cannot_be_read_is_reported_with_its_place(write, name, text, kind, message):
    with pytest.raises(SaccadeError, match=message):
        read(write(name, text), kind=kind)


def test_a_single_column_has_no_label(write):
    with pytest.raises(SaccadeError, match="columns names one text or two and the label, got only 'text'"):
        read(write("a.tsv", "text\tlabel\na\tb\n"), columns=("text",))


def test_labels_of_other_data_must_be_those_of_training():
    labels = Labels("label", ("no", "yes"))
    assert list(validate_labels(lambda: iter(rows("yes", "")), labels, "dev.tsv")()) == rows("yes", "")
    with pytest.raises(SaccadeError, match="dev.tsv:2: unknown label 'maybe'"):
        list(validate_labels(lambda: iter(rows("yes", "maybe")), labels, "dev.tsv")())
    with pytest.raises(SaccadeError, match="dev.tsv:1: a label is about 1 text in the training data, here about 2"):
        list(validate_labels(lambda: iter(rows("yes", texts=2)), labels, "dev.tsv")())


def test_other_files_have_the_columns_of_the_first():
    first = Corpus(files=("train.tsv",), columns=("4", "2"))
    assert inherit_columns(Corpus(files=("dev.tsv",)), first).columns == ("4", "2")
    assert inherit_columns(Corpus(files=("dev.tsv",), columns=("1", "2")), first).columns == ("1", "2")
    assert inherit_columns(Corpus(files=("embedded:opinions",)), first).columns is None
