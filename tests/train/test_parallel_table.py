"""The whole table of benchmarks/scale.py: every layout against one process, also after kill -9, in many minutes."""

import importlib
import sys
from pathlib import Path

import pytest

# Steps of the cases that do not fix them
CASES = {"exact": 200, "eps": 100, "kill": 12, "float32": 50, "repeat": 10, "bytes": 1, "restarts": 120}


@pytest.fixture
def scale(monkeypatch):
    """The script benchmarks/scale.py."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    return importlib.import_module("scale")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_row_of_the_table_holds(case, processes, tmp_path, scale):
    assert scale.CASES.keys() == CASES.keys()
    rows = list(scale.CASES[case](scale.Bench(tmp_path, steps=CASES[case], processes=processes)))

    assert rows and not [row for row in rows if not row["holds"]]


@pytest.mark.slow
def test_two_agents_of_torchrun_train_together_and_a_worker_that_dies_comes_back(tmp_path, scale):
    """As two machines would, on 127.0.0.1; a worker is killed before the first checkpoint."""
    row = scale.run_two_agents(tmp_path)

    assert row["holds"], row
