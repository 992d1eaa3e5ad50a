import io
import json
import sys

from saccade.config.load import validate
from saccade.runs import read_metrics
from saccade.train.log import Log, truncate_metrics

VALUES = {"loss": 2.5, "lr": 1e-3, "tokens_per_second": 12345.0}


def test_reports_become_lines_of_json_and_of_text(tmp_path, capsys):
    with Log(tmp_path, total=100) as to:
        to.report(50, VALUES, left=75.0)
        to.record("valid", step=50, values={"loss": 2.0, "signature": "x"})
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2  # flushed

    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"event": "train", "step": 50, **VALUES},
        {"event": "valid", "step": 50, "loss": 2.0, "signature": "x"},
    ]
    streams = capsys.readouterr()
    assert streams.err == "step 50/100  loss 2.5000  lr 1.00e-03  12,345 tok/s  left 0:01:15\n"
    assert streams.out == ""


def test_other_processes_are_quiet(tmp_path, capsys):
    with Log(tmp_path, total=100, quiet=True) as to:
        to.report(50, VALUES, left=None)
        to.print_line("hello")

    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())


def test_terminal_gets_a_bar_with_the_numbers(tmp_path, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")

    with Log(tmp_path, total=100) as to:
        to.advance(49)
        to.report(50, VALUES, left=None)
        to.print_line("a [note]")

    text = screen.getvalue()
    assert "step 50" in text and "loss 2.5000" in text and "tok/s" in text and "left ?" in text and "a [note]" in text


def test_lines_after_the_restored_step_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"event": "train", "step": step} for step in (1, 2, 3, 4)] + [{"event": "average", "step": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "tr')

    truncate_metrics(path, step=2)

    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    truncate_metrics(tmp_path / "absent.jsonl", step=2)


def test_tensorboard_gets_the_recipe_and_the_numbers(tmp_path):
    recipe = validate({"train": {"loggers": "tensorboard"}})
    with Log(tmp_path, total=None, recipe=recipe) as to:
        to.record("train", step=3, values={"loss": 2.0, "name": "x"})

    [events] = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes() and b"[train.schedule]" in events.read_bytes()
