"""Pictures are decoded once, unreadable ones are reported and skipped, and batches are read from the arrays."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from saccade.config.load import load
from saccade.config.schema import Corpus, PatchReader, Recipe
from saccade.data.batching.batch import Pictures
from saccade.data.batching.batches import BatchStream, iter_validation_batches
from saccade.data.media import decoding
from saccade.data.media.sound import Recording
from saccade.data.prepare import prepare
from saccade.data.sources.bad_rows import list_rows
from saccade.data.sources.corpus import CorpusSplit
from saccade.data.store.media import MediaSource, open_or_decode
from saccade.errors import SaccadeError
from saccade.processes import build_python_command

READER = {"kind": "patches", "size": 8, "patch_size": 4}


@pytest.fixture
def folder(tmp_path):
    """Pictures whose red is their number, of two classes."""
    for number in range(10):
        path = tmp_path / "data" / ("even", "odd")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    return tmp_path / "data"


def recipe(folder, **data):
    given = {"train": (str(folder),), **data}
    parts = {"reader": READER, "writer": {"kind": "label"}, "objectives": [{"kind": "label"}]}
    return Recipe.model_validate({"task": "classify", "data": given, **parts})


def prepare_media(folder, tmp_path, **data):
    reported: list[str] = []
    prepared = prepare(recipe(folder, **data), cache=tmp_path / "cache", report=reported.append)
    assert reported[len(reported) - len(prepared.notes) :] == prepared.notes
    return prepared, prepared.notes


def labels_by_red(batch):
    return {
        int(values[0, 0, 0]): int(ids[0])
        for values, ids in zip(batch["source"].values, batch["label"].ids, strict=True)
    }


def test_each_picture_comes_with_its_label(folder, tmp_path):
    data, notes = prepare_media(folder, tmp_path)
    batch = next(BatchStream(data.train, batch_tokens=1000, seed=1))
    assert isinstance(batch["source"], Pictures)
    assert batch["source"].values.shape == (10, 3, 8, 8)
    assert batch["source"].mask.shape == (10, 5)
    assert batch.counts == {"source": 50, "label": 10}
    assert labels_by_red(batch) == {number: 1 + number % 2 for number in range(10)}
    assert notes == []


def test_the_budget_of_a_batch_counts_states(folder, tmp_path):
    data, _ = prepare_media(folder, tmp_path)
    assert [len(batch["label"].ids) for batch in iter_validation_batches(data.train, batch_tokens=20)] == [4, 4, 2]


def test_a_share_is_held_out_and_its_names_are_kept(folder, tmp_path):
    data, _ = prepare_media(folder, tmp_path, valid=0.2)
    assert (len(data.train), len(data.valid)) == (8, 2)
    assert [label for _, label in data.valid_pairs] == ["even", "odd"]
    reds = [labels_by_red(next(iter_validation_batches(rows, batch_tokens=1000))) for rows in (data.train, data.valid)]
    assert not reds[0].keys() & reds[1].keys()


def test_broken_files_stop_or_are_skipped_and_listed(folder, tmp_path):
    (folder / "odd" / "3.png").write_text("not a picture")
    (folder / "even" / "4.png").write_bytes((folder / "even" / "4.png").read_bytes()[:45])
    for _ in range(2):  # the second time from the cache
        with pytest.raises(SaccadeError, match=r"4.png: is damaged.*; correct it, or skip .*: data.on_error=skip"):
            prepare_media(folder, tmp_path, valid=0.5)
    data, notes = prepare_media(folder, tmp_path, valid=0.5, on_error="skip")
    batches = [next(iter_validation_batches(rows, batch_tokens=1000)) for rows in (data.train, data.valid)]
    assert sorted(red for batch in batches for red in labels_by_red(batch)) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert len(notes) == 1 and notes[0].startswith("2 rows were skipped in ")
    [damaged, other] = list_rows(data.bad_rows)
    assert damaged["row"] == str(folder / "even" / "4.png") and damaged["error"].startswith("is damaged")
    assert other["row"] == str(folder / "odd" / "3.png") and other["error"].startswith("is not a readable picture")
    assert not [path for path, _ in data.valid_pairs if path.endswith(("3.png", "4.png"))]


@pytest.mark.filterwarnings("default")  # of `datasets`
def test_broken_pictures_of_a_hub_data_set_are_named_by_the_data_set(folder, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    files = [file.read_bytes() for file in sorted(folder.rglob("*.png"))]
    files[2:4] = [b"not a picture", None]
    images = [file and {"bytes": file, "path": None} for file in files]
    rows = [{"image": image, "label": n % 2} for n, image in enumerate(images)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["even", "odd"]))
    hub = tmp_path / "hub"
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows, features=features)).save_to_disk(hub)
    with pytest.raises(SaccadeError) as stopped:
        prepare_media(hub, tmp_path)
    data, notes = prepare_media(hub, tmp_path, on_error="skip")
    assert str(stopped.value).startswith(f"{hub}[train]:3: is not a readable picture; expected JPEG, PNG")
    [damaged, missing] = list_rows(data.bad_rows)
    assert notes[0].startswith(f"2 rows were skipped in {hub}; the first one is {hub}[train]:3: is not a readable")
    assert damaged["row"] == f"{hub}[train]:3" and missing == {"row": f"{hub}[train]:4", "error": "not found"}
    assert len(data.train) == 8


def test_broken_files_of_an_archive_are_named_as_the_user_knows_them(folder, tmp_path):
    for number in range(1, 6):
        (folder / ("even", "odd")[number % 2] / f"{number}.png").write_text("not a picture")
    archive = shutil.make_archive(str(tmp_path / "all"), "tar", folder)
    data, _ = prepare_media(archive, tmp_path, on_error="skip")
    assert list_rows(data.bad_rows)[0]["row"] == f"{archive}/even/2.png"
    (folder / "even" / "6.png").write_text("not a picture")
    with pytest.raises(SaccadeError, match=r"6 of 10 rows of .* cannot be used, more than half"):
        prepare_media(str(folder), tmp_path, on_error="skip")


@pytest.fixture
def recordings(tmp_path):
    """A short recording, one of a second, and one in a format that the standard library cannot read."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path / "heard"
    folder.mkdir()
    Recording(np.zeros(2000), 8000).save(folder / "a.wav")
    Recording(np.zeros(8000), 8000).save(folder / "b.wav")
    soundfile.write(folder / "c.flac", np.zeros(2000), 8000)
    notes = [f'{{"file_name": "{name}", "text": "one"}}\n' for name in ("a.wav", "b.wav", "c.flac")]
    (folder / "metadata.jsonl").write_text("".join(notes))
    return folder


