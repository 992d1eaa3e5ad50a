"""Documents split into chunks: no token is lost or doubled, and a position in the stream can be restored."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from saccade.config.load import validate
from saccade.data.batching.batches import BatchStream, count_batches, iter_validation_batches
from saccade.data.batching.chunks import DocumentChunks
from saccade.data.prepare import PreparedData, prepare
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError

LENGTH = 11
TEXTS = ["a", "bb bb", "c" * 10, "d" * 11, "e" * 37, "f g" * 30, "h" * 22]


def prepare_documents(folder: Path, *, text: str = "\n".join(TEXTS), **data: object) -> PreparedData:
    (folder / "a.txt").write_text(text)
    values = {
        "task": "language-model",
        "data": {"train": [str(folder / "a.txt")], "max_length": LENGTH, **data},
        "tokenizer": {"kind": "bytes"},
        "reader": {"kind": "none"},
        "writer": {"tie": "output"},
    }
    return prepare(validate(values), cache=folder / "cache", report=lambda note: None)


def rows_of(pieces: DocumentChunks) -> list[list[int]]:
    flat, lengths = pieces.gather(np.arange(len(pieces)), side=0)
    assert pieces.get_lengths(np.arange(len(pieces)), side=0).tolist() == lengths.tolist()
    return [row.tolist() for row in np.split(flat, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("epoch", [None, 0, 1, 5])
def test_pieces_of_a_document_make_it_up(tmp_path: Path, epoch: int | None) -> None:
    found = prepare_documents(tmp_path)
    pieces = found.train if epoch is None else found.train.select_epoch(3, epoch)
    rows = rows_of(pieces)
    assert max(map(len, rows)) == LENGTH and min(map(len, rows)) >= 1
    whole = found.tokenizers.target.encode_all(TEXTS)
    for ids in whole:
        joined: list[int] = []
        while len(joined) < len(ids):
            joined += rows.pop(0)
        assert joined == ids
    assert not rows


def test_short_documents_are_never_cut(tmp_path: Path) -> None:
    found = prepare_documents(tmp_path)
    short = [ids for ids in found.tokenizers.target.encode_all(TEXTS) if len(ids) <= LENGTH]
    for epoch in range(5):
        rows = rows_of(found.train.select_epoch(1, epoch))
        assert all(ids in rows for ids in short)


def test_long_documents_are_cut_at_other_places_in_each_epoch(tmp_path: Path) -> None:
    pieces = prepare_documents(tmp_path).train
    cuts = {tuple(map(len, rows_of(pieces.select_epoch(1, epoch)))) for epoch in range(20)}
    assert len(cuts) > 5


@pytest.mark.parametrize("epoch", [None, 0, 3])
def test_rows_that_cross_are_full_and_hold_all_documents(tmp_path: Path, epoch: int | None) -> None:
    found = prepare_documents(tmp_path, cross_document=True)
    pieces = found.train if epoch is None else found.train.select_epoch(3, epoch)
    rows = rows_of(pieces)
    assert {len(row) for row in rows[1:-1]} == {LENGTH}
    joined = [token for row in rows for token in row]
    whole = found.tokenizers.target.encode_all(TEXTS)
    assert len(joined) == sum(map(len, whole))
    ends = np.flatnonzero(np.array(joined) == END) + 1
    documents = [tuple(part[:-1].tolist()) for part in np.split(np.array(joined), ends) if len(part)]
    assert sorted(documents) == sorted(tuple(ids[:-1]) for ids in whole)
    if epoch is None:
        assert documents == [tuple(ids[:-1]) for ids in whole]


@pytest.mark.parametrize("cross", [False, True])
def test_a_position_in_the_data_is_restored(tmp_path: Path, cross: bool) -> None:
    pieces = prepare_documents(tmp_path, cross_document=cross).train

    def stream() -> BatchStream:
        return BatchStream(pieces, batch_tokens=30, seed=2)

    batches = [batch["target"].ids.tolist() for batch in islice(stream(), 60)]
    assert batches == [batch["target"].ids.tolist() for batch in islice(stream(), 60)]
    per_epoch = count_batches(pieces, batch_tokens=30, seed=2)
    assert 0 < per_epoch < 30
    for taken in (1, per_epoch, 41):
        first, later = stream(), stream()
        for _ in range(taken):
            next(first)
        later.restore(first.state())
        assert [batch["target"].ids.tolist() for batch in islice(later, 60 - taken)] == batches[taken:]


def test_validation_goes_through_everything_once(tmp_path: Path) -> None:
    found = prepare_documents(tmp_path, valid=[str(tmp_path / "a.txt")])
    assert found.valid is not None
    tokens = sum(batch.counts["target"] for batch in iter_validation_batches(found.valid, batch_tokens=40))
    assert tokens == sum(map(len, found.tokenizers.target.encode_all(TEXTS)))
    assert found.valid.num_bytes == sum(map(len, TEXTS))
    assert found.valid_pairs == []


def test_variants_of_bpe_dropout_are_cut_by_their_own_lengths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(["low lower lowest newer newest wider " * 3] * 5))
    values = {
        "task": "language-model",
        "data": {"train": [str(tmp_path / "a.txt")], "max_length": LENGTH},
        "tokenizer": {"kind": "bpe", "size": 290, "dropout": 0.5, "variants": 3},
        "reader": {"kind": "none"},
        "writer": {"tie": "output"},
    }
    for cross in (False, True):
        found = prepare(
            validate({**values, "data": {**values["data"], "cross_document": cross}}), cache=tmp_path / "cache"
        )
        totals = set()
        for epoch in range(3):
            rows = rows_of(found.train.select_epoch(1, epoch))
            joined = [token for row in rows for token in row]
            assert joined.count(END) == 5
            first = found.tokenizers.target.decode(joined[: joined.index(END)])
            assert first == "low lower lowest newer newest wider " * 3
            totals.add(len(joined))
        assert len(totals) > 1


def test_a_share_that_holds_out_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="data.valid = 0.1 holds out no document; raise it"):
        prepare_documents(tmp_path, valid=0.1, documents="file")


def test_a_whole_file_is_one_document_of_many_rows(tmp_path: Path) -> None:
    found = prepare_documents(tmp_path, text="xyz." * 20_000, documents="file")
    assert found.train.corpus_sizes == [-(-80_001 // LENGTH)]  # END is one more
