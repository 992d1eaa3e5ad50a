import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks/ by its name; it finds the others there, and all are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (FOLDER / f"{name}.py").exists():
            del sys.modules[name]


@pytest.fixture
def command(monkeypatch):
    """The words that a script was called with."""
    return lambda *words: monkeypatch.setattr(sys, "argv", [str(word) for word in words])


@pytest.fixture
def contenders_of(script, monkeypatch):
    """The contenders that a file of benchmarks/ registers, with a suite of nothing else: [(suite, class)]."""
    suite, registered = ModuleType("common"), []
    suite.Contender = object
    suite.contender = lambda name: lambda made: registered.append((name, made)) or made
    monkeypatch.setitem(sys.modules, "common", suite)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def register(name):
        script(name)
        return registered

    return register
