import gzip
import json

import pytest


def test_seeing_is_compared_with_guessing(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("daquar.py", "--tiny", "--out", tmp_path, "data.train.0.examples=40", "data.valid.0.examples=20")
    script("daquar").main()
    found = json.loads((tmp_path / "daquar.json").read_text())
    values = {row["what"]: row["value"] for row in found["rows"]}
    apart = values["daquar: accuracy"] - values["daquar, question alone: accuracy"]
    assert abs(apart - values["daquar: accuracy above question alone"]) < 0.01
    assert values["daquar: parameters"] > values["daquar, question alone: parameters"]


def test_a_learning_curve_has_seeds_and_sizes(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fewer = ["data.train.0.examples=40", "data.valid.0.examples=20", "train.steps=2"]
    command("daquar.py", "--tiny", "--out", tmp_path, "--seeds", "1", "2", "--pictures", "3", "5", "--", *fewer)
    script("daquar").main()
    rows = json.loads((tmp_path / "daquar.json").read_text())["rows"]
    for count in (3, 5):
        name = f"daquar, {count} pictures"
        found = {row["what"]: row["value"] for row in rows if row["what"].startswith(name) and "seed" not in row}
        seen, guessed = (
            [row["value"] for row in rows if row["what"] == f"{name}{form}: accuracy"]
            for form in ("", ", question alone")
        )
        assert len(seen) == len(guessed) == 2
        gaps = [seen[0] - guessed[0], seen[1] - guessed[1]]
        assert abs(found[f"{name}: accuracy above question alone"] - sum(gaps) / 2) < 0.01
        spread = found[f"{name}: accuracy above question alone, standard deviation"]
        assert abs(spread - abs(gaps[0] - gaps[1]) / 2**0.5) < 0.01


def test_fewer_pictures_are_spread_over_all(script):
    rows = [{"image": f"image{number}.jpg", "question": q, "answer": "a"} for number in range(1, 13) for q in "xy"]
    kept = script("daquar").keep_pictures(rows, 4)
    assert [row["image"] for row in kept] == [f"image{number}.jpg" for number in (1, 4, 7, 10) for _ in "xy"]
    with pytest.raises(SystemExit, match="the training data has 12 pictures, got 13"):
        script("daquar").keep_pictures(rows, 13)


def test_a_question_does_not_name_its_picture(script):
    row = {"image": "image2.jpg", "question": "what is on the desk in the image2 ?", "answers": ["lamp", "books"]}
    made = {"image": "image2.jpg", "question": "what is on the desk ?", "answer": "lamp, books"}
    assert script("daquar").clean_row(row) == made


def test_settings_are_chosen_by_training_pictures_that_are_not_learned_from(script, tmp_path):
    (tmp_path / "daquar").mkdir()
    for split, numbers in (("train", range(1, 161)), ("test_a", (200, 201))):
        with gzip.open(tmp_path / f"daquar/{split}.jsonl.gz", "wt") as file:
            rows = ({"image": f"image{number}.jpg", "question": "what ?", "answers": ["lamp"]} for number in numbers)
            file.writelines(f"{json.dumps(row)}\n" for row in rows)

    def images(files):
        return [int(json.loads(line)["image"][5:-4]) for line in files[1].read_text().splitlines()]

    whole = script("daquar").build_pack(tmp_path, tmp_path)
    assert (len(images(whole.train)), images(whole.test)) == (160, [200, 201])
    chosen = script("daquar").build_pack(tmp_path, tmp_path, heldout=True)
    assert images(chosen.test) == [*range(72, 80), *range(152, 160)]
    assert sorted(images(chosen.train) + images(chosen.test)) == [*range(1, 161)]
    assert chosen.test[0] == chosen.train[0] == whole.train[0]
