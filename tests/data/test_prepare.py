import errno
import json
from pathlib import Path

import numpy as np
import pytest

from saccade.config.schema import Data, Recipe, Tokenizer, Train
from saccade.data import prepare as module
from saccade.data.prepare import prepare
from saccade.data.sources import hub
from saccade.data.store import arrays as store_module
from saccade.data.store.arrays import Store
from saccade.data.tokenization import encode
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError

PAIRS = [(f"house {n} " + "x" * (n % 7), f"Haus {n}") for n in range(101)]


@pytest.fixture
def make(tmp_path):
    """Prepare pairs that are written to two files."""

    def make(
        pairs=PAIRS, *, name="train", valid=(), max_length=64, weight=1.0, said=None, predictions=500, **tokenizer
    ):
        for side, ending in enumerate(("en", "de")):
            (tmp_path / f"{name}.{ending}").write_text("".join(pair[side] + "\n" for pair in pairs))
        files = (str(tmp_path / f"{name}.en"), str(tmp_path / f"{name}.de"))
        recipe = Recipe(
            data=Data(train=({"files": files, "weight": weight},), valid=valid, max_length=max_length),
            tokenizer=Tokenizer(**{"kind": "characters", **tokenizer}),
            train=Train(valid_predictions=predictions),
        )
        return prepare(recipe, cache=tmp_path / "cache", report=(said if said is not None else []).append)

    return make


def texts(made, store, variant=0):
    rows = np.arange(len(store))
    found = []
    for side, tokenizer in enumerate((made.tokenizers.source, made.tokenizers.target)):
        tokens, lengths = store.gather(rows, side=side, variant=variant)
        found.append([tokenizer.decode(row) for row in np.split(tokens, np.cumsum(lengths)[:-1])])
    return list(zip(*found, strict=True))


def entries(tmp_path):
    return sorted((tmp_path / "cache").glob("pairs-*"))


def test_pairs_are_stored_as_tokens_that_end_with_end(make):
    made = make()
    tokens, lengths = made.train.gather(np.array([3, 5]), side=0)

    assert texts(made, made.train) == PAIRS
    assert tokens[lengths[0] - 1] == tokens[-1] == END
    assert tokens.dtype == np.uint16
    assert made.train.max_tokens == max(len(source) for source, _ in PAIRS) + 1
    assert made.valid is None and made.valid_pairs == [] and made.notes == []


def test_tokens_are_mapped_and_not_held(make):
    assert all(isinstance(array, np.memmap) for sides in make().train._tokens for array in sides)


def test_the_second_time_nothing_is_tokenised_or_learned(make, monkeypatch):
    first = make()
    monkeypatch.setattr(encode, "encode_rows", None)
    monkeypatch.setattr(module, "train_tokenizers", None)

    assert texts(first, make().train) == PAIRS
    assert texts(first, make(name="renamed", weight=2.0).train) == PAIRS  # keyed by content


