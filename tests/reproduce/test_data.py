"""The data of results: checked by hash, converted where recipes need it, never copied."""

import gzip
import hashlib
import io
import json
import random
import tarfile

import numpy as np
import pytest
from PIL import Image

from saccade.config.schema import Corpus
from saccade.data.media.sound import Recording
from saccade.data.sources.media import read_media
from saccade.data.synthetic.rendering import RenderStyle, list_bundled_fonts, render_word
from saccade.errors import SaccadeError
from saccade.reproduce import scene_text
from saccade.reproduce.data import check_files, hash_content, prepare_files, resolve_corpora
from saccade.reproduce.prepare import (
    prepare_room_questions,
    prepare_scan,
    prepare_shakespeare,
    prepare_spoken_digits,
)
from saccade.reproduce.spec import list_specs

REAL_WORDS = ["Bank", "INDIA", "24x7", "of"]


@pytest.fixture
def spec():
    """A result that needs one compressed file."""
    found = list_specs()["shakespeare"]
    digest = hashlib.sha256(b"to be").hexdigest()
    return found.model_copy(update={"files": {"tinyshakespeare/input.txt.gz": digest}})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.gz").write_bytes(gzip.compress(b"to be"))
    return tmp_path


def test_the_content_of_a_compressed_file_is_hashed(spec, folder):
    path = folder / "tinyshakespeare" / "input.txt.gz"
    path.write_bytes(gzip.compress(b"to be", compresslevel=1, mtime=7))
    check_files(spec, folder)
    (folder / "plain").write_bytes(path.read_bytes())
    assert hash_content(folder / "plain") != hash_content(path) == hashlib.sha256(b"to be").hexdigest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.write_bytes(gzip.compress(b"to be!")),
            r"shakespeare: '.*input.txt.gz' is another file: expected SHA-256 of its decompressed content {expected}, "
            r"got {got}; tinyshakespeare comes from https://github.com/karpathy/char-rnn",
        ),
        (
            lambda path: path.unlink(),
            r"shakespeare: '.*input.txt.gz' is missing, expected a file with SHA-256 {expected}; tinyshakespeare comes",
        ),
        (lambda path: path.write_bytes(gzip.compress(b"to be")[:-9]), "got a damaged .gz file; tinyshakespeare comes"),
        (lambda path: path.write_bytes(b"to be"), "got a damaged .gz file; tinyshakespeare comes"),
    ],
)
def test_another_file_is_one_line_with_both_hashes_and_its_source(spec, folder, change, message):
    change(folder / "tinyshakespeare" / "input.txt.gz")
    hashes = {"expected": hashlib.sha256(b"to be").hexdigest(), "got": hashlib.sha256(b"to be!").hexdigest()}
    for name, digest in hashes.items():
        message = message.replace(f"{{{name}}}", digest)
    with pytest.raises(SaccadeError, match=message) as raised:
        check_files(spec, folder)
    assert "\n" not in str(raised.value)


def test_a_folder_is_asked_for(spec):
    with pytest.raises(SaccadeError, match="shakespeare needs data: give --data-folder DIR with tinyshakespeare/input"):
        check_files(spec, None)


def test_files_are_found_where_they_are(tmp_path):
    named = [("a/x.gz", "{student}"), ("embedded:dates",), ("prepared/y",)]
    corpora = [Corpus(files=files, weight=2.0) for files in named]
    found = resolve_corpora(corpora, tmp_path / "data", tmp_path / "out", {"student": tmp_path / "s.txt"})
    assert [corpus.files for corpus in found] == [
        (str(tmp_path / "data/a/x.gz"), str(tmp_path / "s.txt")),
        ("embedded:dates",),
        (str(tmp_path / "out/prepared/y"),),
    ]
    assert found[0].weight == 2.0


def test_files_are_prepared_once_and_completely(spec, folder, tmp_path, monkeypatch):
    from saccade.reproduce import data

    calls = []

    def fail(data_folder, made):
        calls.append(made)
        (made / "half").touch()
        raise SaccadeError("no")

    monkeypatch.setitem(data.PREPARATIONS, "shakespeare", fail)
    with pytest.raises(SaccadeError):
        prepare_files(spec, folder, tmp_path / "out")
    assert not (tmp_path / "out" / "prepared").exists()
    (tmp_path / "out" / "preparing").mkdir(parents=True)
    (tmp_path / "out" / "preparing" / "half").touch()  # of a process that was killed
    monkeypatch.setitem(data.PREPARATIONS, "shakespeare", lambda data_folder, made: calls.append(list(made.iterdir())))
    for _ in range(3):
        prepare_files(spec, folder, tmp_path / "out")
    assert len(calls) == 2 and calls[1] == [] and (tmp_path / "out" / "prepared").is_dir()


def test_commands_and_actions_of_scan_are_two_columns(tmp_path):
    (tmp_path / "scan").mkdir()
    for name in (f"{split}_{part}" for split in ("simple", "length", "addprim_jump") for part in ("train", "test")):
        with gzip.open(tmp_path / "scan" / f"{name}.txt.gz", "wt") as file:
            file.write(f"IN: run twice OUT: I_RUN I_RUN\nIN: {name} OUT: I_LOOK\n")
    (tmp_path / "made").mkdir()
    prepare_scan(tmp_path, tmp_path / "made")
    lines = (tmp_path / "made" / "length_test.tsv").read_text().splitlines()
    assert lines == ["source\ttarget", "run twice\tI_RUN I_RUN", "length_test\tI_LOOK"]


