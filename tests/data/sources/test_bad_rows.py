"""Rows that cannot be used: the first one stops, or all are skipped, counted and listed (`data.on_error`)."""

import ast
import json

import pytest

from saccade.config.load import load, validate
from saccade.data.prepare import prepare
from saccade.data.sources.bad_rows import list_rows
from saccade.errors import SaccadeError

GOOD = [(f"source {n}", f"target {n}") for n in range(6)]


def write_lines(path, lines):
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return [str(path)]


def write_aligned(folder):
    """Two files; bytes that are not UTF-8 on one side, and a line that is empty on the other one."""
    sources = ["source 0", b"\xff", "source 1", "lonely", *(source for source, _ in GOOD[2:])]
    targets = ["target 0", "lost", "target 1", " ", *(target for _, target in GOOD[2:])]
    return write_lines(folder / "a.en", sources) + write_lines(folder / "a.de", targets)


def write_csv(folder):
    """A quote that is not closed, a cell too many, an empty cell, and a row of two lines that is good."""
    good = [f'"{source}","{target}"' for source, target in GOOD[1:]]
    rows = ['"source\n0",target 0', '"not closed,x', "one,two,three", *good[:3], "lonely,", *good[3:]]
    return write_lines(folder / "a.csv", ["source,target", *rows])


def write_tsv(folder):
    rows = ["\t".join(row) for row in GOOD]
    return write_lines(folder / "a.tsv", [*rows[:2], "no tab", b"\xe9\tx", *rows[2:], "a\tb\tc"])


def write_jsonl(folder):
    rows = [json.dumps(dict(zip(("source", "target"), row, strict=True))) for row in GOOD]
    bad = ['{"source": "x"}', "{", '{"source": 3, "target": "x"}', "[]"]
    return write_lines(folder / "a.jsonl", [bad[0], *rows[:3], *bad[1:], *rows[3:]])


def write_parquet(folder):
    """A text of bytes that are not UTF-8, and a missing value."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    sources = [
        *(source.encode() for source, _ in GOOD[:3]),
        b"\xff",
        *(source.encode() for source, _ in GOOD[3:]),
        b"x",
    ]
    targets = [*(target for _, target in GOOD[:3]), "bad", *(target for _, target in GOOD[3:]), None]
    array = pyarrow.array(sources, pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"source": array, "target": targets}), folder / "a.parquet")
    return [str(folder / "a.parquet")]


def write_hub(folder):
    """A folder that `datasets` has saved, named as a data set of the Hub is; a missing value and an empty text."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [*GOOD[:2], ("lonely", None), *GOOD[2:], (" ", "lonely")]
    records = [dict(zip(("source", "target"), row, strict=True)) for row in rows]
    datasets.DatasetDict(train=datasets.Dataset.from_list(records)).save_to_disk(folder / "hub")
    return [str(folder / "hub")]


def write_own_format(folder):
    """Lines of Python values, read by a function of the user: no record, a missing column, a number, an empty text."""
    good = [{"source": source, "target": target} for source, target in GOOD]
    bad = [{"source": "lonely"}, ["source", "target"], {"source": 3, "target": "x"}, {"source": "x", "target": ""}]
    return write_lines(folder / "a.own", map(repr, [*good[:2], *bad, *good[2:]]))


def read_own_format(path):
    return map(ast.literal_eval, path.read_text("utf-8").splitlines())


SOURCES = {
    write_aligned: [("a.en:2", "not valid UTF-8"), ("a.de:4", "the target is empty")],
    write_csv: [
        ("a.csv:4", "not valid CSV"),
        ("a.csv:5", "expected 2 columns, got 3"),
        ("a.csv:9", "the target is empty"),
    ],
    write_tsv: [("a.tsv:3", "expected 2 columns, got 1"), ("a.tsv:4", "not valid UTF-8"), ("a.tsv:9", "got 3")],
    write_jsonl: [
        ("a.jsonl:1", "expected at least two columns, source and target, got 1"),
        ("a.jsonl:5", "not valid JSON"),
        ("a.jsonl:6", "expected text in column 'source', got int"),
        ("a.jsonl:7", "expected one JSON object a line, got list"),
    ],
    write_hub: [("hub[train]:3", "column 'target', got NoneType"), ("hub[train]:8", "the source is empty")],
    write_own_format: [
        ("a.own:3", "no column 'target' (columns: source)"),
        ("a.own:4", "the format 'own' must yield records {column: value}, got list"),
        ("a.own:5", "expected text in column 'source', got int"),
        ("a.own:6", "the target is empty"),
    ],
    write_parquet: [("a.parquet:4", "a cell cannot be read"), ("a.parquet:8", "column 'target', got NoneType")],
}


@pytest.fixture
def make(tmp_path):
    """Prepare files for a recipe; return the data and what was reported."""

    def make(files, *changes, name="dates"):
        reported = []
        kinds = {"own": read_own_format}
        recipe = load(name, overrides=["data.train=[]", "data.valid=[]", *changes], kinds=kinds)
        own = {"format": {"kind": "own"}} if files[0].endswith(".own") else {}
        train = validate({"data": {"train": [{"files": files, **own}]}}, kinds=kinds).data.train
        data = recipe.data.model_copy(update={"train": train})
        recipe = recipe.model_copy(update={"data": data})
        return prepare(recipe, cache=tmp_path / "cache", report=reported.append), reported

    return make


