"""The command that adds an extra is the one that works where one stands."""

import sys
import tomllib
from pathlib import Path

import pytest

from saccade import extras

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A checkout in whose environment no pip is on the path; the working folder is outside of it."""
    checkout = tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "ROOT", checkout)
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return checkout


def test_a_checkout_is_installed_again_with_the_extra(place, monkeypatch):
    assert extras.get_install_command("serve") == "checkout/.venv/bin/python -m pip install -e 'checkout[serve]'"
    monkeypatch.chdir(place)
    assert extras.get_install_command("serve") == ".venv/bin/python -m pip install -e '.[serve]'"


def test_a_wheel_is_named_as_a_package(place):
    (place / "pyproject.toml").unlink()
    assert extras.get_install_command("serve").endswith(" -m pip install 'saccade[serve]'")


def test_pip_is_enough_where_it_is_that_of_this_python(place, monkeypatch):
    (place / ".venv/bin/pip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(place / ".venv/bin"))
    assert extras.get_install_command("gguf") == "pip install -e 'checkout[gguf]'"


def test_every_extra_that_a_message_names_exists():
    sources = [path.read_text("utf-8") for path in (ROOT / "saccade").rglob("*.py")]
    sources += [path.read_text("utf-8") for path in (ROOT / "saccade_worlds").rglob("*.py")]
    used = {
        text.split(")", 1)[0].strip("\"'") for source in sources for text in source.split("get_install_command(")[1:]
    }
    assert {"serve", "gguf", "rouge", "sound", "urls"} <= used - {"extra: str"} <= set(DECLARED)
