"""The campaign of kills notices a training that does not resume exactly, and passes one that does."""

import json
import os
import signal
from pathlib import Path
from random import Random

import kills
import pytest
from kills import Campaign, Moment, name_write
from matrix import Training

STEPS = 4


class Once(Random):
    """Draws the first of all choices: one kill for each run."""

    def choice(self, values):
        return values[0]


def train(run: Path, *, atomic: bool = True, counts_restarts: bool = False) -> None:
    """A training of four steps that writes what a run has; wrong in one way or another."""
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    write(run / "recipe.toml", b"", atomic=True)
    starts = run / "starts"
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    done = len(list(folder.glob("step-*")))
    for step in range(done + 1, STEPS + 1):
        partial = folder / "partial"
        partial.mkdir(exist_ok=True)
        (partial / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + b"w" * 1000 * step)
        partial.rename(folder / f"step-{step}")
    weights = b"final" * 1000 + (starts.read_bytes() if counts_restarts else b"")
    write(run / "metrics.jsonl", json.dumps({"event": "train", "step": STEPS, "loss": 1.0}).encode(), atomic=True)
    if atomic or not (run / "model.safetensors").exists():  # trusts what a killed process has left
        write(run / "model.safetensors", weights, atomic=atomic)


def write(path: Path, content: bytes, *, atomic: bool) -> None:
    if not atomic:
        path.write_bytes(content)
        return
    temporary = path.with_name("temporary")
    temporary.write_bytes(content)
    temporary.replace(path)


@pytest.fixture
def run_campaign(tmp_path, monkeypatch):
    """Kill a training at each of its writes; returns the number of kills and the faults."""

    def run(**faults: bool) -> tuple[int, list[str]]:
        monkeypatch.setattr(kills, "train_or_resume", lambda training, run: train(run, **faults))
        (tmp_path / "kernels").mkdir()
        campaign = Campaign("x", Training("x", ()), tmp_path, tmp_path / "kernels")
        assert any("model.safetensors" in name for name in campaign.writes)
        for number, name in enumerate(campaign.writes, start=1):
            campaign.run_one(iter([(Moment(number, signal.SIGKILL, half=True), None, name)]), Once())
        return campaign.tally.kills.total(), campaign.tally.wrong

    return run


def test_a_training_that_resumes_exactly_passes(run_campaign):
    kills_done, wrong = run_campaign()
    assert kills_done >= 12 and wrong == []


def test_moments_cover_kinds_of_writes_that_were_not_covered(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "train_or_resume", lambda training, run: train(run))
    (tmp_path / "kernels").mkdir()
    campaign, covered = Campaign("x", Training("x", ()), tmp_path, tmp_path / "kernels"), set[str]()
    moments = campaign.draw_moments(Random(3), covered)
    drawn = [next(moments) for _ in range(60)]
    assert covered == {*campaign.kinds}
    assert {delay[1] for _, delay, _ in drawn if delay} == {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}


@pytest.mark.parametrize("fault", [{"atomic": False}, {"counts_restarts": True}])
def test_a_training_that_ends_otherwise_is_noticed(run_campaign, fault):
    _, wrong = run_campaign(**fault)
    assert any("weights differ" in line for line in wrong)


def test_writes_are_named_without_numbers_and_random_letters():
    flags = os.O_WRONLY | os.O_CREAT
    assert name_write("open", ("/x/run/metrics.jsonl", "a", flags)) == "open metrics.jsonl"
    assert name_write("open", ("/x/cache/.pairs-0f12fdfab9b40721-k2j4_x9a/meta.json", "w", flags)) == (
        "open .pairs-N-X/meta.json"
    )
    assert name_write("os.rename", ("/x/checkpoints/.step-12.partial", "/y")) == "rename checkpoints/.step-N.partial"
    assert name_write("open", ("/x/run/metrics.jsonl", "r", os.O_RDONLY)) == ""
    assert name_write("os.listdir", ("/x",)) == ""


def test_a_moment_comes_once(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append(number))
    moment = Moment(3, signal.SIGTERM, half=False)
    for _ in range(6):
        moment.pass_write()
    assert sent == [signal.SIGTERM]


@pytest.mark.parametrize(("kind", "size"), [(signal.SIGKILL, 500), (signal.SIGTERM, 1000)])
def test_a_process_that_is_killed_before_the_flush_leaves_half_of_a_file(monkeypatch, tmp_path, kind, size):
    """Not one that may go on after the signal: what it has written must stay whole."""
    monkeypatch.setattr(os, "kill", lambda process, number: None)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"w" * 1000)
        Moment(1, kind, half=True).pass_write(file.fileno())
    assert (tmp_path / "file").stat().st_size == size
