"""The script that measures the server with one client and with several, for a second each."""

import json

import pytest

from saccade.config.load import load, save
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.runs import RECIPE, WEIGHTS


@pytest.mark.slow
def test_rows_compare_many_clients_with_one(script, command, tmp_path):
    recipe = load("dates", overrides=["predict.max_length=3"])
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [("3 May 1999", "1999-05-03")])
    tokenizers.save(tmp_path)
    save(recipe, tmp_path / RECIPE)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    write_tensors(named_weights(model), tmp_path / WEIGHTS)
    module = script("serve")
    command("serve.py", tmp_path, "--clients", 3, "--seconds", 0.3, "--rounds", 1, "--folder", tmp_path / "out")
    module.main()
    first, *others = json.loads((tmp_path / "out" / "serve.json").read_text())["rows"]
    assert first["what"] == "`saccade serve`, 3 clients at once: requests"
    assert abs(first["ratio"] - first["value"] / first["peer_value"]) < 0.05
    assert [row["what"].rpartition(", ")[2] for row in others] == ["median", "99th percentile"] * 2
    assert all(row["value"] > 0 for row in others)