def prepare_sound(folder, tmp_path, *changes):
    data = [f'data.train=["{folder}"]', "data.valid=0.0"]
    given = load("listen-attend-spell", tiny=True, overrides=[*data, *changes])
    return len(prepare(given, cache=tmp_path / "cache", report=lambda note: None).train)


def test_what_was_too_long_is_there_when_more_is_read(recordings, tmp_path):
    assert prepare_sound(recordings, tmp_path, "reader.sound.max_seconds=0.5") == 2
    assert prepare_sound(recordings, tmp_path) == 3


def test_files_that_need_a_package_are_decoded_once_it_is_installed(recordings, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "soundfile", None)
        assert prepare_sound(recordings, tmp_path, "data.on_error=skip") == 2
    assert prepare_sound(recordings, tmp_path) == 3


def test_a_corpus_without_readable_files_is_reported(folder, tmp_path):
    for path in folder.glob("*/*.png"):
        path.write_text("x")
    with pytest.raises(SaccadeError, match=r"no picture of .*data can be read: .*0.png is not a readable picture"):
        prepare_media(folder, tmp_path)


def test_files_are_decoded_once(folder, tmp_path, monkeypatch):
    first, _ = prepare_media(folder, tmp_path)
    monkeypatch.setattr(decoding, "decode_part", lambda *given: pytest.fail("they are in the cache"))
    again, _ = prepare_media(folder, tmp_path)
    assert again.train.name == first.train.name


