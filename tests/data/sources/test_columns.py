"""Which columns of a user's own table are read, what is reported about them, and which ones have to be named."""

import io
import json
import re
import shlex

import pytest

from saccade.config.load import load, save
from saccade.config.schema import Corpus, Data, Tokenizer
from saccade.data.prepare import prepare
from saccade.data.sources import labelled, pairs, table
from saccade.data.sources.columns import UnclearColumnsError, suggest_columns
from saccade.errors import SaccadeError
from saccade.runs import RECIPE
from saccade.score.pairs import choose_corpora, read_text_pairs

NAMES = ["id", "German", "English", "comment"]
ROWS = [["7", "ein Haus", "a house", "ok"], ["8", "zwei", "two", ""]]
RECORDS = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
EXPECTED = [("ein Haus", "a house"), ("zwei", "two")]


def write_parquet():
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), file)
    return file.getvalue()


def join(separator, rows):
    return "".join(separator.join(row) + "\n" for row in rows)


TABLES = {
    "a.csv": lambda: join(",", [NAMES, *ROWS]),
    "header.tsv": lambda: join("\t", [NAMES, *ROWS]),
    "a.tsv": lambda: join("\t", ROWS),
    "a.jsonl": lambda: "".join(json.dumps(record) + "\n" for record in RECORDS),
    "a.parquet": write_parquet,
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def make(tmp_path):
    """Prepare the data of a recipe; return it with what was reported."""

    def make(*train, valid=(), recipe="dates"):
        reported = []
        corpora = tuple({"files": (one,)} if isinstance(one, str) else one for one in train)
        data = Data(train=corpora, valid=valid)
        made = load(recipe).model_copy(update={"data": data, "tokenizer": Tokenizer(kind="characters")})
        return prepare(made, cache=tmp_path / "cache", report=reported.append), reported

    return make


def read(path, columns=None):
    return list(pairs.read_pairs(Corpus(files=(str(path),), columns=columns)))


def find_option(message):
    """The one option that a message names, as a shell would pass it on."""
    [option] = re.findall(r"data\.\w+\.\d\.columns='[^']+'", message)
    return shlex.split(option)[0]


@pytest.mark.parametrize("name", TABLES)
def test_more_than_two_columns_without_names_are_refused_with_an_option_that_works(write, make, name):
    path = write(name, TABLES[name]())
    with pytest.raises(SaccadeError) as refused:
        make("embedded:copy-5", str(path))
    message = str(refused.value)
    assert message.startswith(f"{path}:1: ") and "\n" not in message
    assert ("7, ein Haus, a house, ok" if name == "a.tsv" else "id, German, English, comment") in message
    option = find_option(message)
    assert option.startswith("data.train.1.columns=")
    recipe = load("dates", overrides=[f"data.train=[{{files=['embedded:copy-5']}}, {{files=['{path}']}}]", option])
    assert read(path, recipe.data.train[1].columns) == EXPECTED


def test_validation_files_are_refused_with_their_own_option(write, make):
    path = write("a.csv", TABLES["a.csv"]())
    with pytest.raises(SaccadeError, match="or call them source and target$") as refused:
        make("embedded:copy-5", valid=(str(path),))
    assert find_option(str(refused.value)) == "data.valid.0.columns=German,English"


def test_a_file_that_no_option_names_is_refused_with_the_key_of_a_recipe(write):
    with pytest.raises(SaccadeError, match=r'name them: columns = \["German", "English"\] in a recipe, or call them'):
        read(write("a.csv", TABLES["a.csv"]()))


def test_columns_called_source_and_target_are_clear_among_others(write):
    path = write("a.csv", "id,target,source,comment\n1,ein Haus,a house,x\n")
    assert read(path) == [("a house", "ein Haus")]


def test_two_columns_are_clear(write):
    assert read(write("a.csv", "German,English\nein Haus,a house\n")) == [("ein Haus", "a house")]


def test_a_quote_in_a_name_is_quoted_for_the_shell():
    error = UnclearColumnsError("name:", ["it's", "ü"]).with_option("data.train.0")
    assert shlex.split(str(error)) == ["name:", 'data.train.0.columns=["it\'s", "ü"]']


def test_row_numbers_are_suggested_only_where_nothing_else_is_left():
    assert suggest_columns(["ID", "a", "b"], ["ID", "a", "b"], 2) == ["a", "b"]
    assert suggest_columns(["a"], ["id", "a"], 2) == ["id", "a"]


def test_of_a_language_model_the_option_names_one_column(write, make):
    path = write("a.csv", "id,title,body\n1,x,y\n")
    with pytest.raises(SaccadeError) as refused:
        make(str(path), recipe="gpt2")
    assert find_option(str(refused.value)) == "data.train.0.columns=title"
    assert "which of the columns id, title, body is the text?" in str(refused.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_validation_files_have_the_columns_of_training_if_they_have_them(write, make, name):
    corpus = {"files": (str(write("a.csv", TABLES["a.csv"]())),), "columns": ("German", "English")}
    made, _ = make(corpus, valid=(str(write(f"dev-{name}", TABLES[name]())),))
    assert made.valid_pairs == EXPECTED
    made, _ = make(corpus, valid=(str(write("other.csv", "de,en\nx,y\n")),))
    assert made.valid_pairs == [("x", "y")]


def test_validation_files_with_the_columns_in_another_order_are_read_by_name(write, make):
    train, valid = write("a.csv", "English,German\na house,ein Haus\n"), write("b.csv", "German,English\nzwei,two\n")
    made, reported = make(str(train), valid=(str(valid),))
    assert made.valid_pairs == [("two", "zwei")]
    assert f'validation data {valid}: source = column "English", target = column "German"' in reported
    made, _ = make(str(train), valid=(str(write("c.csv", "English,German,note\ntwo,zwei,x\n")),))
    assert made.valid_pairs == [("two", "zwei")]
    made, _ = make(str(train), valid=(str(write("d.csv", "French,English\ndeux,two\n")),))
    assert made.valid_pairs == [("deux", "two")]  # it has other columns


def test_test_files_with_the_columns_in_another_order_are_read_by_name(write, tmp_path):
    train, test = write("a.csv", "English,German\na house,ein Haus\n"), write("b.csv", "German,English\nzwei,two\n")
    run = tmp_path / "run"
    run.mkdir()
    save(load("dates", overrides=[f"data.train=[{{files=['{train}']}}]"]), run / RECIPE)
    given = [Corpus(files=(str(test),))]
    assert read_text_pairs(choose_corpora(run, given, None)) == [("two", "zwei")]
    train.unlink()  # then the order of the file counts, as it would without a run
    assert read_text_pairs(choose_corpora(run, given, None)) == [("zwei", "two")]


def test_numbered_columns_are_inherited_by_files_with_enough_of_them(write):
    first = Corpus(files=("train.tsv",), columns=("2", "3"))
    many = Corpus(files=(str(write("a.tsv", "1\tx\ty\n")),))
    few = Corpus(files=(str(write("b.tsv", "x\ty\n")),))
    assert table.inherit_columns(many, first).columns == ("2", "3")
    assert table.inherit_columns(few, first).columns is None


# ---- labels


LABEL_TABLES = {
    "text,sentiment,date\na,good,2020\n": "data.train.0.columns=text,sentiment",
    "id,text,label,label_text\n1,a,0,bad\n": "data.train.0.columns=text,label",
    "text,label,date\na,yes,2020\n": "data.train.0.columns=text,label",
    "id,author,text,date,label\n1,x,a,2020,yes\n": "data.train.0.columns=text,label",
}


@pytest.mark.parametrize("content", LABEL_TABLES)
def test_a_table_whose_texts_or_label_are_unclear_is_refused(write, make, content):
    with pytest.raises(SaccadeError) as refused:
        make(str(write("a.csv", content)), recipe="classify")
    message = str(refused.value)
    assert find_option(message) == LABEL_TABLES[content]
    assert f"which of the columns {', '.join(content.splitlines()[0].split(','))} are the texts" in message


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("id,review,sentiment\n1,a,good\n", ("review", "sentiment")),
        ("premise,label,hypothesis\na,yes,b\n", ("premise", "hypothesis", "label")),
        ("sentence1,sentence2,label,idx\na,b,yes,1\n", ("sentence1", "sentence2", "label")),
        ("text_a,text_b,score\na,b,1\n", ("text_a", "text_b", "score")),
    ],
)
def test_tables_whose_names_say_what_they_are_need_no_option(write, content, columns):
    assert labelled.find_columns(Corpus(files=(str(write("a.csv", content)),))) == columns


