"""All commands with visual question answering."""

import gzip
import json

import pytest
from PIL import Image

FEW = ("train.steps=4", "train.schedule.warmup_steps=1", "train.valid_predictions=20", "train.batch_tokens=256")
QUICK = (*FEW, "train.save_every=2", "train.valid_every=2", "data.valid=0.2", "train.ema=0.0")
SMALL = ("reader.image.size=16", "reader.image.channels=[4, 8]", "reader.question.stack.dim=8", "writer.hidden_dim=8")
SIZES = (*SMALL, "reader.join.hidden_dim=8")
COLOURS = ("red", "blue", "green")


def write_questions(folder, count=24, **columns):
    """Write images of one colour each, and a metadata file with questions about them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        name = COLOURS[number % 3]
        Image.new("RGB", (20, 16), name).save(folder / f"{number}.png")
        row = {"file_name": f"{number}.png", "question": f"which colour is it {number % 2} ?", "answer": name}
        rows.append({columns.get(key, key): value for key, value in row.items()})
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def run(cli, tmp_path):
    write_questions(tmp_path / "data")
    (tmp_path / "data/1.png").write_text("not a picture")
    result = cli(
        "train", "show-ask-attend-answer", "--data", "data", "--run", "v", "data.on_error=skip", *QUICK, *SIZES
    )
    assert result.code == 0, result.err
    assert "1 row was skipped in data; the first one is data/1.png: is not a readable picture" in result.err
    return "v"


def test_train_resume_predict_evaluate_compare_and_view(cli, run, tmp_path):
    assert cli("train", "--resume", run, "train.steps=6").code == 0
    image, question = str(tmp_path / "data/0.png"), "which colour is it 0 ?"
    fields = ("--field", f"image={image}", "--field", f"question={question}")
    said = cli("predict", run, *fields).out.splitlines()
    answer = said[0].split("\t")[2]
    assert said == [f"{image}\t{question}\t{answer}"]
    assert answer in COLOURS
    listed = tmp_path / "list.jsonl"
    listed.write_text(f"{json.dumps({'image': image, 'question': question})}\n{image}\t{question}\n")
    assert cli("predict", run, "--input", listed).out.splitlines() == said * 2
    described = json.loads(cli("predict", run, *fields, "--json").out)
    assert (described["image"], described["question"], described["label"]) == (image, question, answer)
    assert set(described["probabilities"]) == set(COLOURS)
    write_questions(tmp_path / "data")
    scores = json.loads(cli("evaluate", run, "--data", "data", "--json").out)
    assert scores["sentences"] == 24
    assert list(scores["scores"]) == ["accuracy"]
    assert cli("compare", run, run, "--data", "data").code == 0
    shown = cli("view", run, *fields, "--png", "v.png", "--html", "v.html")
    assert shown.out.splitlines() == ["v.png", "v.html"]
    assert cli("view", run, *fields).out.startswith(answer)
    refused = cli("view", run, *fields, "--target", "1,1")
    assert (refused.code, "attention goes from the question to the picture" in refused.err) == (2, True)


WRONG = [
    (("x.png",), "line 1: a picture and a question are needed"),
    (("--field", "image=x.png"), "the field question must be a text, but it is missing"),
    (("--field", "image=x.png", "--field", "questoin=a"), "unknown field 'questoin'; did you mean question?"),
    (("--field", "image=x.png", "--field", "question=a"), "x.png not found"),
    (("--field", "image=data", "--field", "question=a"), "a question is about one picture, got the folder data"),
    (("--field", "image=x.png", "--field", "image=y.png"), "image is given twice"),
    (("--field", "image"), "image has no value; expected NAME=VALUE"),
    (('{"image": 3, "question": "a"}',), "the field image must be a text, but got 3"),
    (('{"image": ',), "not valid JSON"),
    (("--field", "image=data/0.png", "--field", f"question={'a ' * 50}"), "question 1 has 52 tokens"),
]


def test_what_is_wrong_is_reported_in_one_line(cli, run):
    for words, message in WRONG:
        result = cli("predict", run, *words)
        assert result.code == 2
        assert message in result.err
        assert len(result.err.strip().splitlines()) == 1


def test_fields_are_for_runs_that_read_them(cli, tmp_path):
    assert cli("train", "dates", "--tiny", "--run", "d", *FEW, "data.valid=0.1", "data.train.0.examples=50").code == 0
    result = cli("predict", "d", "--field", "image=x.png")
    assert (result.code, "--field is for runs with multimodal inputs" in result.err) == (2, True)
    result = cli("view", "d", "a", "--field", "image=x.png")
    assert (result.code, "attention is shown for one input" in result.err) == (2, True)


def test_columns_may_have_other_names_and_a_missing_one_is_reported(cli, tmp_path):
    write_questions(tmp_path / "data", question="asked", answer="said")
    train = ("train", "show-ask-attend-answer", *QUICK, *SIZES)
    result = cli(*train, "--data", "data")
    assert result.code == 2
    assert "metadata.jsonl:1" in result.err
    assert "question" in result.err and result.err.count("\n") == 1
    named = "data.train.0.columns='file_name,asked,said'"
    assert f"set {named}" in result.err
    result = cli(*train, "--data", "data", named.replace("'", ""))
    assert result.code == 0
    read = 'file = column "file_name", question = column "asked", answer = column "said"'
    assert f"data data: {read}\n  1: 0.png | " in result.err
    few = "data.train=[{ files = ['data'], columns = ['file_name', 'said'] }]"
    assert "columns names the files, the questions and the answers, got file_name, said" in cli(*train, few).err
    (tmp_path / "data/metadata.jsonl").unlink()
    assert "whose columns file_name, question and answer have" in cli(*train, "--data", "data").err


def test_answers_outside_the_training_classes_are_wrong(cli, run, tmp_path):
    row = {"image": "0.png", "question": "which colour is it 0 ?", "answers": ["mauve", "beige"]}
    other = {"image": "0.png", "question": "which ?", "answers": ["blue"]}
    with gzip.open(tmp_path / "other.jsonl.gz", "wt") as file:
        file.write(json.dumps(row))
    with gzip.open(tmp_path / "both.jsonl.gz", "wt") as file:
        file.write(f"{json.dumps(row)}\n{json.dumps(other)}\n")
    scores = json.loads(cli("evaluate", run, "--data", "data", "other.jsonl.gz", "--json").out)
    assert (scores["sentences"], scores["scores"]["accuracy"]["value"]) == (1, 0.0)
    compared = cli("compare", run, run, "--data", "data", "other.jsonl.gz")
    assert compared.code == 0, compared.err
    valid = ("data.on_error=skip", "--data", "data", "--valid", "data", "both.jsonl.gz", "--run", "w")
    result = cli("train", "show-ask-attend-answer", *QUICK[:-2], *SIZES, *valid)
    assert "2 of 3 questions of data have an answer that the training data lacks" in result.err


def test_a_question_that_is_too_long_is_skipped(cli, tmp_path):
    with (write_questions(tmp_path / "data") / "metadata.jsonl").open("a") as notes:
        notes.write(json.dumps({"file_name": "0.png", "question": "which " * 60, "answer": "red"}))
    named = ("--data", "data", "--valid", "data", "--run", "v")
    result = cli("train", "show-ask-attend-answer", *QUICK[:-2], "train.ema=0.0", *SIZES, *named)
    assert result.code == 0, result.err
    assert "dropped 1 of 25" in result.err
    scores = json.loads(cli("evaluate", "v", "--data", "data", "--json").out)
    assert (scores["sentences"], "has 62 tokens" in scores["left_out"][0]) == (24, True)


def test_answers_can_be_generated_as_text(cli, tmp_path):
    write_questions(tmp_path / "data")
    writer = ("writer.kind=tokens", "writer.stack={kind='recurrent', attention='additive', dim=8, context='mean'}")
    rest = ("writer.positions.kind=none", "writer.tie=output", "objectives.0.kind=next-token", "task=media-to-text")
    join = ("reader.join={kind='concat', dim=8}",)
    result = cli(
        "train", "show-ask-attend-answer", "--data", "data", "--run", "v", *QUICK, *SMALL[:3], *join, *writer, *rest
    )
    assert result.code == 0, result.err
    fields = ("--field", "image=data/0.png", "--field", "question=which colour is it 0 ?")
    assert cli("predict", "v", *fields).out.startswith("data/0.png\twhich colour is it 0 ?\t")
    seen = json.loads(cli("view", "v", *fields, "--target", "red", "--json").out)
    assert seen["maps"][-1]["columns"] == "source"
    assert len(seen["labels"]["source"]) == 16
    assert json.loads(cli("evaluate", "v", "--data", "data", "--json").out)["sentences"] == 24
