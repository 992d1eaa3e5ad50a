import json
from types import SimpleNamespace

import pytest

SMALL = ("reader.stack.dim=8", "writer.stack.dim=8", "train.batch_tokens=256", "train.schedule.warmup_steps=1")


@pytest.fixture
def bottleneck(script):
    return script("bottleneck")


def test_script_saves_what_was_measured(bottleneck, command, tmp_path, monkeypatch):
    monkeypatch.setattr(bottleneck, "TESTED", 3)
    command("bottleneck.py", "--longest", 12, "--examples", 60, "--steps", 2, "--out", tmp_path, *SMALL)

    bottleneck.main()

    rows = json.loads((tmp_path / "bottleneck.json").read_text())["rows"]
    assert [row["what"].rpartition("letters, ")[2] for row in rows] == [
        f"attention={kind}: right at {length}" for kind in ("none", "additive") for length in (10, 12)
    ]
    assert all(0 <= row["value"] <= 100 and row["unit"] == "%" for row in rows)


@pytest.mark.parametrize(
    ("write", "share"),
    [
        (lambda text: text[::-1], 100),
        (lambda text: text[::-1][:5], 50),
        (lambda text: "", 0),
        (lambda text: "A" * 99, 0),
    ],
)
def test_right_is_a_letter_at_its_place(bottleneck, write, share):
    run = SimpleNamespace(predict=lambda texts: [write(text) for text in texts])
    assert bottleneck.measure_accuracy(run, 10) == share


def test_texts_that_are_tested_are_not_trained_on(bottleneck, tmp_path):
    train, valid = bottleneck.write_pairs(tmp_path, 500, 30)
    lines = [line.split("\t") for line in train.read_text().splitlines()]
    assert all(source[::-1] == target for source, target in lines)
    assert {len(source) for source, _ in lines} <= set(range(1, 31)) and max(len(source) for source, _ in lines) == 30
    assert not {source for source, _ in lines} & {line.split("\t")[0] for line in valid.read_text().splitlines()}
