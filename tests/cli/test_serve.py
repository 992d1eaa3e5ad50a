"""`saccade serve` before it starts to serve: argument checks and choice of the model."""

import importlib.util
import json
import socket

import pytest

from saccade.cli.serve import choose_example
from saccade.demo import dates as demo
from saccade.extras import get_install_command
from saccade.runs import RunEntry


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_a_public_address_needs_a_token(cli, run, host):
    result = cli("serve", run, "--host", host)
    assert result.code == 2
    assert result.err == (
        f"error: host {host} is reachable from other machines, but no token is set; "
        "set SACCADE_TOKEN or use 127.0.0.1\n"
    )


@pytest.mark.parametrize("token", ["öffne", " open"])
def test_a_token_must_fit_a_header(cli, run, token, monkeypatch):
    monkeypatch.setenv("SACCADE_TOKEN", token)
    result = cli("serve", run)
    assert result.code == 2
    assert "the token must be ASCII" in result.err


def test_a_port_in_use_is_reported(cli, run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = cli("serve", run, "--port", port)
    assert result.code == 2
    assert result.err == (
        f"error: cannot listen on 127.0.0.1 port {port}: address already in use; "
        "choose another --port (0 picks a free one) or --host\n"
    )


def test_a_host_that_is_not_there_is_reported(cli, run):
    result = cli("serve", run, "--host", "no.such.host.invalid", "--token", "t")
    assert result.code == 2
    assert result.err.startswith("error: cannot listen on no.such.host.invalid port 8000: ")


def test_an_infinite_timeout_is_refused(cli, run):
    result = cli("serve", run, "--timeout", "inf", "--port", 0)
    assert (result.code, "--timeout" in result.err) == (2, True)


def test_the_printed_command_has_an_example_of_the_run(tmp_path):
    """The first one that a terminal shows in a line; none of files and of runs without examples."""
    examples = [
        {"file": "a.png"},
        {"input": "long " * 40},
        {"input": "two\nlines"},
        {"input": "4 juin"},
        {"input": "x"},
    ]
    (tmp_path / "examples.json").write_text(json.dumps(examples))
    assert choose_example([f"{tmp_path},other", "more"]) == "4 juin"
    assert choose_example([str(tmp_path / "none")]) == choose_example([]) == ""


def test_a_folder_that_is_no_run_is_reported(cli, tmp_path):
    result = cli("serve", tmp_path / "nothing", "--port", 0)
    assert result.code == 2
    assert "is not a run: expected a folder with recipe.toml" in result.err


def test_two_runs_of_one_name_are_refused(cli):
    result = cli("serve", "x/a", "y/a", "--port", 0)
    assert result.code == 2
    assert "two runs are called 'a'" in result.err


def test_missing_packages_are_reported_with_how_to_get_them(cli, run, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("serve", run)
    assert result.code == 2
    assert result.err == (
        "error: serve needs fastapi and uvicorn and prometheus-client and python-multipart; "
        f"install with: {get_install_command('serve')}\n"
    )


def entry(name: str, state: str) -> RunEntry:
    return RunEntry(name=name, path=f"runs/{name}", state=state, step=1, score="-", bytes=1)


def test_the_demo_is_trained_once(monkeypatch):
    there = [entry("demo-1", "finished"), entry("demo-2", "finished"), entry("demo-3", "training")]
    monkeypatch.setattr(demo, "list_runs", lambda: [*there, entry("other", "finished")])
    assert str(demo.find_or_train_demo()) == "runs/demo-2"
    monkeypatch.setattr(demo, "list_runs", lambda: there[2:])
    monkeypatch.setattr(demo, "train_demo", lambda run, *, seed: f"trained {run} {seed}")
    assert demo.find_or_train_demo() == "trained None 1"
