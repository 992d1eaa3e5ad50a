"""Rows of documents for an encoder."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saccade.config.load import validate
from saccade.data.batching.batches import BatchStream, collate_batch, iter_validation_batches
from saccade.data.batching.segments import IS_NEXT, NOT_NEXT, TOO_SHORT
from saccade.data.prepare import PreparedData, prepare
from saccade.data.tokenization.encode import split_sentences
from saccade.data.tokenization.tokenizer import END
from saccade.errors import SaccadeError

STORY = "{0} one two three. {0} four five. {0} six seven eight nine! {0} ten? {0} end."


def prepare_documents(
    folder: Path, pairs: str, *, length: int = 16, texts: list[str] | None = None, **more: Any
) -> PreparedData:
    (folder / "a.txt").write_text("\n".join(texts or [STORY.format(f"S{i}") for i in range(40)]), encoding="utf-8")
    recipe = validate(
        {
            "task": "encode",
            "data": {"train": [str(folder / "a.txt")], "max_length": length, **more.pop("data", {})},
            "tokenizer": {"kind": "words", "size": 200, "cls_token": True, "mask_token": True},
            "writer": {"kind": "masked", "pairs": pairs != "none"},
            "objectives": [{"kind": "masked", "pairs": pairs, **more}],
        }
    )
    return prepare(recipe, cache=folder / "cache", report=lambda text: None)


def rows_of(found: PreparedData, store: Any = None) -> list[tuple[list[str], int | None]]:
    """The tokens of every row, and the label of its pair."""
    store, rows = store or found.train, []
    for first in range(0, len(store), 7):
        batch = collate_batch(store, np.arange(first, min(first + 7, len(store))))
        said = batch["pair"].ids[:, 0].tolist() if "pair" in batch.fields else [None] * len(batch["source"].ids)
        for ids, keep, pair in zip(batch["source"].ids, batch["source"].mask, said, strict=True):
            rows.append(
                (
                    [label.strip("␣") for label in found.tokenizers.source.convert_ids_to_tokens(ids[keep].tolist())],
                    pair,
                )
            )
    return rows


def parts_of(row: list[str]) -> tuple[list[str], list[str]]:
    split = row.index("<end>")
    return row[1:split], row[split + 1 : -1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One two. Three!  Four? five", ["One two.", " Three!", "  Four? five"]),
        ('He said "Go." Then he went.', ['He said "Go."', " Then he went."]),
        ("a line\nanother one\n\nlast", ["a line", "\nanother one", "\n\nlast"]),
        ("3.14 is e.g. a number", ["3.14 is e.g. a number"]),
        ("これは本。それも本。", ["これは本。", "それも本。"]),
        ("   ", []),
    ],
)
def test_documents_are_cut_behind_sentences_and_lines(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences
    assert "".join(sentences) == (text if text.strip() else "")


def test_every_row_begins_and_ends_like_a_text_and_no_word_is_lost(tmp_path: Path) -> None:
    rows = [row for row, _ in rows_of(prepare_documents(tmp_path, "none"))]
    assert all(row[0] == "[CLS]" and row[-1] == "<end>" and len(row) <= 16 for row in rows)
    words = [word for row in rows for word in row[1:-1]]
    assert words.count("one") == words.count("end") == 40
    assert len(words) == 40 * 21  # 16 words and 5 marks
    assert all(len({word for word in row if word[0] == "S" and word[1:].isdigit()}) <= 1 for row in rows)


def test_rows_that_cross_documents_are_full(tmp_path: Path) -> None:
    rows = [row for row, _ in rows_of(prepare_documents(tmp_path, "none", data={"cross_document": True}))]
    assert {len(row) for row in rows[:-1]} <= {15, 16}  # one less where a document ends with the row
    assert sum("<end>" in row[1:-1] for row in rows) > 10


@pytest.mark.parametrize("pairs", ["next", "order"])
def test_half_of_the_pairs_are_negative(tmp_path: Path, pairs: str) -> None:
    rows = rows_of(prepare_documents(tmp_path, pairs, length=32))
    said = [pair for _, pair in rows]
    assert 0.3 < said.count(NOT_NEXT) / len(said) < 0.7
    assert set(said) == {IS_NEXT, NOT_NEXT}
    whole = STORY.replace("{0} ", "").replace(".", " .").replace("!", " !").replace("?", " ?").split()
    for row, pair in rows:
        a, b = ([word for word in part if not word[1:].isdigit()] for part in parts_of(row))
        first, second = ({word for word in part if word[1:].isdigit()} for part in parts_of(row))
        assert a and b and len(row) <= 32
        if pairs == "next":
            assert (first == second) == (pair == IS_NEXT)
            assert pair == NOT_NEXT or [*a, *b] == whole
        else:
            assert first == second and ([*a, *b] if pair == IS_NEXT else [*b, *a]) == whole


def test_batches_of_one_length_do_not_tell_whether_parts_belong_together(tmp_path: Path) -> None:
    texts = [STORY.format(f"S{i}") + " More words." * (i % 5) for i in range(300)]
    train = prepare_documents(tmp_path, "next", length=40, texts=texts).train
    stream = BatchStream(train, batch_tokens=800, seed=1)
    shares = [(next(stream)["pair"].ids == NOT_NEXT).float().mean().item() for _ in range(15)]
    assert min(shares) > 0.15 and max(shares) < 0.85


@pytest.mark.parametrize("sentences", [4, 120], ids=["short documents", "long documents"])
@pytest.mark.parametrize("pairs", ["next", "order"])
def test_neither_length_nor_unfinished_sentences_tell_which_parts_follow(
    tmp_path: Path, pairs: str, sentences: int
) -> None:
    rng = random.Random(sentences)

    def sentence() -> str:
        return f"First {' '.join(rng.choice('abcdefgh') for _ in range(rng.randint(3, 12)))}."

    texts = [" ".join(sentence() for _ in range(rng.randint(3, sentences))) for _ in range(4000 // sentences)]
    found = prepare_documents(tmp_path, pairs, length=64, texts=texts)
    rows = [(row, said) for row, said in rows_of(found, found.train.select_epoch(1, 1)) if said != TOO_SHORT]

    def compute_accuracy(feature: Callable[[list[str]], Any]) -> float:
        """Accuracy of the more frequent label for each value of a feature of the row."""
        counts = Counter((feature(row), said) for row, said in rows)
        return sum(max(counts[seen, IS_NEXT], counts[seen, NOT_NEXT]) for seen in {seen for seen, _ in counts}) / len(
            rows
        )

    assert compute_accuracy(lambda row: len(row) // 4) < 0.62
    assert compute_accuracy(lambda row: [part[-1] for part in parts_of(row) if part].count(".")) < 0.62
    assert compute_accuracy(lambda row: [part[0] for part in parts_of(row) if part].count("First")) < 0.62


def test_parts_are_cut_behind_sentences(tmp_path: Path) -> None:
    for row, _ in rows_of(prepare_documents(tmp_path, "next", length=40)):
        assert parts_of(row)[0][-1] in (".", "!", "?")


def test_a_row_without_two_segments_has_its_own_label(tmp_path: Path) -> None:
    rows = rows_of(prepare_documents(tmp_path, "order", texts=["word"] * 5 + ["two words"] * 9))
    assert {pair for row, pair in rows if row == ["[CLS]", "word", "<end>", "<end>"]} == {TOO_SHORT}
    assert {pair for row, pair in rows if len(row) == 5} == {IS_NEXT, NOT_NEXT}
    assert len(rows) == 14


def test_rows_are_cut_anew_in_each_epoch_unless_masks_are_fixed(tmp_path: Path) -> None:
    for dynamic in (True, False):
        train = prepare_documents(tmp_path, "next", dynamic_masking=dynamic).train
        a, b = (
            rows_of(prepare_documents(tmp_path, "next", dynamic_masking=dynamic), train.select_epoch(1, epoch))
            for epoch in (0, 1)
        )
        assert (sorted(map(str, a)) == sorted(map(str, b))) != dynamic
        again = rows_of(prepare_documents(tmp_path, "next", dynamic_masking=dynamic), train.select_epoch(1, 0))
        assert a == again


def test_batches_keep_to_their_budget_and_can_be_restored(tmp_path: Path) -> None:
    train = prepare_documents(tmp_path, "next").train
    stream = BatchStream(train, batch_tokens=100, seed=3)
    batches = [next(stream) for _ in range(30)]
    assert all(batch["source"].ids.numel() <= 100 for batch in batches)
    assert all(len(batch["pair"].ids) == len(batch["source"].ids) for batch in batches)
    state = stream.state()
    expected = next(stream)
    other = BatchStream(train, batch_tokens=100, seed=3)
    other.restore(state)
    assert next(other)["source"].ids.equal(expected["source"].ids)
    assert sum(len(batch["source"].ids) for batch in iter_validation_batches(train, batch_tokens=100)) == len(train)


def test_no_room_for_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"data.max_length must be at least 5, for 3 special tokens"):
        prepare_documents(tmp_path, "next", length=4)


def test_documents_are_kept_with_the_ends_of_their_sentences(tmp_path: Path) -> None:
    train: Any = prepare_documents(tmp_path, "next").train
    tokens, _ = train.chunks.store.gather(np.arange(1), side=0)
    assert (tokens == END).sum() == 5
