"""CSV as spreadsheets of different countries write it: delimiters, encodings, headers that are none, names twice."""

import shlex

import pytest

from saccade.config.load import load
from saccade.config.schema import Corpus, Data, Tokenizer
from saccade.data.prepare import prepare
from saccade.data.sources import labelled
from saccade.data.sources.overview import REGRESSION
from saccade.data.sources.pairs import read_pairs
from saccade.errors import SaccadeError

PAIRS = [("two dogs, running", "zwei Hunde"), ("a house", "ein Haus; groß")]


def write(folder, name, content, encoding="utf-8"):
    (folder / name).write_bytes(content.encode(encoding))
    return str(folder / name)


def read(path, columns=None):
    return list(read_pairs(Corpus(files=(path,), columns=columns)))


def prepare_labels(path, cache, **data):
    """Prepare a table for a classifier; return what was reported."""
    reported = []
    made = load("classify").model_copy(
        update={"data": Data(train=(path,), **data), "tokenizer": Tokenizer(kind="characters")}
    )
    prepare(made, cache=cache, report=reported.append)
    return reported


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_found(tmp_path, delimiter):
    rows = [("source", "target"), *PAIRS]
    lines = [delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) for row in rows]
    assert read(write(tmp_path, "a.csv", "\n".join(lines))) == PAIRS


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id;source, or English;target\n1;a;b\n", None),  # more commas than semicolons would not fit the rows
        ("source,target;old\na,b\n", ("a", "b")),  # a comma, although the header has a semicolon too
        ("sep=;\nsource;target\na,b;c\n", ("a,b", "c")),  # the line that Excel begins with
        ('"sep=|"\nsource|target\na|c\n', ("a", "c")),
        ("\ufeffsource;target\r\na;b\r\n", ("a", "b")),
        ('"source";"target"\n"a\nb";"c"\n', ("a\nb", "c")),
    ],
)
def test_header_and_first_row_agree_about_the_delimiter(tmp_path, content, expected):
    path = write(tmp_path, "a.csv", content)
    if expected:
        assert read(path) == [expected]
        return
    with pytest.raises(SaccadeError, match="which of the columns id, source, or English, target are the source"):
        read(path)


def test_a_csv_of_one_column_needs_no_delimiter(tmp_path):
    path = write(tmp_path, "a.csv", "text\na; b\nc, d\n")
    with pytest.raises(SaccadeError, match="expected at least two columns, source and target, got 1"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "two dogs;zwei Hunde\n", "source and target with a tab between them, got one; if they are separated"),
        ("a.csv", "source,target\ra,b\r", "lines must end with a line feed, not with a carriage return alone"),
        ("a.xlsx", "PK", "with columns; it is a spreadsheet: save it as CSV in UTF-8$"),
        ("a.json", "[]", "it is JSON: write one object a line, and call it .jsonl$"),
        ("a.txt", "a\tb\n", "it is plain text: if tabs separate its columns, call it .tsv$"),
        ("a.csv", "a,a\nx,y\n", "a.csv:1: two columns are called 'a'; give each a name of its own"),
        ("a.csv", "source,source,target\n1,x,y\n", "a.csv:1: two columns are called 'source'; give each a name"),
        ("a.csv", "Two dogs run.,Zwei Hunde\nx,y\n", r"a header\? it has the text 'Two dogs run.'; if the file has no"),
        ("a.csv", f"{'x' * 41},y\nx,y\n", "is this line a header"),
        ("a.tsv", "English\tde\nx\ty\n", r"a.tsv:1: is this line, English and de, a header\? that of a .tsv has"),
        ("a.csv", ",text\n1,x\n", "a.csv:1: expected at least two columns, source and target, got 1"),
    ],
)
def test_a_table_that_would_be_misread_is_refused_in_one_line(tmp_path, name, content, message):
    with pytest.raises(SaccadeError, match=message) as refused:
        read(write(tmp_path, name, content))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("Two dogs run.,Zwei Hunde\nx,y\n", ("1", "2")),
        ("Two dogs run.,Zwei Hunde\nx,y\n", ("Zwei Hunde", "Two dogs run.")),
    ],
)
def test_an_unusual_header_is_read_by_number_or_by_name(tmp_path, content, columns):
    expected = [("Two dogs run.", "Zwei Hunde"), ("x", "y")] if columns == ("1", "2") else [("y", "x")]
    assert read(write(tmp_path, "a.csv", content), columns) == expected


@pytest.mark.parametrize(
    "header", [" source , target ", "Source,TARGET", "src,tgt", ",source,target", "Unnamed: 0,source,target,,"]
)
def test_usual_names_are_found_in_any_spelling_and_place(tmp_path, header):
    names = [name.strip().lower() for name in header.split(",")]
    row = ["x" if name.startswith("s") else "y" if name.startswith("t") else "" for name in names]
    assert read(write(tmp_path, "a.csv", f"{header}\n{','.join(row)}\n")) == [("x", "y")]
    assert read(write(tmp_path, "b.csv", f"{','.join(reversed(header.split(',')))}\n{','.join(row[::-1])}\n")) == [
        ("x", "y")
    ]


def test_a_tsv_may_have_a_header_with_other_spellings(tmp_path):
    assert read(write(tmp_path, "a.tsv", "tgt\tsrc\ny\tx\n")) == [("x", "y")]