# ---- the report before training


def test_columns_sizes_and_three_examples_are_reported(write, make):
    rows = [[str(n), f"Haus {n}", f"house {n}", ""] for n in range(5)] + [["9", "", "", ""]]
    path = write("a.csv", join(",", [NAMES, *rows]))
    made, reported = make({"files": (str(path),), "columns": ("German", "English")})
    assert reported == [
        f'data {path}: source = column "German", target = column "English"',
        "  2: Haus 0 | house 0",
        "  3: Haus 1 | house 1",
        "  4: Haus 2 | house 2",
        f"data: 5 pairs of {path}",
        *made.notes,
    ]
    assert len(made.notes) == 1 and made.notes[0].startswith("dropped 1 of 6 pairs")


def test_two_files_and_validation_files_are_reported(write, make):
    files = tuple(str(write(f"a.{side}", f"{side} 1\n{side} 2\n")) for side in ("en", "de"))
    _, reported = make({"files": files}, "embedded:copy-5", valid=(str(write("b.tsv", "x\ty\n")),))
    assert reported[0] == f"data {files[0]} and {files[1]}: source = {files[0]}, target = {files[1]}"
    assert reported[1:3] == ["  1: en 1 | de 1", "  2: en 2 | de 2"]
    assert reported[3].startswith("validation data ")
    assert reported[3].endswith("b.tsv: source = column 1, target = column 2")
    assert reported[4] == "  1: x | y"
    assert reported[5].startswith(f"data: 2 pairs of {files[0]}, ") and reported[5].endswith(" of embedded:copy-5")


