import argparse
import json
from pathlib import Path

import pytest


@pytest.fixture
def nat(script):
    return script("nat")


def test_teacher_distillation_and_student_come_in_order_and_are_not_repeated(nat, tmp_path, monkeypatch):
    calls = []

    def call(command, log, limit=None):
        words = [str(word) for word in command]
        calls.append(words)
        if "train" in words:
            folder = Path(words[words.index("--run") + 1])
            folder.mkdir()
            (folder / nat.CARD).touch()
            (folder / nat.METRICS).write_text('{"step": 1, "seconds": 30.0}\n{"step": 2, "seconds": 90.0}\n')
        elif "distill" in words:
            Path(words[words.index("--output") + 1]).touch()
        elif "evaluate" in words:
            return json.dumps({"scores": {"bleu": {"value": 20.0 + len(words), "signature": "x"}}})
        else:
            rows = [{"what": "speed", "value": 9.0, "unit": "sentences/s"}, {"what": "s", "value": 1, "unit": "BLEU"}]
            (Path(words[words.index("--out") + 1]) / "nat_speed_cpu.json").write_text(json.dumps({"rows": rows}))
        return ""

    monkeypatch.setattr(nat, "call", call)
    args = argparse.Namespace(data=Path("data"), work=tmp_path, set=["train.steps=7"], limit=None)
    rows = nat.run(nat.jobs()[1], args)

    teacher, corpus = str(tmp_path / "teacher-2"), str(tmp_path / "distilled-2.tsv")
    kinds = [
        next(word for word in words if word in ("train", "distill", "evaluate") or "speed" in word) for words in calls
    ]
    assert [Path(kind).name for kind in kinds] == [
        "train", "distill", "train", "evaluate", "evaluate", "evaluate"
    ]  # fmt: skip
    student = calls[2]
    assert student[student.index("--data") + 1] == corpus and f"init={teacher}" in student
    assert {"tokenizer.kind=init", "train.seed=2", "train.steps=7"} <= set(student)
    assert calls[5][-2:] == ["npd=10", f"teacher={teacher}"]
    assert [row["unit"] for row in rows] == ["BLEU", "BLEU", "BLEU", "minutes"]
    assert rows[-1]["value"] == 3.0  # a minute and a half of the teacher, and of the student
    assert {row["seed"] for row in rows} == {2}

    calls.clear()
    nat.run(nat.jobs()[1], args)
    assert not [words for words in calls if "train" in words or "distill" in words]


def test_an_interrupted_training_is_resumed_and_a_finished_one_is_kept(nat, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(nat, "call", lambda command, log, limit=None: calls.append(command[len(nat.PYTHON) :]))
    run = tmp_path / "run"

    nat.train_or_resume(run, ["multi30k", "--data", "x"], tmp_path / "log", None)
    (run / nat.CHECKPOINTS / "00000100").mkdir(parents=True)
    nat.train_or_resume(run, ["multi30k", "--data", "x"], tmp_path / "log", None)
    (run / nat.CARD).touch()
    nat.train_or_resume(run, ["multi30k", "--data", "x"], tmp_path / "log", None)

    assert calls == [
        ["train", "multi30k", "--data", "x", "--run", str(run), "--overwrite"], ["train", "--resume", str(run)]
    ]  # fmt: skip


def test_speeds_are_measured_when_nothing_else_runs_and_not_of_jobs_that_failed(nat, tmp_path, monkeypatch):
    order, args = [], argparse.Namespace(together=3, name="nat", out=tmp_path, work=tmp_path, data=Path("data"))

    def train(job, args):
        if job.seed == 2:
            raise RuntimeError("diverged")
        order.append(("trained", job.seed))
        return [{"what": "BLEU", "value": 20.0, "unit": "BLEU", "seed": job.seed}]

    def call(command, log, limit=None):
        words = [str(word) for word in command]
        order.append(("measured", int(words[2][-1])))
        assert words[words.index("--limit") + 1] == str(nat.SENTENCES)
        rows = [{"what": "speed", "value": 9.0, "unit": "sentences/s"}, {"what": "s", "value": 1, "unit": "BLEU"}]
        (Path(words[words.index("--out") + 1]) / "nat_speed_cpu.json").write_text(json.dumps({"rows": rows}))
        return ""

    monkeypatch.setattr(nat, "call", call)
    nat.run_all(nat.jobs(), train, args, after=nat.measure_speed)

    assert sorted(order[:2]) == [("trained", 1), ("trained", 3)] and order[2:] == [("measured", 1), ("measured", 3)]
    rows = json.loads((tmp_path / "nat.json").read_text())["rows"]
    assert [row["seed"] for row in rows if row["unit"] == "sentences/s" and "seed" in row] == [1, 3]
