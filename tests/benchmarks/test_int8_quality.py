import json

import pytest

from saccade.kernels.cpu import prepared
from saccade.train import train


@pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")
def test_what_int8_costs_is_measured_on_a_run(script, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("one two three\nfour five six\n" * 4)
    target.write_text("uno dos tres\ncuatro cinco seis\n" * 4)
    changes = ["train.steps=2", "train.device=cpu", "tokenizer.kind=words", "tokenizer.size=30", "reader.stack.dim=16"]
    changes += ["writer.stack.dim=16", "reader.stack.heads=2", "writer.stack.heads=2"]
    files = [[str(source), str(target)]]
    train("multi30k", data=files, valid=files, overrides=changes, run="small")
    command("int8_quality.py", "runs/small", "--data", source, target, "--out", tmp_path, "beam=2")

    script("int8_quality").main()

    rows = {row["what"].split(",")[0]: row for row in json.loads((tmp_path / "int8_quality.json").read_text())["rows"]}
    assert rows["BLEU that int8 costs"]["value"] == pytest.approx(
        rows["BLEU in fp32"]["value"] - rows["BLEU in int8"]["value"], abs=0.011
    )
    assert "BLEU that int8 costs" in capsys.readouterr().out
