import json

import pytest
import torch


@pytest.fixture
def memory(script):
    return script("loss_memory")


def test_both_ways_compute_the_same(memory):
    given = memory.inputs(memory.TINY, "cpu")

    torch.testing.assert_close(memory.in_pieces(*given), memory.at_once(*given))


def test_rows_are_ours_divided_by_theirs(memory):
    rows = memory.rows({"ours": (2 * 2**20, 0.5), "plain": (8 * 2**20, 1.0)}, memory.TINY)

    assert [(row["value"], row["unit"], row["peer_value"], row["ratio"]) for row in rows] == [
        (2, "MiB", 8, 0.25),
        (500, "ms", 1000, 0.5),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the GPU where there is one")
def test_script_saves_what_was_measured(memory, command, tmp_path, monkeypatch):
    measured = {"ours": (2.0**20, 0.25), memory.ON_CPU[1]: (2.0**22, 0.5)}
    monkeypatch.setattr(memory.multiprocessing, "get_context", lambda way: InThisProcess(measured))
    command("loss_memory.py", "--tiny", "--out", tmp_path)

    memory.main()

    saved = json.loads((tmp_path / "loss_memory_cpu.json").read_text())
    assert [(row["unit"], row["ratio"]) for row in saved["rows"]] == [("MiB", 0.25), ("ms", 0.5)]


def test_a_step_takes_time_and_grows_by_no_less_than_nothing(memory):
    peak, seconds = memory.on_cpu("ours", memory.TINY)

    assert peak >= 0 and seconds > 0


class InThisProcess:
    """A pool that starts nothing: what was measured is given back."""

    def __init__(self, measured):
        self.measured = measured

    def Pool(self, *arguments, **settings):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def apply(self, function, arguments):
        return self.measured[arguments[0]]
