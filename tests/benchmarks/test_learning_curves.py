import json

import pytest

SMALL = ["reader.stack.layers=1", "train.batch_tokens=256"]


@pytest.fixture
def benchmark(script):
    return script("learning_curves")


def test_both_starts_are_measured_on_the_same_rows(benchmark, command, tmp_path, monkeypatch):
    drawn = {}
    made = benchmark.build_recipe
    monkeypatch.setattr(benchmark, "pretrain", lambda folder: language(benchmark, folder))
    monkeypatch.setattr(
        benchmark, "build_recipe", lambda *given, **more: drawn.setdefault(given[1:], made(*given, **more))
    )
    few = {**benchmark.TINY, "steps": 2, "shares": [0.002, 0.004]}
    monkeypatch.setattr(benchmark, "TINY", few)
    monkeypatch.setattr(benchmark, "read_labelled_pairs", lambda *given, **more: [("The dog sleeps.", "right")])
    command("learning_curves.py", "--tiny", "--out", tmp_path, *SMALL)

    benchmark.main()

    rows = json.loads((tmp_path / "learning_curves.json").read_text())["rows"]
    assert [row["what"] for row in rows] == [
        f"`classify`, {count} labels, {start}: accuracy" for start in ("pretrained", "fresh") for count in (20, 40)
    ]
    assert (tmp_path / "learning_curves.png").stat().st_size > 1000
    one, other = drawn.values()
    assert one.init and not other.init
    assert (one.reader, one.data, one.tokenizer) == (other.reader, other.data, other.tokenizer)


def language(benchmark, folder):
    few = ["train.steps=1", "train.valid_every=9", "train.save_every=9", "tokenizer.kind=words"]
    small = ["writer.stack.layers=1", "writer.stack.dim=8", "writer.stack.ff=9"]
    benchmark.saccade.train("shakespeare", tiny=True, run=folder / "language", overrides=[*few, *small])
    return folder / "language"


def test_a_run_and_data_are_asked_for(benchmark, command, capsys):
    command("learning_curves.py", "--data", "x.tsv")
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "give --init RUN, --data FILE and --valid FILE, or --tiny" in capsys.readouterr().err
