import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from saccade.config.schema import Decoding
from saccade.train import train

SMALL = [
    "train.steps=2", "train.schedule.warmup_steps=1", "train.device=cpu", "train.valid_predictions=2",
    "tokenizer.kind=words",
    *(f"{side}.stack.{key}={value}" for side in ("reader", "writer") for key, value in (("dim", 16), ("layers", 1))),
]  # fmt: skip


@pytest.fixture
def nat_speed(script):
    return script("nat_speed")


def test_script_measures_a_student_and_its_teacher(nat_speed, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("one two three\nfour five six\n" * 4)
    target.write_text("uno dos tres\ncuatro cinco seis\n" * 4)
    files = [[str(source), str(target)]]
    for recipe in ("mask-predict", "multi30k"):
        train(recipe, data=files, valid=files, overrides=SMALL, run=recipe)
    command(
        "nat_speed.py", "runs/mask-predict", "runs/multi30k", "--data", source, target, "--device", "cpu", "--limit", 3,
        "--rounds", 1, "--out", tmp_path,
    )  # fmt: skip

    nat_speed.main()

    content = json.loads((tmp_path / "nat_speed_cpu.json").read_text())
    assert "5 x wanted" in content["notes"]
    speeds = {row["what"].split(": ")[1]: row for row in content["rows"] if row["unit"] == "sentences/s"}
    assert list(speeds) == [
        "one step, fp32, batch 1", "refined, fp32, batch 1", "teacher, beam 4, fp32, batch 1",
    ]  # fmt: skip
    one = speeds["one step, fp32, batch 1"]
    assert one["ratio"] == pytest.approx(one["value"] / one["peer_value"], rel=0.01)  # all three are rounded
    assert sum(row["unit"] == "BLEU" for row in content["rows"]) == 3
    assert "ratio" in capsys.readouterr().out


def test_student_is_held_against_its_teacher(nat_speed):
    bleu = SimpleNamespace(value=31.234, signature="nrefs:1")
    found = {
        nat_speed.ONE: nat_speed.Measured("bf16", 60.0, bleu),
        nat_speed.TEACHER: nat_speed.Measured("fp32", 10.0, bleu),
    }
    rows = nat_speed.compare_systems(found, what="a -> b")
    assert rows[0] == {
        "what": "`mask-predict` and its teacher, a -> b: one step, bf16, BLEU",
        "value": 31.23,
        "unit": "BLEU",
        "signature": "nrefs:1",
    }
    assert (rows[1]["peer"], rows[1]["ratio"]) == ("teacher, beam 4, fp32", 6.0)
    assert "ratio" not in rows[3]


def test_everybody_is_warm_before_the_clock_runs(nat_speed):
    calls = []
    systems = {name: lambda texts, name=name: calls.append(name) or list(texts) for name in "ab"}
    ticks = iter(range(100))
    found = nat_speed.race_systems(
        systems, [("x", "x"), ("y y", "y y")], precision="fp32", rounds=2, clock=lambda: next(ticks)
    )
    assert calls == ["a", "b", "a", "b", "a", "b", "a", "b"]
    assert [item.speed for item in found.values()] == [2.0, 2.0]


def test_a_student_with_fertilities_is_measured_with_noisy_parallel_decoding(nat_speed):
    decoding, calls = Decoding(), []
    predictor = SimpleNamespace(
        recipe=SimpleNamespace(predict=decoding, writer=SimpleNamespace(predicts_fertilities=True)),
        predict=lambda texts, decoding: calls.append((decoding.npd, decoding.teacher, decoding.beam)) or texts,
    )
    systems = nat_speed.build_systems(predictor, predictor, Path("teacher"), iterations=4, lengths=1)
    for system in systems.values():
        system(["a"])
    assert list(systems) == [nat_speed.ONE, nat_speed.NOISY, nat_speed.TEACHER]
    assert calls == [(1, "", 4), (10, "teacher", 4), (1, "", 4)]
