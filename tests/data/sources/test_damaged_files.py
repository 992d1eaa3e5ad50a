"""Data files that others have written and damaged: one line with file and row, whatever the format."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from saccade.config.schema import Corpus
from saccade.data.media.frames import load_features, read_feature_archive
from saccade.data.sources import labelled, lines, pairs
from saccade.data.sources.ranges import Place, count_bytes
from saccade.data.sources.table import read_pairs
from saccade.errors import SaccadeError

FRAMES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "x.jsonl:1: expected at least two columns, source and target, got 0"),
        ('{"source": "a", "target": "b"}\n{}\n', r"x.jsonl:2: no column 'source'"),
        ('{"source": %s, "target": "b"}\n' % ("9" * 5000), "x.jsonl:1: has a number of more than 4,300 digits"),
        ('{"source":' * 1000 + "1" + "}" * 1000 + "\n", "x.jsonl:1: nested too deeply"),
        ('{"source":' * 100 + "1" + "}" * 100 + "\n", "x.jsonl:1: nested too deeply"),
    ],
)
def test_json_lines(tmp_path, content, message):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(SaccadeError, match=message):
        list(read_pairs(tmp_path / "x.jsonl", columns=None))


@pytest.mark.parametrize("content", ["{}", '{"a": {}}'])
def test_an_empty_row_of_labelled_data(tmp_path, content):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(SaccadeError, match="x.jsonl:1: expected one text or two and a label, got an empty row"):
        list(labelled.read_labelled(Corpus(files=(str(tmp_path / "x.jsonl"),)), kind="class"))


def test_invalid_text_in_parquet_is_named_by_its_row(tmp_path):
    import pyarrow
    import pyarrow.parquet

    offsets = pyarrow.py_buffer(struct.pack("<4i", 0, 2, 3, 5))
    texts = pyarrow.StringArray.from_buffers(3, offsets, pyarrow.py_buffer(b"ok\xffno"))
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"source": texts, "target": ["a", "b", "c"]}), path)
    with pytest.raises(
        SaccadeError, match=r"x.parquet:2: a cell cannot be read \('utf-8' codec can't decode byte 0xff"
    ):
        list(read_pairs(path, columns=None))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SaccadeError, match="x.parquet is not a whole parquet file"):
        list(read_pairs(path, columns=None))


class BoundedLines(io.BytesIO):
    """A file that ends the test where a whole line is asked for, which might have no end, as in /dev/zero."""

    def readline(self, size=-1):
        assert 0 < size <= lines.MAX_LINE_BYTES + 1
        return super().readline(size)


def test_a_line_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    (tmp_path / "x").write_text("a" * 9 + "\n" + "b" * 11)
    with pytest.raises(SaccadeError, match="x:2: a line of more than 10 bytes; is it text, with one example a line?"):
        list(pairs.read_lines(tmp_path / "x"))
    file = BoundedLines(b"ab\n" + b"c" * 30)
    assert list(map(len, count_bytes(file, Place(offset=0), None))) == [3, 11, 11, 8]


def test_training_data_is_a_file_that_can_be_read_twice():
    with pytest.raises(
        SaccadeError, match="/dev/zero is not a file that can be read twice, as this has to be; save its"
    ):
        pairs.hash_file(Path("/dev/zero"))


def build_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a readable file of arrays"),
        (b"\x93NUMPY\x01\x00\x76\x00{'descr'", "is not a readable file of arrays"),
        (build_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3"), "is not a readable file of arrays"),
        (build_header("(" * 60_000), "is not a readable file of arrays"),
        (build_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15, 3), }"), "is not a readable file of"),
        (
            build_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 3), }"),
            "not a readable file",
        ),
        (
            build_header("{'descr': '|O', 'fortran_order': False, 'shape': (4, 3), }"),
            "is not a readable file of arrays",
        ),
    ],
)
def test_damaged_arrays(tmp_path, content, message):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(SaccadeError, match=message):
        load_features(str(tmp_path / "x.npy"), num_features=3)


def test_an_archive_that_is_called_an_array_and_the_other_way_round(tmp_path):
    np.savez(tmp_path / "x.npz", features=FRAMES)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(SaccadeError, match="x.npy is a zip archive, expected one array; call it .npz"):
        load_features(str(tmp_path / "x.npy"), num_features=3)
    np.save(tmp_path / "y.npy", FRAMES)
    (tmp_path / "y.npy").rename(tmp_path / "y.npz")
    with pytest.raises(SaccadeError, match="y.npz is one array, expected an archive of several; call it .npy"):
        list(read_feature_archive(tmp_path / "y.npz"))


@pytest.mark.parametrize("array", [np.array([["a"]]), np.ones((4, 3), complex)])
def test_arrays_that_are_no_real_numbers(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(SaccadeError, match="x.npy: expected real numbers, got"):
        load_features(str(tmp_path / "x.npy"), num_features=3)


@pytest.mark.parametrize(
    ("features", "offsets", "text"),
    [
        (FRAMES, np.array([0.5, 4.0]), np.array(["a"])),
        (FRAMES, np.array([], dtype=int), np.array([])),
        (FRAMES, np.array([[0, 4]]), np.array([["a"]])),
        (np.float32(3), np.array([0, 4]), np.array(["a"])),
        (FRAMES, np.array([0, 4]), np.array("a")),
    ],
)
def test_archives_of_other_shapes(tmp_path, features, offsets, text):
    np.savez(tmp_path / "x.npz", features=features, offsets=offsets, text=text)
    with pytest.raises(
        SaccadeError, match=r"x.npz: expected features \(frames, features\), offsets \(recordings \+ 1\) of"
    ):
        list(read_feature_archive(tmp_path / "x.npz"))
