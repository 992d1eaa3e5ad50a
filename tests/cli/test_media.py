"""All commands with images."""

import json
import shutil
import tarfile

import pytest
from PIL import Image

FEW = ("train.steps=4", "train.schedule.warmup_steps=1", "train.valid_predictions=4", "train.batch_tokens=512")
QUICK = (*FEW, "train.save_every=2", "train.valid_every=2", "data.valid=0.2")
SMALL = (
    "reader.size=16",
    "reader.patch_size=4",
    "reader.stack.layers=1",
    "reader.stack.dim=16",
    "reader.stack.heads=2",
)


def colours(folder, count=12):
    for number in range(count):
        name = ("red", "blue", "green")[number % 3]
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), name).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def run(cli, tmp_path):
    """A run trained on an archive of class folders with one corrupt file."""
    colours(tmp_path / "data")
    (tmp_path / "data/red/broken.jpg").write_text("not a picture")
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "data", "data")
    result = cli(
        "train", "vit", "--data", "data.tar.gz", "--run", "v", *QUICK, *SMALL, "train.epochs=none", "data.on_error=skip"
    )
    assert result.code == 0, result.err
    assert "1 row was skipped in data.tar.gz; the first one is data.tar.gz/data/red/broken.jpg: is not a" in result.err
    return "v"


def test_examples_show_which_folder_is_the_label(cli, tmp_path):
    colours(tmp_path / "data/a")
    colours(tmp_path / "data/b")
    result = cli("train", "vit", "--data", "data", "--run", "n", *QUICK, *SMALL, "train.epochs=none", "train.steps=1")
    assert "a/blue/1.png | a" in result.err


def test_a_table_beside_a_single_folder_of_pictures_is_pointed_at(cli, tmp_path):
    (tmp_path / "data").mkdir()
    colours(tmp_path / "images")
    (tmp_path / "images/red").rename(tmp_path / "data/images")
    (tmp_path / "data/labels.csv").write_text("file_name,label\n0.png,a\n")
    result = cli("train", "vit", "--data", "data", "--run", "n", *QUICK, *SMALL)
    assert (result.code, result.err) == (
        2,
        "error: data has no folders of classes, but a table, labels.csv; if it has the labels, give it second: "
        "--data data data/labels.csv\n",
    )


def test_train_resume_predict_evaluate_and_view(cli, run, tmp_path):
    assert cli("train", "--resume", run, "train.steps=6").code == 0
    one, folder = tmp_path / "data/red/0.png", tmp_path / "data/blue"
    said = cli("predict", run, one, folder).out.splitlines()
    assert len(said) == 5
    assert said[0].split("\t")[0] == str(one)
    assert {line.split("\t")[1] for line in said} <= {"red", "blue", "green"}
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{line.split(chr(9))[0]}\n" for line in said))
    assert cli("predict", run, "--input", listed).out.splitlines() == said
    described = json.loads(cli("predict", run, one, "--json").out)
    assert described["input"] == str(one)
    assert set(described["probabilities"]) == {"red", "blue", "green"}
    (tmp_path / "data/red/broken.jpg").unlink()
    scores = json.loads(cli("evaluate", run, "--data", "data", "--json").out)
    assert scores["texts"] == 12
    assert cli("compare", run, run, "--data", "data").code == 0
    shown = cli("view", run, one, "--png", "v.png", "--html", "v.html")
    assert shown.out.splitlines() == ["v.png", "v.html"]
    assert cli("view", run, one).out.startswith(said[0].split("\t")[1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "v", "data/red/broken.jpg"), "broken.jpg is not a readable picture"),
        (("predict", "v", "nowhere.png"), "nowhere.png not found"),
        (("view", "v", "data/red"), "attention is shown for one file at a time, got the 5 of data/red"),
        (("view", "v", "data/red/0.png", "--target", "x"), "--target is a cell as ROW,COLUMN, up to 4,4, got 'x'"),
        (("evaluate", "v"), "'runs/v' has no validation files of its own; give --data FOLDER"),
        (("evaluate", "v", "--data", "data/blue"), "neither a metadata file nor a folder for each class"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(cli, run, words, message):
    result = cli(*words)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_what_cannot_be_read_in_a_folder_is_reported_and_the_rest_predicted(cli, run, tmp_path):
    result = cli("predict", run, "data/red")
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == [f"data/red/{i}.png" for i in (0, 3, 6, 9)]
    first, count = result.err.strip().splitlines()
    assert first.startswith("skipped: data/red/broken.jpg is not a readable picture")
    assert count == "skipped 1 unreadable files"
    alone = tmp_path / "alone"
    (tmp_path / "data/red/broken.jpg").rename(alone.mkdir() or alone / "broken.jpg")
    result = cli("predict", run, "alone")
    assert (result.code, result.out) == (2, "")
    assert "no picture of alone can be read: alone/broken.jpg is not a readable picture" in result.err


def test_the_n_best_of_files_have_their_names(cli, run):
    rows = [line.split("\t") for line in cli("predict", run, "data/red", "--n-best", 2).out.splitlines()]
    assert [name for name, _, _ in rows] == [f"data/red/{i}.png" for i in (0, 0, 3, 3, 6, 6, 9, 9)]
    assert float(rows[0][1]) >= float(rows[1][1]) and rows[0][2] != rows[1][2]


def test_pictures_are_counted_as_pictures(cli, run, tmp_path):
    assert "12 pictures in" in (said := cli("evaluate", run, "--data", "data").out) and " pictures/s" in said
    compared = cli("compare", run, run, "--data", "data").out
    assert "  pictures/s\n" in compared and "\n12 pictures; differences" in compared
    (tmp_path / "data/red").rename(tmp_path / "data/crimson")
    assert "error: picture 5: unknown label 'crimson'" in cli("evaluate", run, "--data", "data").err


def test_one_class_of_pictures_is_too_few(cli, tmp_path):
    folder = colours(tmp_path / "data")
    for name in ("green", "blue"):
        shutil.rmtree(folder / name)
    result = cli("train", "vit", "--data", "data", "--run", "w", *QUICK)
    assert result.code == 2
    assert [line for line in result.err.splitlines() if "error" in line] == result.err.splitlines()[-1:]
    assert "needed to tell pictures apart, but the data has only one: 'red'" in result.err.splitlines()[-1]


def test_captions_in_a_metadata_file(cli, tmp_path):
    rows = []
    for path in sorted(colours(tmp_path / "data").glob("*/*.png")):
        rows.append({"file_name": f"{path.parent.name}/{path.name}", "text": [f"all {path.parent.name}", "a colour"]})
    (tmp_path / "data/metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    small = ("reader.size=16", "reader.channels=[4, 8]", "writer.stack.dim=8", "predict.max_length=4")
    result = cli("train", "show-attend-tell", "--data", "data", "--run", "s", *QUICK, *small)
    assert result.code == 0, result.err
    found = json.loads(cli("evaluate", "s", "--data", "data", "--json").out)
    assert found["sentences"] == 12
    assert list(found["scores"]) == ["bleu-1", "bleu-2", "bleu-3", "bleu-4", "cider", "accuracy"]
    assert "nrefs:2" in found["scores"]["cider"]["signature"]
    only = json.loads(cli("evaluate", "s", "--data", "data", "--metrics", "cider", "--json").out)
    assert list(only["scores"]) == ["cider"]


def test_without_data_a_folder_is_asked_for(cli):
    result = cli("train", "vit")
    assert result.code == 2
    assert "--data FOLDER" in result.err