def decode(made):
    tokenizers, store = made.tokenizers, made.train
    sides = zip((tokenizers.source, tokenizers.target), range(2), strict=True)
    texts = [[tok.decode(store.gather(store_rows(i), side=side)[0]) for i in range(len(store))] for tok, side in sides]
    return list(zip(*texts, strict=True))


def store_rows(index):
    import numpy as np

    return np.array([index])


@pytest.mark.parametrize("write", SOURCES)
def test_a_bad_row_stops_and_is_named(write, make, tmp_path):
    files = write(tmp_path)
    row, reason = SOURCES[write][0]
    with pytest.raises(SaccadeError) as stopped:
        make(files)
    message = str(stopped.value)
    assert message.startswith(f"{tmp_path / row}: ") and reason in message and "\n" not in message
    assert message.endswith("; correct it, or skip and list all such rows: data.on_error=skip")


@pytest.mark.parametrize("write", SOURCES)
def test_bad_rows_are_skipped_counted_and_listed(write, make, tmp_path):
    files = write(tmp_path)
    for _ in range(2):  # the second time from the cache
        made, reported = make(files, "data.on_error=skip")
        found = list_rows(made.bad_rows)
        assert [row["row"] for row in found] == [str(tmp_path / row) for row, _ in SOURCES[write]]
        for row, (_, reason) in zip(found, SOURCES[write], strict=True):
            assert reason in row["error"]
        [note] = [line for line in reported if " skipped in " in line]
        assert note == made.notes[0] and note.startswith(f"{len(found)} rows were skipped in {files[0]}; the first one")
        assert len(made.train) == 6
    first, *rest = decode(made)
    assert (first[0].replace("\n", " "), first[1]) == ("source 0", "target 0") and rest == GOOD[1:]
    with pytest.raises(SaccadeError, match="data.on_error=skip$"):  # what was skipped is in the cache
        make(files)


def test_more_than_half_is_an_error_in_any_case(make, tmp_path):
    for bad, text in ((4, ""), (6, "6 of 11"), (11, "11 of 11")):
        rows = [f"{n}\tx" for n in range(11 - bad)] + ["no tab"] * bad
        files = write_lines(tmp_path / "a.tsv", ["source\ttarget", *rows])
        if not text:
            assert len(make(files, "data.on_error=skip")[0].train) == 7
            continue
        with pytest.raises(SaccadeError, match=rf"^{text} rows of .*a.tsv cannot be used, more than half; is it the"):
            make(files, "data.on_error=skip")


def test_blank_lines_on_both_sides_are_no_bad_rows(make, tmp_path):
    files = write_lines(tmp_path / "a.en", ["a", "", "b"]) + write_lines(tmp_path / "a.de", ["c", "", "d"])
    made, _ = make(files)
    assert len(made.train) == 2 and made.notes[0].startswith("dropped 1 of 3 pairs")


def test_a_renamed_file_is_listed_by_its_name_of_today(make, tmp_path):
    files = write_tsv(tmp_path)
    make(files, "data.on_error=skip")
    (tmp_path / "a.tsv").rename(tmp_path / "b.tsv")
    made, _ = make([str(tmp_path / "b.tsv")], "data.on_error=skip")
    assert list_rows(made.bad_rows)[0]["row"] == f"{tmp_path / 'b.tsv'}:3"


def test_labels_that_are_missing_or_no_numbers_are_bad_rows(make, tmp_path):
    rows = ["text,label", "a,1.5", "b,", "c,n/a", "d,2", "e,3", "f,4"]
    files = write_lines(tmp_path / "a.csv", rows)
    changes = ["writer.kind=number", "objectives=[{kind='regress'}]", "train.metric=pearson"]
    made, _ = make(files, *changes, "data.on_error=skip", name="classify")
    assert len(made.train) == 4
    reasons = {row["row"][-2:]: row["error"] for row in list_rows(made.bad_rows)}
    assert reasons[":3"] == "the label is empty" and reasons[":4"].startswith("expected a number, got 'n/a'")


def test_a_conll_text_with_a_bad_line_is_one_bad_row(make, tmp_path):
    lines = ["Ann N", "runs V", "", "bad", "word X", "", "Bob N", "sits V", ""]
    files = write_lines(tmp_path / "a.conll", lines)
    with pytest.raises(SaccadeError, match="a.conll:4: expected a word and its tag"):
        make(files, name="tag")
    made, _ = make(files, "data.on_error=skip", name="tag")
    assert len(made.train) == 2 and [row["row"][-2:] for row in list_rows(made.bad_rows)] == [":4"]


def test_bad_documents_are_skipped_also_in_a_stream_and_its_place_is_that_of_the_file(make, tmp_path):
    lines = [json.dumps({"text": f"word {n}"}) for n in range(8)]
    files = write_lines(tmp_path / "a.jsonl", [*lines[:3], '{"text": null}', *lines[3:], "{"])
    made, _ = make(files, "data.on_error=skip", name="gpt2")
    assert len(list_rows(made.bad_rows)) == 2
    made, _ = make(files, "data.on_error=skip", "data.stream=true", name="gpt2")
    documents = made.train.open_documents()
    assert [next(documents)[0] for _ in range(4)] == [1, 2, 3, 5]
    again = made.train.open_documents(place=documents.place)
    assert [number for number, _ in again] == [6, 7, 8, 9]
    assert [row["row"][-2:] for row in list_rows(made.bad_rows)] == [":4", "10"]