@pytest.mark.parametrize(
    ("encoding", "advice"), [("utf-16", "utf-16"), ("utf-16-le", "utf-16"), ("cp1252", "windows-1252")]
)
def test_files_in_other_encodings_are_refused_with_the_command_that_converts_them(tmp_path, encoding, advice):
    path = write(tmp_path, "a.csv", "source,target\nhouse,Häuser\n", encoding)
    with pytest.raises(SaccadeError, match=f"iconv -f {advice} -t utf-8 FILE > NEW"):
        read(path)


def test_text_of_two_bytes_a_character_is_not_read_as_if_it_had_one(tmp_path):
    files = (write(tmp_path, "a.en", "a house\n", "utf-16-le"), write(tmp_path, "a.de", "ein Haus\n"))
    with pytest.raises(SaccadeError, match=r"a.en:1: not text \(it has NUL characters\); .* iconv -f utf-16"):
        list(read_pairs(Corpus(files=files)))


# ---- labels

LABELS = ["good film,pos", "bad film,neg", "nice film,pos", "dull film,neg"]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("sentiment,review", ("review", "sentiment")),
        ("Label,Text", ("Text", "Label")),
        ("Class,review", ("review", "Class")),
        (",text,label", ("text", "label")),
        ("text,label,__index_level_0__", ("text", "label")),
        ("text;label", ("text", "label")),
    ],
)
def test_the_label_is_found_by_its_name(tmp_path, header, columns):
    cells = "x;y" if ";" in header else ",".join("xyz"[: header.count(",") + 1])
    path = write(tmp_path, "a.csv", f"{header}\n{cells}\n")
    assert labelled.find_columns(Corpus(files=(path,))) == columns


def test_a_header_of_a_tsv_is_recognized_by_the_name_of_its_label(tmp_path):
    rows = "".join(row.replace(",", "\t") + "\n" for row in LABELS)
    path = write(tmp_path, "a.tsv", "review\tsentiment\n" + rows)
    assert labelled.find_columns(Corpus(files=(path,))) == ("review", "sentiment")
    assert len(list(labelled.read_labelled(Corpus(files=(path,)), kind="label"))) == 4


@pytest.mark.parametrize(
    ("name", "first", "message"),
    [
        (
            "a.csv",
            "fine,pos",
            "its 'pos' is a label of other lines too; if the file has no header, number its columns:",
        ),
        ("a.tsv", "Text\tUrteil", "no other line has its label 'Urteil'; if it is an example, number the columns:"),
    ],
)
def test_labels_tell_whether_the_first_line_is_a_header(tmp_path, name, first, message):
    rows = "".join((row if name == "a.csv" else row.replace(",", "\t")) + "\n" for row in LABELS)
    path = write(tmp_path, name, f"{first}\n{rows}")
    with pytest.raises(SaccadeError, match=message) as refused:
        prepare_labels(path, tmp_path)
    assert f"{path}:1: is this line a header?" in str(refused.value)
    assert "data.train.0.columns=1,2," in shlex.split(str(refused.value))
    numbered = {"files": (path,), "columns": ("1", "2")}
    assert prepare_labels(numbered, tmp_path)[4].startswith("labels: ")
    named = {"files": (path,), "columns": tuple(first.split("\t" if name == "a.tsv" else ","))}
    assert prepare_labels(named, tmp_path)[4] == "labels: neg (2), pos (2)"


def test_a_rare_label_that_is_held_out_is_explained(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\n" + "\n".join([*LABELS, "odd film,mixed"]))
    with pytest.raises(SaccadeError, match="unknown label 'mixed'.*; all its examples are held out: shuffle the lines"):
        prepare_labels(path, tmp_path, valid=0.2)


def test_one_number_in_two_spellings_is_refused_and_codes_are_not(tmp_path):
    with pytest.raises(SaccadeError, match="the labels '1' and '1.0' are the same number; write it in one way"):
        prepare_labels(write(tmp_path, "a.csv", "text,label\na,1\nb,1.0\nc,0\n"), tmp_path)
    assert "labels: 01 (1), 1 (1)" in prepare_labels(write(tmp_path, "b.csv", "text,label\na,1\nb,01\n"), tmp_path)


def test_the_text_and_the_label_are_suggested(tmp_path):
    path = write(tmp_path, "a.csv", "user,date,review,rating\nu1,2020,a long text about a film,3\n")
    with pytest.raises(SaccadeError, match="columns='review,rating'"):
        prepare_labels(path, tmp_path)


@pytest.mark.parametrize(
    "labels, is_noted", [(("0.5", "1.5", "-2"), True), (("0", "1", "2"), False), (("v1.0", "v2.0"), False)]
)
def test_fractions_as_labels_are_pointed_at(tmp_path, labels, is_noted):
    """Ratings are learned as classes unless the recipe says otherwise; whole numbers usually are classes."""
    rows = "".join(f"text {n},{labels[n % len(labels)]}\n" for n in range(30))
    reported = prepare_labels(write(tmp_path, "a.csv", f"text,label\n{rows}"), tmp_path / "cache")
    assert any(REGRESSION in line for line in reported) == is_noted


def test_the_settings_that_learn_numbers_are_a_recipe():
    recipe = load("classify", overrides=REGRESSION.split())
    assert (recipe.writer.kind, recipe.objectives[0].kind) == ("number", "regress")