def test_digits_are_spelled(tmp_path):
    (tmp_path / "fsdd").mkdir()
    Recording(np.zeros(800, np.float32), 8000).save(tmp_path / "x.wav")
    for split, names in {"train": ["3_ann_5", "0_bob_7"], "test_a": ["9_ann_0"]}.items():
        with tarfile.open(tmp_path / "fsdd" / f"{split}.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(tmp_path / "x.wav", f"{split}/{name}.wav")
    prepare_spoken_digits(tmp_path, tmp_path / "made")
    rows = [
        (path.rsplit("/")[-1], text)
        for part in ("train", "test_a")
        for _, path, text in read_media(Corpus(files=(str(tmp_path / "made" / part),)), medium="sound", target="text")
    ]
    assert rows == [("0_bob_7.wav", "zero"), ("3_ann_5.wav", "three"), ("9_ann_0.wav", "nine")]


def test_nine_tenths_of_shakespeare_are_for_training(folder):
    text = "To be, or not to be, that is the question.\n" * 60
    (folder / "tinyshakespeare" / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "made").mkdir()
    prepare_shakespeare(folder, folder / "made")
    train, valid = ((folder / "made" / f"{name}.txt").read_text() for name in ("train", "valid"))
    assert train + valid == text and len(train) == int(0.9 * len(text))


def test_questions_do_not_name_their_image_and_neighbours_are_held_out_together(tmp_path):
    (tmp_path / "daquar").mkdir()
    for split, numbers in (("train", range(1, 161)), ("test_a", (200, 201))):
        rows = [
            {"image": f"image{n}.jpg", "question": f"what is it in the image{n} ?", "answers": ["lamp", "bed"]}
            for n in numbers
        ]
        with gzip.open(tmp_path / f"daquar/{split}.jsonl.gz", "wt") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "made").mkdir()
    prepare_room_questions(tmp_path, tmp_path / "made")
    rows = {
        name: [json.loads(line) for line in (tmp_path / "made" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test_a", "learn", "heldout")
    }
    assert rows["test_a"][0] == {"image": "image200.jpg", "question": "what is it ?", "answer": "lamp, bed"}
    held = [int(row["image"][5:-4]) for row in rows["heldout"]]
    assert held == [*range(72, 80), *range(152, 160)]
    assert sorted(map(str, rows["learn"] + rows["heldout"])) == sorted(map(str, rows["train"]))


@pytest.fixture
def words(tmp_path):
    """Some words of IIIT5K, and captions to render words of."""
    folder, rng = tmp_path / "data" / "iiit5k", random.Random(1)
    folder.mkdir(parents=True)
    rows = [{"image": f"{i}.jpg", "text": text} for i, text in enumerate(REAL_WORDS)]
    with tarfile.open(folder / "train_images.tar.gz", "w:gz") as archive:
        for row in rows:
            file = io.BytesIO()
            render_word(row["text"], RenderStyle(list_bundled_fonts()), rng).save(file, "JPEG")
            entry = tarfile.TarInfo(f"train/{row['image']}")
            entry.size = file.tell()
            file.seek(0)
            archive.addfile(entry, file)
    with gzip.open(folder / "train.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    (folder.parent / "multi30k").mkdir()
    with gzip.open(folder.parent / "multi30k" / "train.en.gz", "wt") as file:
        file.write("A man rides.\nThe man sleeps, a dog rides.\n")
    return folder.parent


def test_real_words_are_mixed_with_rendered_ones_and_some_are_held_out(words, tmp_path, monkeypatch):
    monkeypatch.setattr(scene_text, "RENDERED", 12)
    monkeypatch.setattr(scene_text, "HELD_OUT", 1)
    scene_text.prepare_scene_text(words, tmp_path)
    train, valid = tmp_path / "train", tmp_path / "valid"
    rows = [json.loads(line) for line in (train / "metadata.jsonl").read_text().splitlines()]
    assert len(rows) == 12 + scene_text.REPEATS * 3
    assert all((train / row["file_name"]).is_file() for row in rows)
    assert all(row["text"].isalnum() and row["text"] == row["text"].lower() for row in rows)
    [held] = [json.loads(line) for line in (valid / "metadata.jsonl").read_text().splitlines()]
    assert held["text"] in {text.lower() for text in REAL_WORDS}
    assert held["text"] not in {row["text"] for row in rows if row["file_name"].startswith("real")}
    assert (valid / held["file_name"]).is_file()


def test_frequent_words_numbers_and_joined_halves_are_rendered(words):
    found = scene_text.read_words(words, ["bank"])
    assert set(found.texts) == {"man", "rides", "bank"}  # those that occur once are left out, and single letters
    sampled = {scene_text.sample_text(found, random.Random(i)).lower() for i in range(200)}
    assert {"man", "rides", "bank"} < sampled and any(text.isdigit() for text in sampled)
    halves = scene_text.Words(("abcdef", "uvwxyz"), (1.0, 2.0))
    assert {"abcdxyz", "uvwxdef"} < {scene_text.sample_text(halves, random.Random(i)).lower() for i in range(300)}


def test_families_of_many_fonts_count_for_no_more():
    fonts = ["a/Lato-Bold.ttf", "a/Lato-Italic.ttf", "a/Lato_Thin.ttf", "b/Vera.ttf"]
    found = scene_text.balance_families(fonts)
    assert set(found) == set(fonts)
    assert found.count("b/Vera.ttf") == sum("Lato" in font for font in found)


def test_the_background_has_the_colour_of_the_edges(tmp_path):
    picture = Image.new("RGB", (60, 20), (200, 30, 30))
    picture.paste((20, 20, 90), (20, 5, 40, 15))
    picture.save(tmp_path / "a.png")
    ink, background = scene_text.get_two_colors(tmp_path / "a.png")
    assert max(abs(a - b) for a, b in zip(background, (200, 30, 30), strict=True)) < 5
    assert ink[2] > 80 and ink[0] < 60