def test_a_damaged_cache_is_rewritten(folder, tmp_path):
    prepare_media(folder, tmp_path)
    [values] = (tmp_path / "cache").glob("media-*/values")
    values.write_bytes(b"\xff" * values.stat().st_size)
    data, _ = prepare_media(folder, tmp_path)
    assert labels_by_red(next(iter_validation_batches(data.train, batch_tokens=1000)))[9] == 2


def test_several_processes_make_the_same_arrays(folder, tmp_path, monkeypatch):
    (folder / "odd" / "7.png").write_text("x")
    source = MediaSource(Corpus(files=(str(folder),)), PatchReader(**{**READER}), "label")
    alone = open_or_decode(source, "key", tmp_path / "one")
    monkeypatch.setattr(decoding, "MIN_FILES_PER_PROCESS", 2)
    monkeypatch.setattr(decoding.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(decoding, "decode_part", lambda *given: pytest.fail("others do this"))
    # A module in the working folder is not run by these processes.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pydantic.py").write_text("open('was_run', 'w'); raise SystemExit(1)")
    together = open_or_decode(source, "key", tmp_path / "many")
    assert np.array_equal(alone.values, together.values)
    assert np.array_equal(alone.offsets, together.offsets)
    assert alone.broken == together.broken
    assert not (tmp_path / "was_run").exists()
    assert len(alone.broken) == 1


@pytest.mark.parametrize(
    ("program", "end"),
    [("exit 3", "failed with exit code 3"), ("kill -9 $$", "was ended by SIGKILL; is there enough memory?")],
)
def test_a_process_that_dies_is_named(folder, tmp_path, monkeypatch, program, end):
    """Not the cache, which it has not written, and not the pipe, which it has not read."""
    source = MediaSource(Corpus(files=(str(folder),)), PatchReader(**{**READER}), "label")
    monkeypatch.setattr(decoding, "MIN_FILES_PER_PROCESS", 2)
    monkeypatch.setattr(decoding.os, "cpu_count", lambda: 3)
    monkeypatch.setattr("saccade.processes.build_python_command", lambda module: ["sh", "-c", program])
    monkeypatch.setattr(MediaSource, "list_paths", lambda self: ["x" * 1000] * 1000)  # more than a pipe holds
    with pytest.raises(SaccadeError, match=f"a process that decodes pictures {re.escape(end)}; try again"):
        open_or_decode(source, "key", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_other_settings_of_the_reader_are_other_arrays(folder, tmp_path):
    for size in (8, 16):
        source = MediaSource(Corpus(files=(str(folder),)), PatchReader(**{**READER, "size": size}), "label")
        assert open_or_decode(source, "key", tmp_path / "cache").values.shape == (10, 3, size, size)


def test_several_corpora_are_numbered_one_after_the_other(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for path in other.glob("*/*.png"):
        Image.new("RGB", (8, 8), (100 + int(path.stem), 0, 0)).save(path)
    data, _ = prepare_media(folder, tmp_path, train=((str(folder),), (str(other),)))
    found = labels_by_red(next(iter_validation_batches(data.train, batch_tokens=1000)))
    assert found == {number + more: 1 + number % 2 for number in range(10) for more in (0, 100)}


def test_captions_of_one_picture_share_it(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "text": ["one", "two three"]}\n')
    given = {
        "task": "media-to-text", "data": {"train": (str(tmp_path),), "max_length": 3},
        "tokenizer": {"kind": "words"}, "reader": READER, "writer": {"tie": "output"},
    }  # fmt: skip
    data = prepare(Recipe.model_validate(given), cache=tmp_path / "cache", report=lambda text: None)
    batch = next(iter_validation_batches(data.train, batch_tokens=1000))
    assert len(batch["source"].values) == len(batch["target"].ids) == 2
    assert len(list((tmp_path / "cache").glob("media-*"))) == 1


def test_a_held_out_picture_is_held_out_with_all_its_captions(tmp_path):
    rows = []
    for number in range(5):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f'{{"file_name": "{number}.png", "text": ["one", "two", "three"]}}\n')
    (tmp_path / "metadata.jsonl").write_text("".join(rows))
    part = CorpusSplit(Corpus(files=(str(tmp_path),)), share=0.4, media_reader=PatchReader(size=8, patch_size=4))
    kept, held = ([path for _, path, _ in replace(part, heldout=which).iter_rows()] for which in (False, True))
    assert (len(kept), len(held)) == (9, 6)
    assert not set(kept) & set(held)


def test_captions_and_questions_of_one_folder_may_be_about_other_pictures(tmp_path):
    """A row without an answer adds no file, so files are numbered differently than for captions."""
    for number in range(2):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "metadata.jsonl").write_text(
        '{"file_name": "0.png", "caption": "one", "question": "who ?", "answers": []}\n'
        '{"file_name": "1.png", "caption": "two", "question": "who ?", "answers": ["she", "he"]}\n'
    )
    data = {"data": {"train": (str(tmp_path),)}, "tokenizer": {"kind": "words"}}
    captions = {"task": "media-to-text", **data, "reader": READER, "writer": {"tie": "output"}}
    questions = {
        "task": "classify", **data, "reader": {"kind": "joined", "image": READER}, "writer": {"kind": "label"},
        "objectives": [{"kind": "label"}],
    }  # fmt: skip
    for given, seen in ((captions, [0, 1]), (questions, [1, 1])):
        made = prepare(Recipe.model_validate(given), cache=tmp_path / "cache")
        [batch] = iter_validation_batches(made.train, batch_tokens=1000)
        assert batch["source"].values[:, 0, 0, 0].tolist() == seen


def test_a_decoding_process_whose_parent_has_ended_ends_silently():
    """As when Ctrl-C stops the command while it sends the list of files."""
    command = build_python_command("saccade.data.media.decoding")
    done = subprocess.run(command, input='{"reader": {"kind": ', capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


# ---- folders as people have them


def test_formats_that_are_not_read_are_counted_and_labels_too(folder, tmp_path):
    for name in ("odd/a.heic", "odd/b.HEIC", "even/c.svg", "even/.d.svg"):
        (folder / name).write_bytes(b"x")
    reported: list[str] = []
    prepare(recipe(folder), cache=tmp_path / "cache", report=reported.append)
    assert "  files that are not read, and left out: 2 .heic, 1 .svg; convert them" in reported
    assert "labels: even (5), odd (5)" in reported and f"data: 10 pictures of {folder}" in reported


def test_folders_that_are_called_as_splits_are_no_classes(folder, tmp_path):
    for split in ("Training", "Testing"):
        shutil.copytree(folder, tmp_path / "whole" / split)
    with pytest.raises(SaccadeError, match=r"whole has a folder 'Testing', as splits are called.*--data .*whole/Test"):
        prepare_media(tmp_path / "whole", tmp_path)
    assert len(prepare_media(tmp_path / "whole" / "Training", tmp_path)[0].train) == 10


@pytest.mark.parametrize(
    ("name", "hint"), [("a.zip", "; unpack it$"), ("a.csv", r"; a table of files comes second: --data /\S+ /\S+a.csv$")]
)
def test_a_file_in_place_of_a_folder_is_explained(tmp_path, name, hint):
    (tmp_path / name).write_bytes(b"file,label\n")
    with pytest.raises(SaccadeError, match=f"is not a folder of files; expected .*{hint}"):
        prepare_media(tmp_path / name, tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "F"])
def test_pictures_of_all_modes_are_read(tmp_path, mode):
    """A half of each picture is dark and the other one bright, in any mode."""
    dark_and_bright = np.repeat(np.array([[0, 255]], np.uint8), 8, 0).repeat(4, 1)
    picture = Image.fromarray(dark_and_bright)
    if mode in ("I;16", "F"):
        picture = Image.fromarray(dark_and_bright.astype("uint16") * 257 if mode == "I;16" else dark_and_bright / 255.0)
    name = {"CMYK": "a.jpg", "F": "a.tif"}.get(mode, "a.png")
    for label in ("x", "y"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (picture if mode in ("I;16", "F") else picture.convert(mode)).save(tmp_path / "data" / label / name)
    data, _ = prepare_media(tmp_path / "data", tmp_path)
    values = next(iter_validation_batches(data.train, batch_tokens=1000))["source"].values.float()
    assert values.shape == (2, 3, 8, 8)
    assert values[..., :3].max() < 30 and values[..., 5:].min() > 225
