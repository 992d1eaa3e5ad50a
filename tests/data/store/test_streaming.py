"""Streams of documents that are tokenized on the fly."""

import json
import lzma
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from saccade.config.load import validate
from saccade.data.batching.batch import Batch
from saccade.data.prepare import PreparedData, prepare
from saccade.data.store.streaming import DocumentBatchStream, DocumentStream, interleave
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.errors import SaccadeError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [f"{LETTERS[i % 26]}{LETTERS[i // 26]} " * (1 + i % 9) for i in range(60)]


def recipe(folder: Path, *, task: str = "write", tokenizer: dict[str, Any] | None = None, **data: Any) -> Any:
    values = {
        "task": task,
        "data": {"train": [[str(folder)]], "stream": True, "buffer": 16, "max_length": 8, **data},
        "tokenizer": tokenizer or {"kind": "characters"},
        "reader": {"kind": "none"},
        "writer": {"tie": "output"},
    }
    return validate(values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text, compressed text and tables in one folder."""
    path = tmp_path / "texts"
    path.mkdir()
    (path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:20]))
    (path / "b.txt.xz").write_bytes(lzma.compress("".join(f"{text}\n" for text in TEXTS[20:40]).encode()))
    (path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[40:]))
    return path


def open_stream(folder: Path, tmp_path: Path, **data: Any) -> tuple[PreparedData, DocumentStream]:
    prepared = prepare(recipe(folder, **data), cache=tmp_path / "cache", report=lambda text: None)
    assert isinstance(prepared.train, DocumentStream)
    return prepared, prepared.train


def rows_of(batch: Batch) -> list[list[int]]:
    return [row[row != PAD].tolist() for row in batch["target"].ids]


def one_pass(stream: DocumentBatchStream) -> list[list[int]]:
    found: list[list[int]] = []
    while stream.epoch < 1:
        found += rows_of(next(stream))
    return found


@pytest.mark.parametrize("cross", [False, True])
def test_a_pass_has_every_token_once_and_stores_nothing(folder: Path, tmp_path: Path, cross: bool) -> None:
    prepared, train = open_stream(folder, tmp_path, cross_document=cross)
    target = prepared.tokenizers.target
    rows = one_pass(DocumentBatchStream(train, batch_tokens=32, seed=1))
    expected = Counter(number for row in target.encode_all(TEXTS) for number in row)
    assert Counter(number for row in rows for number in row) == expected
    assert max(map(len, rows)) <= 8 and not (tmp_path / "cache").exists()
    if not cross:  # a row never goes on behind the end of a document
        assert all(END not in row[:-1] for row in rows)
    else:  # all rows are full, but for the first and the last of each block of 16 documents
        assert sum(len(row) < 8 for row in rows) <= 2 * 4


def test_passes_and_seeds_have_their_own_order(folder: Path, tmp_path: Path) -> None:
    _, train = open_stream(folder, tmp_path)
    stream = DocumentBatchStream(train, batch_tokens=32, seed=1)
    first = one_pass(stream)
    second = [row for batch in islice(stream, 10) for row in rows_of(batch)]
    other = [row for batch in islice(DocumentBatchStream(train, batch_tokens=32, seed=2), 10) for row in rows_of(batch)]
    again = one_pass(DocumentBatchStream(train, batch_tokens=32, seed=1))
    assert first == again
    assert first[: len(second)] != second and first[: len(other)] != other


@pytest.mark.parametrize("taken", [0, 1, 7, 25, 60])
def test_a_position_is_restored(folder: Path, tmp_path: Path, taken: int) -> None:
    """In the first block, at the end of one, in a later one, in the second epoch."""
    _, train = open_stream(folder, tmp_path)
    stream = DocumentBatchStream(train, batch_tokens=32, seed=1)
    for _ in range(taken):
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    expected = [rows_of(batch) for batch in islice(stream, 30)]
    other = DocumentBatchStream(train, batch_tokens=32, seed=1)
    other.restore(state)
    assert [rows_of(batch) for batch in islice(other, 30)] == expected
    with pytest.raises(SaccadeError, match="saved position in the data: batch_tokens was 32, is 16"):
        DocumentBatchStream(train, batch_tokens=16, seed=1).restore(state)


def test_ranks_share_one_stream(folder: Path, tmp_path: Path) -> None:
    _, train = open_stream(folder, tmp_path)
    alone = DocumentBatchStream(train, batch_tokens=32, seed=1)
    both = [DocumentBatchStream(train, batch_tokens=32, seed=1, rank=rank, world=2) for rank in (0, 1)]
    for _ in range(20):
        expected = [rows_of(next(alone)) for _ in range(2)]
        assert [rows_of(next(stream)) for stream in both] == expected
        assert both[0].state() == both[1].state()


def test_the_tokenizer_learns_from_the_first_documents(folder: Path, tmp_path: Path) -> None:
    """The first 16, whose letters are a to p and a space; the others are unknown."""
    prepared, _ = open_stream(folder, tmp_path)
    assert {piece for piece in LETTERS if prepared.tokenizers.target.backend.token_to_id(piece) is not None} == set(
        LETTERS[:16]
    )


def test_corpora_take_turns() -> None:
    assert list(interleave([lambda: iter("abc"), lambda: iter("x"), lambda: iter("12")])) == list("ax1b2c")


def test_other_tasks_learn_from_a_stream_too(folder: Path, tmp_path: Path) -> None:
    """Span corruption: sources and targets of the same rows."""
    values = recipe(folder).model_dump()
    values |= {"task": "denoise", "reader": {"kind": "tokens"}, "writer": {"tie": "all"}}
    values["tokenizer"] |= {"sentinels": 4}
    prepared = prepare(validate(values), cache=tmp_path / "cache", report=lambda text: None)
    batch = next(prepared.train.open_batches(batch_tokens=64, seed=1))
    assert set(batch.fields) == {"source", "target"} and len(batch["source"].ids) == len(batch["target"].ids)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"valid": 0.1}, r"data\.stream = true does not go with data\.valid = 0\.1 as a share; name files for it"),
        ({"train": [{"files": ["x.txt"], "weight": 2.0}]}, "does not go with a weight of a corpus; change one of them"),
        ({"train": [["none.txt"]]}, r"none\.txt not found"),
    ],
)
def test_what_a_stream_cannot_give_is_one_line(
    folder: Path, tmp_path: Path, data: dict[str, Any], message: str
) -> None:
    with pytest.raises(SaccadeError, match=message):
        open_stream(folder, tmp_path, **data)


def test_pairs_and_dropout_are_refused(folder: Path, tmp_path: Path) -> None:
    dropped = recipe(folder, tokenizer={"kind": "bpe", "size": 300, "dropout": 0.1})
    pairs = validate({"data": {"train": [["a.en", "a.de"]], "stream": True}})
    for chosen, message in ((dropped, r"tokenizer\.dropout = 0\.1"), (pairs, 'task = "translate", which learns from')):
        with pytest.raises(SaccadeError, match=rf"data\.stream = true does not go with {message}"):
            prepare(chosen, cache=tmp_path / "cache", report=lambda text: None)


def test_fixed_masks_go_with_rows_that_are_cut_alike_in_each_pass(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    for dynamic in (True, False):
        values = {
            "task": "encode",
            "data": {"train": [[str(tmp_path / "a.txt")]], "stream": True, "buffer": 16, "max_length": 8},
            "tokenizer": {"kind": "characters", "mask_token": True},
            "writer": {"kind": "masked"},
            "objectives": [{"kind": "masked", "dynamic_masking": dynamic}],
        }
        train = prepare(validate(values), cache=tmp_path / "cache", report=lambda text: None).train
        assert isinstance(train, DocumentStream)
        stream, passes = DocumentBatchStream(train, batch_tokens=32, seed=1), []
        for epoch in (1, 2):
            rows: list[list[int]] = []
            while stream.epoch < epoch:
                rows += [row[row != PAD].tolist() for row in next(stream)["source"].ids]
            passes.append(rows)
        assert passes[0] != passes[1]
        assert (sorted(passes[0]) == sorted(passes[1])) != dynamic


def test_documents_without_text_are_no_endless_search(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": " "}\n{"text": ""}\n')
    train = open_stream(tmp_path / "empty.jsonl", tmp_path)[1]
    with pytest.raises(SaccadeError, match=r"no document of data\.train has any text"):
        next(DocumentBatchStream(train, batch_tokens=16, seed=1))


def test_a_data_set_of_the_hub_is_not_downloaded_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load(path: str, name: Any, **options: Any) -> Any:
        asked.append((path, name, options))
        return {"train": datasets.IterableDataset.from_generator(lambda: iter({"text": text} for text in TEXTS))}

    monkeypatch.setattr(datasets, "load_dataset", load)
    train = open_stream(Path("owner/name"), tmp_path)[1]
    assert sum(1 for _ in train.open_documents()) == len(TEXTS)
    assert asked[0] == ("owner/name", None, {"streaming": True})
