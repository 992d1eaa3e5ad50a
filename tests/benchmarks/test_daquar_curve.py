import gzip
import io
import json
import tarfile

import pytest
from PIL import Image

COLOURS = ("red", "green", "blue", "white")


@pytest.fixture
def rooms(tmp_path):
    """DAQUAR with 160 pictures of one colour each, and two questions about each."""
    folder = tmp_path / "data" / "daquar"
    folder.mkdir(parents=True)
    rows = []
    with tarfile.open(folder / "train_images.tar.gz", "w:gz") as archive:
        for number in range(160):
            name, colour, file = f"image{number}.jpg", COLOURS[number % 4], io.BytesIO()
            Image.new("RGB", (16, 16), colour).save(file, "JPEG")
            entry = tarfile.TarInfo(f"train/{name}")
            entry.size = file.tell()
            file.seek(0)
            archive.addfile(entry, file)
            for question, answer in (("what colour is it", colour), ("how many beds are there", "1")):
                rows.append({"image": name, "question": f"{question} in the image{number} ?", "answers": [answer]})
    with gzip.open(folder / "train.jsonl.gz", "wt") as lines:
        lines.writelines(f"{json.dumps(row)}\n" for row in rows)
    return folder.parent


def test_the_curve_has_seeds_sizes_topics_and_a_picture(script, command, rooms, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--data", rooms, "--pictures", "8", "--seeds", "1", "2", "--steps", "2", "--run", tmp_path / "runs"]
    command("daquar_curve.py", *words, "--out", tmp_path, "train.batch_tokens=512", "reader.join.hidden_dim=8")
    script("daquar_curve").main()
    rows = json.loads((tmp_path / "daquar_curve.json").read_text())["rows"]
    seen, alone = (
        [row["value"] for row in rows if row["what"] == f"8 pictures, {form}" and row["unit"] == "% right"]
        for form in ("with the picture", "question alone")
    )
    [gap] = [row for row in rows if row["what"] == "8 pictures, picture minus question alone, mean of 2 seeds"]
    gaps = [seen[0] - alone[0], seen[1] - alone[1]]
    assert gap["value"] == pytest.approx(sum(gaps) / 2, abs=0.01)
    assert gap["spread"] == pytest.approx(abs(gaps[0] - gaps[1]) / 2**0.5, abs=0.01)
    questions = {row["what"]: row["questions"] for row in rows if row.get("questions")}
    assert questions["8 pictures, with the picture"] == 64  # two tenths of 160 pictures, two questions about each
    assert questions["8 pictures, with the picture, colours"] == questions["8 pictures, question alone, numbers"] == 32
    assert (tmp_path / "daquar_curve.png").stat().st_size > 5000
    assert "8 pictures, question alone: minutes of training" in {row["what"] for row in rows}


def test_the_parts_of_the_data_share_no_picture_and_every_seed_scores_others(script):
    curve = script("daquar_curve")
    rows = [{"image": f"image{n}.jpg", "question": q, "answer": "a"} for n in range(160) for q in ("what ?", "who ?")]

    def pictures(some):
        return {curve.get_number(row) for row in some}

    scored = set()
    for seed in (1, 2, 3):
        parts = curve.split_rows(rows, seed, 112)
        learn, choose, score = (pictures(parts[name]) for name in ("learn", "choose", "score"))
        assert (len(learn), len(choose), len(score)) == (112, 16, 32)
        assert learn | choose | score == set(range(160))
        assert not scored & score
        scored |= score
        assert all({n // 8 * 8, n // 8 * 8 + 7} <= score for n in score), "neighbours stay together"
    with pytest.raises(SystemExit, match="112 pictures can be learned from, got 113"):
        curve.split_rows(rows, 1, 113)


def test_fewer_pictures_are_spread_over_all(script):
    rows = [{"image": f"image{number}.jpg", "question": q, "answer": "a"} for number in range(1, 13) for q in "xy"]
    kept = script("daquar_curve").keep_pictures(rows, 4)
    assert [row["image"] for row in kept] == [f"image{number}.jpg" for number in (1, 4, 7, 10) for _ in "xy"]
