import json

from saccade.train import train


def test_the_loads_of_a_run_are_measured(script, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("one two three\nfour five six\n" * 70)  # more than one batch
    target.write_text("uno dos tres\ncuatro cinco seis\n" * 70)
    changes = ["train.steps=2", "train.device=cpu", "tokenizer.kind=words", "tokenizer.size=30", "predict.beam=1"]
    changes += ["reader.stack.dim=16", "writer.stack.dim=16", "train.valid_predictions=2"]
    train("moe", data=[[str(source), str(target)]], valid=[[str(source), str(target)]], overrides=changes, run="small")
    command("expert_loads.py", "runs/small", "--data", source, target, "--out", tmp_path)

    script("expert_loads").main()

    rows = json.loads((tmp_path / "expert_loads.json").read_text())["rows"]
    groups = ["reader.stack.between.below.2", "writer.stack.between.below.1"]
    assert [row["what"] for row in rows] == [f"small: busiest of 8 experts, {name}" for name in groups]
    lines = [line.split(": ")[1].split() for line in capsys.readouterr().out.splitlines() if "between" in line]
    for row, loads in zip(rows, lines, strict=True):
        assert len(loads) == 8 and abs(sum(map(float, loads)) - 8) < 0.1  # 8 times their mean
        assert 1 <= row["value"] <= 4  # no more than all positions, of which each counts for 2
