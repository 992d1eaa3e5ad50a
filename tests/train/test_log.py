import io
import json
import sys
import types

import small

from saccade.config.load import validate
from saccade.display import find_notebook_display
from saccade.runs import read_metrics
from saccade.train.api import train
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


class NotebookShell:
    """Stands for the shell of a notebook: keeps what cells display, each output with its updates."""

    kernel = None

    def __init__(self, monkeypatch):
        self.outputs = []
        module = types.ModuleType("IPython")
        module.get_ipython = lambda: self
        module.display = types.ModuleType("IPython.display")
        module.display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", module.display)

    def display(self, content, *, display_id):
        assert display_id is True  # otherwise it could not be updated
        versions = [content._repr_html_()]
        self.outputs.append(versions)
        return types.SimpleNamespace(update=lambda content: versions.append(content._repr_html_()))


def test_in_a_notebook_training_has_one_output_that_is_updated_and_can_be_run_again(tmp_path, monkeypatch, capsys):
    shell = NotebookShell(monkeypatch)
    recipe = small.small(steps=8, valid_every=1, report_every=1)
    for _ in range(2):  # a cell that is executed twice
        train(recipe, run=tmp_path / "run", overwrite=True)

    assert len(shell.outputs) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    for versions in shell.outputs:
        first, last = versions[0], versions[-1]
        assert "<progress" not in first
        assert "training &#x27;copy&#x27; on the CPU" in last and '<progress value="8" max="8">' in last
        assert "the run is in" in last and "step 3  validation" not in last  # only the last lines
        assert last.count("\n") < 15


def test_outside_of_notebooks_there_is_no_display(monkeypatch):
    shell = NotebookShell(monkeypatch)
    assert find_notebook_display() == shell.display
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)  # imported by another library
    assert find_notebook_display() is None
