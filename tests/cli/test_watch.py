"""`saccade watch` and `saccade train --watch`."""

import importlib.util
import socket
import urllib.request

import pytest

from saccade.extras import get_install_command
from saccade.train import loop

SMALL = (
    "--tiny",
    "data.train.0.examples=300",
    "data.valid=0.1",
    "train.steps=4",
    "train.report_every=2",
    "train.valid_predictions=2",
    "train.batch_tokens=256",
)


def test_what_is_no_run_is_reported(cli, tmp_path):
    result = cli("watch", tmp_path)
    assert result.code == 2
    assert result.err.startswith(f"error: '{tmp_path}' is not a run: expected a folder with recipe.toml")


def test_the_page_is_written_to_a_file(cli, run, tmp_path):
    file = tmp_path / "page.html"
    assert cli("watch", run, "--html", file).out == f"{file}\n"
    assert "<title>" in file.read_text("utf-8") and "http://" not in file.read_text("utf-8").replace(
        "http://www.w3.org", ""
    )


def test_a_file_that_is_no_page_is_refused(cli, run, tmp_path):
    result = cli("watch", run, "--html", tmp_path / "page.txt")
    assert (result.code, result.err) == (2, "error: the file of --html must end in .html, got 'page.txt'; rename it\n")


def test_a_port_in_use_is_reported(cli, run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = cli("watch", run, "--port", port)
    assert result.code == 2 and f"cannot listen on 127.0.0.1 port {port}: address already in use" in result.err


@pytest.mark.parametrize(
    ("words", "verb"), [(("train", "dates", "--tiny", "--watch"), "train --watch"), (("watch",), "watch")]
)
def test_the_extra_is_named_where_it_is_missing(cli, run, monkeypatch, words, verb):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli(*words, *([run] if verb == "watch" else []))
    needed = "fastapi and uvicorn and prometheus-client"
    assert result.code == 2
    assert result.err == f"error: {verb} needs {needed}; install with: {get_install_command('serve')}\n"


def test_training_is_served_while_it_goes_on(cli, tmp_path, monkeypatch, capsys):
    said = []
    original = loop.report

    def report(s):
        original(s)
        address = capsys.readouterr().err.split("watch the training at ")
        if len(address) > 1:
            with urllib.request.urlopen(f"{address[1].split()[0]}/v1/run") as answer:
                said.append(answer.read())

    monkeypatch.setattr(loop, "report", report)
    with socket.create_server(("127.0.0.1", 8010)) if free(8010) else socket.socket():  # the default port is in use
        result = cli("train", "dates", *SMALL, "--watch", "--run", tmp_path / "run")
    assert result.code == 0
    assert len(said) == 1 and b'"state":"training"' in said[0] and b'"name":"run"' in said[0]
    assert sorted(item.name for item in (tmp_path / "run" / "watch").iterdir()) == [
        "step-0.json", "step-2.json", "step-4.json",
    ]  # fmt: skip


def free(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) != 0
