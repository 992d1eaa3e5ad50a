import json

import pytest


@pytest.mark.slow
def test_a_pretrained_encoder_is_compared_with_a_fresh_one(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("bert_sst2.py", "--tiny", "--out", tmp_path, "train.batch_tokens=512", "data.valid.0.examples=20")
    script("bert_sst2").main()
    found = json.loads((tmp_path / "bert_sst2.json").read_text())
    values = {row["what"]: row["value"] for row in found["rows"]}
    assert values["pretraining: steps"] == 60
    apart = values["SST-2 dev, pretrained: accuracy"] - values["SST-2 dev, fresh: accuracy"]
    assert abs(apart - values["SST-2 dev, pretrained above fresh"]) < 0.02
    assert "train.batch_tokens=512" in found["notes"]
