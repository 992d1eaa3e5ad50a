"""Streams of documents that are tokenized on the fly."""

import json
import lzma
from collections import Counter
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from saccade.config.load import validate
from saccade.data.batching.batch import Batch
from saccade.data.prepare import PreparedData, prepare
from saccade.data.sources import ranges
from saccade.data.sources.ranges import Share
from saccade.data.store.streaming import (
    DocumentBatchStream,
    DocumentStream,
    InterleavedDocuments,
    get_epoch,
    merge_states,
    restart_epoch,
)
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.errors import SaccadeError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [f"{LETTERS[i % 26]}{LETTERS[i // 26]} " * (1 + i % 9) for i in range(60)]


def recipe(folder: Path | str, *, task: str = "write", tokenizer: dict[str, Any] | None = None, **data: Any) -> Any:
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


def open_stream(folder: Path | str, tmp_path: Path, **data: Any) -> tuple[PreparedData, DocumentStream]:
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


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of all formats that can be split, of which ranges have about 64 bytes or one row group."""
    monkeypatch.setattr(ranges, "MIN_RANGE_BYTES", 64)
    path = tmp_path / "shards"
    path.mkdir()
    (path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:20]))
    (path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[20:40]))
    table = pyarrow.table({"id": range(20), "text": TEXTS[40:]})
    pyarrow.parquet.write_table(table, path / "c.parquet", row_group_size=3)
    return path


def open_ranks(train: DocumentStream, world: int, group: int = 4) -> list[DocumentBatchStream]:
    return [
        train.open_batches(batch_tokens=32, seed=1, rank=rank, world=world, micro_batches=group)
        for rank in range(world)
    ]


def take_steps(ranks: list[DocumentBatchStream], steps: int, group: int = 4) -> list[list[list[int]]]:
    """The micro-batches of some steps in their order, of which rank r takes r, r + N, ..."""
    return [rows_of(next(ranks[number % len(ranks)])) for _ in range(steps) for number in range(group)]


@pytest.mark.parametrize(("first", "second"), [(1, 2), (1, 4), (4, 1), (2, 4), (4, 2), (2, 1)])
@pytest.mark.parametrize("taken", [0, 3, 9])
def test_any_number_of_processes_goes_on_with_the_same_batches(
    shards: Path, tmp_path: Path, first: int, second: int, taken: int
) -> None:
    train = open_stream(shards, tmp_path)[1]
    alone = open_ranks(train, 1)
    expected = [take_steps(alone, taken), take_steps(alone, 8)]
    ranks = open_ranks(train, first)
    assert take_steps(ranks, taken) == expected[0]
    state = json.loads(json.dumps(merge_states([stream.state() for stream in ranks])))
    others = open_ranks(train, second)
    for stream in others:
        stream.restore(state)
    assert take_steps(others, 8) == expected[1]


@pytest.mark.parametrize("unit", ["lines", "blank"])
def test_lanes_have_every_document_once(shards: Path, tmp_path: Path, unit: str) -> None:
    if unit == "blank":
        (shards / "a.txt").write_text("\n\n".join(TEXTS[:20]))
    train = open_stream(shards, tmp_path, documents=unit)[1]
    lanes = [[text for _, text in train.open_documents(Share(number, 4))] for number in range(4)]
    assert sorted(text for lane in lanes for text in lane) == sorted(TEXTS)
    assert all(len(lane) >= 8 for lane in lanes)


def test_a_lane_reads_only_its_own_ranges(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = open_stream(shards, tmp_path)[1]
    read = Counter[str]()
    encode, count = type(train.encoder).encode_block, ranges.count_bytes
    monkeypatch.setattr(
        ranges, "count_bytes", lambda *args: (read.update(bytes=len(line)) or line for line in count(*args))
    )
    monkeypatch.setattr(
        type(train.encoder),
        "encode_block",
        lambda self, block, *args: read.update(documents=len(block)) or encode(self, block, *args),
    )
    found = list[tuple[int, int]]()
    for rank in range(4):
        read.clear()
        stream = train.open_batches(batch_tokens=32, seed=1, rank=rank, world=4, micro_batches=4)
        while not stream.epoch:
            next(stream)
        found.append((read["bytes"], read["documents"]))
    sizes = sum((shards / name).stat().st_size for name in ("a.txt", "b.jsonl"))
    assert sum(size for size, _ in found) == sizes and max(size for size, _ in found) < sizes / 2
    assert sum(documents for _, documents in found) == 60


def test_what_cannot_be_split_is_shared_by_documents(folder: Path, tmp_path: Path) -> None:
    """Small and compressed files, limited corpora, and duplicates, of which all documents have to be known."""
    settings: list[dict[str, Any]] = [{}, {"train": [{"files": [str(folder)], "examples": 50}]}]
    for data, count in zip(settings, (60, 50), strict=True):
        train = open_stream(folder, tmp_path, **data)[1]
        lanes = [[text for _, text in train.open_documents(Share(number, 3))] for number in range(3)]
        assert [text for row in zip_longest(*lanes) for text in row if text] == TEXTS[:count]


@pytest.mark.parametrize("lanes", [1, 3])
def test_duplicates_are_found_across_lanes_and_after_resuming(shards: Path, tmp_path: Path, lanes: int) -> None:
    (shards / "d.txt").write_text("\n".join([*reversed(TEXTS[:10]), "a new one"]))
    prepared, train = open_stream(shards, tmp_path, filter={"drop_duplicates": "exact"})
    found = list[str]()
    for number in range(lanes):
        documents = train.open_documents(Share(number, lanes))
        found += [text for _, text in islice(documents, 12)]
        place = json.loads(json.dumps(documents.place))
        found += [text for _, text in train.open_documents(Share(number, lanes), place)]
    assert sorted(found) == sorted([*TEXTS, "a new one"])
    if lanes == 1:
        [report] = prepared.filtered["train"]
        assert (report.to_json()["total"], report.num_dropped) == (71, 10)


def test_filter_counts_go_on_after_resuming_and_are_summed_over_lanes(shards: Path, tmp_path: Path) -> None:
    prepared, train = open_stream(shards, tmp_path, filter={"min_length": 3})
    for number in range(4):
        documents = train.open_documents(Share(number, 4))
        list(islice(documents, 5))
        list(train.open_documents(Share(number, 4), documents.place))
    [report] = prepared.filtered["train"]
    short = sum(len(text.split()) < 3 for text in TEXTS)
    assert report.format_note("document").startswith(f"data.filter dropped {short} of 60 documents")


def test_resuming_reads_nothing_before_its_place(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first file, which ended before, not a byte; of a second one only what follows."""
    train = open_stream(shards, tmp_path, buffer=5)[1]
    stream = train.open_batches(batch_tokens=32, seed=1)
    while stream.state()["pool"] < 30:
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    following = [rows_of(next(stream)) for _ in range(10)]
    (shards / "a.txt").write_text("another text")
    lines, count = list[bytes](), ranges.count_bytes
    monkeypatch.setattr(ranges, "count_bytes", lambda *args: (lines.append(line) or line for line in count(*args)))
    other = train.open_batches(batch_tokens=32, seed=1)
    other.restore(state)
    assert [rows_of(next(other)) for _ in range(10)] == following
    texts = [json.loads(line)["text"] for line in lines[:10]]
    assert texts == TEXTS[30:40]


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_shards_by_url_are_shared_and_resumed_like_local_ones(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    pytest.importorskip("upath")
    url, files = f"{protocol}://{shards}", fsspec.filesystem(protocol)
    if protocol == "memory":
        for path in shards.iterdir():
            files.pipe(f"{shards}/{path.name}", path.read_bytes())
    [alone] = open_ranks(open_stream(shards, tmp_path, buffer=3)[1], 1)
    expected = [take_steps([alone], 9), take_steps([alone], 3)]
    train, read, count = open_stream(url, tmp_path, buffer=3)[1], Counter[str](), ranges.count_bytes
    monkeypatch.setattr(
        ranges, "count_bytes", lambda *args: (read.update(bytes=len(line)) or line for line in count(*args))
    )
    two = open_ranks(train, 2)
    assert take_steps(two, 9) == expected[0]
    before = read["bytes"]
    state = json.loads(json.dumps(merge_states([stream.state() for stream in two])))
    read.clear()
    four = open_ranks(train, 4)
    for stream in four:
        stream.restore(state)
    assert take_steps(four, 3) == expected[1]
    assert 0 < read["bytes"] < before / 2, "it seeks to its place"


def test_a_position_of_an_older_version_is_found_by_its_number_of_documents(folder: Path, tmp_path: Path) -> None:
    train = open_stream(folder, tmp_path)[1]
    stream = train.open_batches(batch_tokens=32, seed=1)
    for _ in range(25):
        next(stream)
    state = {name: value for name, value in stream.state().items() if name != "place"}
    assert state["pool"] > 0
    other = train.open_batches(batch_tokens=32, seed=1)
    other.restore(state)
    assert [rows_of(next(other)) for _ in range(9)] == [rows_of(next(stream)) for _ in range(9)]


def test_other_files_are_noticed_when_a_run_resumes(shards: Path, tmp_path: Path) -> None:
    train = open_stream(shards, tmp_path)[1]
    [stream] = open_ranks(train, 1)
    whole = train.open_batches(batch_tokens=32, seed=1)
    next(stream), next(whole)
    state, whole_state = stream.state(), whole.state()
    [other] = open_ranks(train, 1, group=8)
    with pytest.raises(SaccadeError, match="a step had 4 micro-batches, has 8; set it as before"):
        other.restore(state)
    (shards / "a.txt").write_text("another text")
    with pytest.raises(SaccadeError, match=r"files of data\.train have other names or sizes now; restore them"):
        stream.restore(state)
    (shards / "a.txt").rename(shards / "0.txt")
    with pytest.raises(SaccadeError, match=r"cannot resume in the file a\.txt of .*: there are other files now"):
        alone = train.open_batches(batch_tokens=32, seed=1)
        alone.restore(whole_state)
        next(alone)


@pytest.mark.parametrize("group", [1, 4])
def test_an_epoch_begins_again_from_a_position(shards: Path, tmp_path: Path, group: int) -> None:
    """As with another batch size: at the start of the files, not at the saved place."""
    train = open_stream(shards, tmp_path)[1]
    [stream], [fresh] = open_ranks(train, 1, group), open_ranks(train, 1, group)
    take_steps([stream], 2, group)
    state = restart_epoch(stream.state())
    assert get_epoch(state) == 0
    stream.restore(state)
    assert take_steps([stream], 3, group) == take_steps([fresh], 3, group)


def test_a_training_run_opens_a_lane_for_each_micro_batch(shards: Path, tmp_path: Path) -> None:
    train = open_stream(shards, tmp_path)[1]
    values = recipe(shards).model_dump()
    values["train"] |= {"accumulate": 4, "batch_tokens": 32}
    chosen = validate(values)
    opened = [chosen.task.open_stream(chosen, train, None, rank=rank, world=2) for rank in (0, 1)]
    assert take_steps(opened, 3) == take_steps(open_ranks(train, 1), 3)
    assert [sorted(stream.state()["lanes"]) for stream in opened] == [["0", "2"], ["1", "3"]]


def test_too_few_documents_for_all_micro_batches_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    train = open_stream(tmp_path / "a.txt", tmp_path)[1]
    with pytest.raises(SaccadeError, match=r"no documents for micro-batch 4 of 4: .* set data\.stream=false"):
        take_steps(open_ranks(train, 1), 1)


def test_the_tokenizer_learns_from_the_first_documents(folder: Path, tmp_path: Path) -> None:
    """The first 16, whose letters are a to p and a space; the others are unknown."""
    prepared, _ = open_stream(folder, tmp_path)
    assert {piece for piece in LETTERS if prepared.tokenizers.target.backend.token_to_id(piece) is not None} == set(
        LETTERS[:16]
    )


def test_corpora_take_turns() -> None:
    assert list(InterleavedDocuments([iter("abc"), iter("x"), iter("12")])) == list("ax1b2c")


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
