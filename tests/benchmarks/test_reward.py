import json

import pytest

SMALL = ("train.batch_tokens=256", "objectives=[{ kind = 'reward', samples = 2 }]")


@pytest.fixture
def benchmark(script):
    return script("reward")


def test_script_saves_what_was_measured(benchmark, command, tmp_path, monkeypatch):
    """Both continue the same run for as many steps; what is set for the reward leaves likelihood alone."""
    monkeypatch.setattr(benchmark, "load", small(benchmark.load))
    command("reward.py", "--tiny", "--steps", 2, "--out", tmp_path, *SMALL)

    benchmark.main()

    rows = json.loads((tmp_path / "reward.json").read_text())["rows"]
    assert [row["what"] for row in rows] == [
        f"`gnmt`, {when}, {how}: {metric} on val"
        for when in ("before", "2 steps by likelihood", "2 steps by reward")
        for how in ("word by word", "searched")
        for metric in ("GLEU", "BLEU")
    ]
    assert all(0 <= row["value"] <= 100 for row in rows)


def small(load):
    few = ["data.train=[{ files = ['embedded:dates'], examples = 60 }]", "predict.max_length=5", "train.steps=1"]
    few += ["data.valid=[{ files = ['embedded:dates-heldout'], examples = 5 }]"]
    few += [f"{side}.stack.dim=8" for side in ("reader", "writer")]
    return lambda name, *, overrides=(), **settings: load(
        name, overrides=[*(few if settings else []), *overrides], **settings
    )


def test_both_are_trained_alike(benchmark, tmp_path):
    both = benchmark.continuations(tmp_path / "run", tmp_path, tiny=False, overrides=["train.steps=7"], settings=[])
    assert both["likelihood"].train == both["reward"].train and both["reward"].train.steps == 7
    assert [both[name].objectives[0].kind for name in ("likelihood", "reward")] == ["r-drop", "reward"]
    assert {recipe.init for recipe in both.values()} == {str(tmp_path / "run")}
    assert both["likelihood"].data == both["reward"].data
    assert both["likelihood"].data.valid[0].files[1].endswith("val.de.gz")


@pytest.mark.parametrize("words", [[], ["--tiny", "--data", "x"]])
def test_data_are_asked_for(benchmark, command, words, capsys):
    command("reward.py", *words)
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "give --data FOLDER, or --tiny" in capsys.readouterr().err
