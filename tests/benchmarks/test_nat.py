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
        "train", "distill", "train", "evaluate", "evaluate", "evaluate", "nat_speed.py"
    ]  # fmt: skip
    student = calls[2]
    assert student[student.index("--data") + 1] == corpus and f"init={teacher}" in student
    assert {"tokenizer.kind=init", "train.seed=2", "train.steps=7"} <= set(student)
    assert calls[5][-2:] == ["npd=10", f"teacher={teacher}"]
    assert [row["unit"] for row in rows] == ["BLEU", "BLEU", "BLEU", "minutes", "sentences/s"]
    assert {row["seed"] for row in rows} == {2}

    calls.clear()
    nat.run(nat.jobs()[1], args)
    assert not [words for words in calls if "train" in words or "distill" in words]
