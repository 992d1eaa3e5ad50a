"""Span corruption: source and target together give the text, and a position in the stream can be restored."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers

from saccade.config.load import validate
from saccade.data.batching.batches import BatchStream, count_batches
from saccade.data.batching.spans import CorruptedSpans, compute_row_length, count_corrupted_tokens, get_sentinels
from saccade.data.prepare import PreparedData, prepare
from saccade.data.tokenization.tokenizers import END, Tokenizer
from saccade.errors import SaccadeError

TEXTS = ["a", "bb", "the old dog sleeps", "c" * 50, "some cats near the river sing every morning " * 4]


def prepare_documents(folder: Path, *, tokenizer: dict[str, Any] | None = None, **data: Any) -> PreparedData:
    (folder / "a.txt").write_text("\n".join(TEXTS))
    values = {
        "task": "denoise",
        "data": {"train": [str(folder / "a.txt")], "valid": [str(folder / "a.txt")], "max_length": 24, **data},
        "tokenizer": {"kind": "bytes", "sentinels": 10, "size": 300, **(tokenizer or {})},
    }
    return prepare(validate(values), cache=folder / "cache", report=lambda note: None)


def sides(spans: CorruptedSpans) -> list[tuple[list[int], list[int]]]:
    """Source and target of each row."""
    found, every = [], np.arange(len(spans))
    for side in (0, 1):
        flat, lengths = spans.gather(every, side=side)
        assert spans.get_lengths(every, side=side).tolist() == lengths.tolist()
        found.append([row.tolist() for row in np.split(flat, np.cumsum(lengths)[:-1])])
    return list(zip(*found, strict=True))


def restore_text(read: list[int], written: list[int], sentinels: list[int]) -> list[int]:
    """The text of a row: each sentinel of the source replaced by its span in the target."""
    assert read[-1] == written[-1] == END and END not in read[:-1] + written[:-1]
    used = [number for number in read if number in sentinels]
    assert used == [number for number in written if number in sentinels] == sentinels[: len(used)]
    assert written[0] == sentinels[0]
    spans: dict[int, list[int]] = {}
    for number in written[:-1]:
        if number in sentinels:
            spans[number] = []
        else:
            spans[used[len(spans) - 1]].append(number)
    assert all(spans.values())
    return [token for number in read[:-1] for token in spans.get(number, [number])]


def test_a_document_of_which_no_piece_is_left_is_dropped(tmp_path: Path) -> None:
    core = prepare_documents(tmp_path).tokenizers.target.backend
    core.normalizer = normalizers.Replace("\u200b", "")
    core.save(str(tmp_path / "strict.json"))
    (tmp_path / "b.txt").write_text("a text\n\u200b\u200b\nanother\n")
    files = {"kind": "file", "files": [str(tmp_path / "strict.json")]}
    found = prepare_documents(tmp_path, tokenizer=files, train=[str(tmp_path / "b.txt")])
    assert len(found.train) == 2 and len(sides(found.train)) == 2
    assert found.notes[:1] == [f"dropped 1 of 3 documents without a text; first at {tmp_path / 'b.txt'} line 2"]


def test_lengths_are_those_of_the_paper() -> None:
    """568 tokens of text become a source of 512 and a target of 114, as in the code of T5."""
    assert compute_row_length(512, corruption_rate=0.15, mean_span_length=3.0) == 568
    tokens, spans = count_corrupted_tokens(np.array([568]), corruption_rate=0.15, mean_span_length=3.0)
    assert (tokens[0], spans[0], 568 - tokens[0] + spans[0] + 1, tokens[0] + spans[0] + 1) == (85, 28, 512, 114)


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("mean", [1.0, 3.0, 40.0])
def test_every_row_has_corrupted_and_longer_ones_also_uncorrupted_tokens(share: float, mean: float) -> None:
    lengths = np.arange(1, 200)
    tokens, spans = count_corrupted_tokens(lengths, corruption_rate=share, mean_span_length=mean)
    assert (tokens >= 1).all() and (tokens[1:] < lengths[1:]).all()
    assert (spans >= 1).all() and (spans <= tokens).all() and (spans[1:] <= (lengths - tokens)[1:]).all()
    for read in (3, 4, 24, 100):
        length = compute_row_length(read, corruption_rate=share, mean_span_length=mean)
        tokens, spans = count_corrupted_tokens(
            np.array([length, length + 1]), corruption_rate=share, mean_span_length=mean
        )
        assert length == 1 or length - tokens[0] + spans[0] + 1 <= read


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("epoch", [None, 0, 4])
def test_both_sides_make_up_the_text(tmp_path: Path, cross: bool, epoch: int | None) -> None:
    found = prepare_documents(tmp_path, cross_document=cross)
    spans, tokenizer = found.train, found.tokenizers.target
    assert isinstance(spans, CorruptedSpans)
    spans = spans if epoch is None else spans.select_epoch(7, epoch)
    rows = [restore_text(read, written, get_sentinels(tokenizer)) for read, written in sides(spans)]
    plain, lengths = spans.rows.gather(np.arange(len(spans)), side=0)
    assert rows == [row.tolist() for row in np.split(plain, np.cumsum(lengths)[:-1])]
    whole = sum(len(ids) - 1 for ids in tokenizer.encode_all(TEXTS))
    assert sum(map(len, rows)) == whole
    if cross and epoch is None:  # documents one behind the other, without their ends
        assert tokenizer.decode([token for row in rows for token in row]) == "".join(TEXTS)


def test_rows_of_many_documents_are_full(tmp_path: Path) -> None:
    spans = prepare_documents(tmp_path, cross_document=True).train
    lengths = spans.get_lengths(np.arange(len(spans)), side=0)
    assert set(lengths[:-1].tolist()) == {24} and lengths[-1] <= 24


def test_spans_follow_from_seed_epoch_and_row(tmp_path: Path) -> None:
    spans = prepare_documents(tmp_path, cross_document=True).train
    first, again, later, other = (sides(spans.select_epoch(*key)) for key in ((1, 0), (1, 0), (1, 1), (2, 0)))
    assert first == again and first != later and first != other
    alone, _ = spans.select_epoch(1, 0).gather(np.array([3]), side=1)
    assert alone.tolist() == first[3][1]


def test_a_row_may_begin_and_end_with_a_hidden_span(tmp_path: Path) -> None:
    """Also in a row with one span, which would otherwise always be its end."""
    spans, seen = prepare_documents(tmp_path).train, set()
    for epoch in range(20):
        read, _ = sides(spans.select_epoch(1, epoch))[2]  # the old dog sleeps
        at = next(place for place, number in enumerate(read) if number in spans.sentinels)
        seen.add("begin" if at == 0 else "end" if at == len(read) - 2 else "inside")
    assert seen == {"begin", "inside", "end"}


def test_a_position_in_the_data_is_restored(tmp_path: Path) -> None:
    spans = prepare_documents(tmp_path).train

    def stream() -> BatchStream:
        return BatchStream(spans, batch_tokens=60, seed=2)

    def ids(batches: Any) -> list[Any]:
        return [[batch[side].ids.tolist() for side in ("source", "target")] for batch in batches]

    batches = ids(islice(stream(), 30))
    for taken in (1, count_batches(spans, batch_tokens=60, seed=2), 17):
        first, later = stream(), stream()
        for _ in range(taken):
            next(first)
        later.restore(first.state())
        assert ids(islice(later, 30 - taken)) == batches[taken:]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters", "bytes", "words"])
def test_every_kind_of_tokenizer_has_sentinels(tmp_path: Path, kind: str) -> None:
    tokenizer = prepare_documents(tmp_path, tokenizer={"kind": kind}).tokenizers.target
    sentinels = get_sentinels(tokenizer)
    assert len(sentinels) == 10 and tokenizer.size <= 300
    ids = tokenizer.encode("the <extra_id_0> dog <extra_id_1>")
    assert [number for number in ids if number in sentinels] == sentinels[:2]
    whole = tokenizer.encode("the old dog")
    assert ids[0] == whole[0] and ids[ids.index(sentinels[0]) + 1] == whole[len(tokenizer.encode("the old")) - 1]
    assert tokenizer.decode(ids).split("<extra_id_0>")[0].strip() == "the"
    again = Tokenizer.load(save(tmp_path, tokenizer))
    assert get_sentinels(again) == sentinels


def save(folder: Path, tokenizer: Tokenizer) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_json())
    return path


def test_more_spans_than_sentinels_are_reported(tmp_path: Path) -> None:
    with pytest.raises(
        SaccadeError, match="rows of 568 tokens have 28 corrupted spans, but the vocabulary has 10 sent"
    ):
        prepare_documents(tmp_path, max_length=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": {}}, "got tokenizer.sentinels = 0; set it to 100"),
        ({"tokenizer": {"sentinels": 50, "size": 40}}, "fewer than tokenizer.size = 40, got tokenizer.sentinels = 50"),
        ({"writer": {"kind": "fill"}, "objectives": [{"kind": "fill"}]}, 'got writer.kind = "fill"'),
        ({"objectives": [{"kind": "reward"}]}, 'there are no pairs for the objective "reward"'),
        ({"tokenizer": {"sentinels": 9, "shared": False}, "writer": {"tie": "none"}}, "set tokenizer.shared = true"),
        ({"train": {"metric": "bleu"}}, 'train.metric = "bleu" has no references; set train.metric = "loss"'),
        ({"reader": {"kind": "none"}, "writer": {"tie": "output"}}, 'goes with reader.kind = "tokens", got "none"'),
    ],
)
def test_settings_that_span_corruption_does_not_support_are_reported(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError) as notes:
        validate({"task": "denoise", "tokenizer": {"sentinels": 100}, **change})
    assert message in str(notes.value) and "\n" not in str(notes.value)


def test_a_small_vocabulary_must_have_room_for_sentinels(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="tokenizer.size must be at least 270 for bpe"):
        prepare_documents(tmp_path, tokenizer={"kind": "bpe", "size": 265})
