"""The script that reads words in photographs: what it draws, and its whole way at toy size."""

import gzip
import io
import json
import random
import tarfile

import pytest
from PIL import Image

from saccade.data.synthetic.rendering import RenderStyle, list_bundled_fonts, render_word

REAL = ["Bank", "INDIA", "24x7", "of"]


@pytest.fixture
def iiit5k(script):
    return script("iiit5k")


@pytest.fixture
def data(tmp_path):
    """Some words as a pack has them."""
    folder, rng = tmp_path / "data" / "iiit5k", random.Random(1)
    folder.mkdir(parents=True)
    rows = [{"image": f"{i}.jpg", "text": text} for i, text in enumerate(REAL)]
    for split in ("train", "test_a"):
        with tarfile.open(folder / f"{split}_images.tar.gz", "w:gz") as archive:
            for row in rows:
                file = io.BytesIO()
                render_word(row["text"], RenderStyle(list_bundled_fonts()), rng).save(file, "JPEG")
                entry = tarfile.TarInfo(f"{split}/{row['image']}")
                entry.size = file.tell()
                file.seek(0)
                archive.addfile(entry, file)
        with gzip.open(folder / f"{split}.jsonl.gz", "wt") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
    (folder.parent / "multi30k").mkdir()
    with gzip.open(folder.parent / "multi30k" / "train.en.gz", "wt") as file:
        file.write("A man rides.\nThe man sleeps, a dog rides.\n")
    return folder.parent


def test_real_words_are_mixed_with_drawn_ones_and_some_are_held_out(iiit5k, data, tmp_path, monkeypatch):
    monkeypatch.setattr(iiit5k, "DRAWN", 12)
    monkeypatch.setattr(iiit5k, "HELD", 1)
    pack = iiit5k.build_pack(data, tmp_path)
    [train], [valid] = pack.train, pack.valid
    rows = [json.loads(line) for line in (train / "metadata.jsonl").read_text().splitlines()]
    assert len(rows) == 12 + iiit5k.TIMES * 3
    assert all((train / row["file_name"]).is_file() for row in rows)
    assert all(row["text"].isalnum() and row["text"] == row["text"].lower() for row in rows)
    [held] = [json.loads(line) for line in (valid / "metadata.jsonl").read_text().splitlines()]
    assert held["text"] in {text.lower() for text in REAL}
    assert held["text"] not in {row["text"] for row in rows if row["file_name"].startswith("real")}
    assert (valid / held["file_name"]).is_file()


def test_words_of_the_packs_are_drawn(iiit5k, data):
    words = iiit5k.read_words(data, ["bank"])
    assert set(words.texts) == {"man", "rides", "bank"}  # those that occur once are left out, and single letters
    drawn = {iiit5k.sample_text(words, random.Random(i)).lower() for i in range(200)}
    assert {"man", "rides", "bank"} < drawn
    assert any(text.isdigit() for text in drawn)


def test_half_words_are_joined_to_strings_that_are_none(iiit5k):
    words = iiit5k.Words(("abcdef", "uvwxyz"), (1.0, 2.0))
    drawn = {iiit5k.sample_text(words, random.Random(i)).lower() for i in range(300)}
    assert {"abcdxyz", "uvwxdef"} < drawn


def test_families_of_many_fonts_count_for_no_more(iiit5k):
    fonts = ["a/Lato-Bold.ttf", "a/Lato-Italic.ttf", "a/Lato_Thin.ttf", "b/Vera.ttf"]
    found = iiit5k.balance_families(fonts)
    assert set(found) == set(fonts)
    assert found.count("b/Vera.ttf") == sum("Lato" in font for font in found)


def test_the_ground_has_the_colour_of_the_edges(iiit5k, tmp_path):
    picture = Image.new("RGB", (60, 20), (200, 30, 30))
    picture.paste((20, 20, 90), (20, 5, 40, 15))
    picture.save(tmp_path / "a.png")
    ink, ground = iiit5k.get_two_colors(tmp_path / "a.png")
    assert max(abs(a - b) for a, b in zip(ground, (200, 30, 30), strict=True)) < 5
    assert ink[2] > 80 and ink[0] < 60


def test_the_whole_way_at_toy_size(iiit5k, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["data.train.0.examples=60", "data.valid.0.examples=8", "reader.channels=[4, 4, 8]", "writer.stack.dim=8"]
    command(
        "iiit5k.py", "--tiny", "--out", tmp_path, *small, "train.steps=2", "train.valid_every=2", "train.save_every=2"
    )
    iiit5k.run_study(iiit5k.STUDY, iiit5k.build_pack, "")
    found = json.loads((tmp_path / "iiit5k.json").read_text())
    assert {"iiit5k: accuracy", "iiit5k: cer"} <= {row["what"] for row in found["rows"]}