def test_other_content_or_settings_make_another_entry(make, tmp_path):
    make()
    make(PAIRS[:-1])
    make(max_length=63)
    make(lowercase=True)

    assert len(entries(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no meta", "bad meta", "old version"])
def test_a_damaged_entry_is_made_again(make, tmp_path, damage):
    make()
    [entry] = entries(tmp_path)
    tokens, meta = entry / "source-0.tokens", entry / "meta.json"
    match damage:
        case "truncated":
            tokens.write_bytes(tokens.read_bytes()[:-2])
        case "flipped":
            tokens.write_bytes(b"\x05" + tokens.read_bytes()[1:])
        case "no meta":
            meta.unlink()
        case "bad meta":
            meta.write_text("[1]")
        case "old version":
            meta.write_text(json.dumps({**json.loads(meta.read_text()), "version": 0}))

    assert texts(make(), make().train) == PAIRS


def test_of_two_processes_that_make_an_entry_the_first_is_kept(tmp_path):
    """The second process must not delete what another one reads."""
    entry = tmp_path / "entry"

    def fill_slowly(folder):
        store_module.write_folder(entry, lambda other: (other / "made").write_text("first"))
        (folder / "made").write_text("second")

    store_module.write_folder(entry, fill_slowly)

    assert (entry / "made").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_nothing_half_written_is_left(make, tmp_path, monkeypatch):
    monkeypatch.setattr(store_module.ArrayWriter, "append", lambda self, rows: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        make()
    assert not [path for path in (tmp_path / "cache").iterdir() if "pairs" in path.name]


def test_long_and_empty_pairs_are_dropped_and_counted(make):
    said = []
    made = make([("a" * 20, "b"), ("", ""), (" ", ""), ("a", "b"), ("a", "b" * 10)], max_length=10, said=said)

    assert texts(made, made.train) == [("a", "b")]
    assert [line for line in said if line.startswith("dropped")] == made.notes == said[-2:]
    said = made.notes
    assert make([("a" * 20, "b"), ("a", "b")], name="x", max_length=10).notes[0].endswith("x.en line 1")
    assert make([("a" * 20, "b"), ("a", "b")], name="y", max_length=10).notes[0].endswith("y.en line 1")
    assert said[0].startswith("dropped 2 of 5 pairs with an empty side; first at ")
    assert said[1].startswith("dropped 2 of 5 pairs longer than 10 tokens; first at ")
    assert said[0].endswith("train.en line 2") and said[1].endswith("train.en line 1")


def test_a_text_of_exactly_the_limit_is_kept(make):
    assert len(make([("a" * 9, "b")], max_length=10).train) == 1  # nine letters and END


def test_when_all_pairs_are_dropped_the_reason_is_reported(make):
    with pytest.raises(
        SaccadeError, match=r"no pair is left: dropped 1 of 1 pair longer than 5 tokens.*raise data.max_length"
    ):
        make([("a" * 20, "b")], max_length=5)


def test_a_share_is_held_out_evenly_and_never_trained_on(make):
    made = make(valid=0.1, predictions=3)
    trained, held = texts(made, made.train), texts(made, made.valid)

    assert len(held) == 10
    assert sorted(trained + held) == sorted(PAIRS)
    assert held[0] == PAIRS[9] and held[-1] == PAIRS[99]
    assert made.valid_pairs == held[:3]


def test_a_share_that_holds_out_nothing_is_an_error(make):
    with pytest.raises(SaccadeError, match=r"data.valid = 0.001 holds out no pair; raise it"):
        make(valid=0.001)


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_data_set_without_rows_is_an_error(tmp_path, monkeypatch, part):
    monkeypatch.setattr(hub, "read_pairs", lambda *_, **__: iter(()))
    monkeypatch.setattr(hub, "find_columns", lambda *_, **__: ())
    monkeypatch.setattr(hub, "get_fingerprint", lambda *_, **__: "nothing")
    data = Data(**{"train": ["embedded:copy-heldout"], part: ["owner/nothing"]})

    with pytest.raises(SaccadeError, match="there is no pair in owner/nothing; expected at least one; is it the right"):
        prepare(Recipe(data=data, tokenizer=Tokenizer(kind="characters")), cache=tmp_path, report=lambda _: None)


def test_validation_files_are_stored_and_given_as_text(make):
    valid = ({"files": ("embedded:reverse-heldout",), "examples": 11},)
    made = make([("abc def", "ghi jkl mno pqr stu vwx yz")], valid=valid, predictions=7)

    assert len(made.valid) == 11
    assert texts(made, made.valid)[:7] == made.valid_pairs


def test_an_empty_validation_file_is_an_error(make, tmp_path):
    (tmp_path / "v").write_text("")

    with pytest.raises(SaccadeError, match="v is empty"):
        make(valid=({"files": (str(tmp_path / "v"), str(tmp_path / "v"))},))


def test_no_training_data_is_an_error_with_ways_on(tmp_path):
    with pytest.raises(
        SaccadeError, match="no training data: give --data SOURCE TARGET, set data.train, or try --tiny"
    ):
        prepare(Recipe(), cache=tmp_path)


def test_tokenizers_of_an_earlier_run_are_used(make, tmp_path):
    first = make(PAIRS[:5])
    recipe = Recipe(data=Data(train=["embedded:copy"]))

    made = prepare(recipe, tokenizers=first.tokenizers, cache=tmp_path)
    assert made.tokenizers is first.tokenizers


def test_dropout_makes_variants_of_training_pairs_only(make):
    made = make(kind="bpe", size=300, dropout=0.3, variants=3, valid=0.1)
    variants = [made.train.gather(np.arange(9), side=0, variant=n)[0].tolist() for n in range(3)]

    assert (made.train.num_variants, made.valid.num_variants) == (3, 1)
    assert variants[0] != variants[1] != variants[2]
    assert texts(made, made.train, 0) == texts(made, made.train, 1) == texts(made, made.train, 2)


def test_dropout_never_makes_a_text_longer_than_the_limit(make):
    plain = make(kind="bpe", size=300)
    made = make(kind="bpe", size=300, dropout=0.5, variants=2, max_length=plain.train.max_tokens)

    assert made.train.max_tokens <= plain.train.max_tokens and len(made.train) == len(plain.train)


def test_large_vocabularies_take_four_bytes_a_token(make, monkeypatch):
    monkeypatch.setattr(encode, "MAX_UINT16_IDS", 7)

    assert make().train.gather(np.arange(1), side=0)[0].dtype == np.uint32


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_cache_that_cannot_be_written_is_one_line(make, monkeypatch, code):
    def refuse(*_, **__):
        raise OSError(code, errno.errorcode[code])

    monkeypatch.setattr(store_module.ArrayWriter, "append", refuse)
    with pytest.raises(
        SaccadeError, match=rf"cache \S+ cannot be written: {errno.errorcode[code]}; free some space or set"
    ):
        make()


def test_a_cache_under_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(SaccadeError, match=r"cannot be written: .*SACCADE_CACHE"):
        prepare(Recipe(data=Data(train=["embedded:copy"])), cache=tmp_path / "file" / "cache")


def test_the_default_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", "/somewhere")
    assert module.get_cache_folder() == Path("/somewhere")
    monkeypatch.delenv("SACCADE_CACHE")
    assert module.get_cache_folder() == Path.home() / ".cache" / "saccade"


def test_a_store_remembers_the_weights_it_is_opened_with(make, tmp_path):
    make()

    assert Store(entries(tmp_path)[0], weights=[2.5]).weights == [2.5]