def test_embedded_data_is_not_described(make):
    assert make("embedded:copy-5", valid=0.01)[1] == []


def test_examples_are_one_short_line_each_without_control_characters(write, make):
    text = "\x1b[31mred " + "x" * 100
    path = write("a.jsonl", json.dumps({"source": text, "target": "two\nlines"}) + "\n")
    _, reported = make(str(path))
    assert reported[1] == f"  1: [31mred {'x' * 52}... | two lines"


def test_of_many_corpora_the_first_ones_are_described(write, make):
    paths = [str(write(f"{n}.tsv", f"a{n}\tb{n}\n")) for n in range(7)]
    _, reported = make(*paths)
    assert sum(line.startswith("data /") for line in reported) == 5
    assert "and 2 more" in reported and reported[-1].endswith("2 of others")


@pytest.mark.parametrize("given", ["German,English", "German, English", "[German,English]", "'German,English'"])
def test_columns_are_given_without_the_quotes_of_a_list(write, given):
    """[German,English] is what a shell makes of ["German","English"]."""
    path = write("a.csv", TABLES["a.csv"]())
    recipe = load("dates", overrides=[f"data.train=[{{files=['{path}']}}]", f"data.train.0.columns={given}"])
    assert recipe.data.train[0].columns == ("German", "English")


def test_a_single_column_may_be_a_number():
    recipe = load("shakespeare", overrides=["data.train=[{files=['a.tsv']}]", "data.train.0.columns=2"])
    assert recipe.data.train[0].columns == ("2",)


def test_of_two_columns_with_one_name_neither_is_suggested(write):
    path = write("a.csv", "text,text,label\na,b,c\n")
    with pytest.raises(SaccadeError, match="two columns are called 'text'; give each a name of its own"):
        read(path)
