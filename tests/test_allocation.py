"""What needs more memory than is free is refused before it is allocated, with the numbers."""

import resource

import pytest
import torch

import saccade
from saccade import allocation
from saccade.config.load import load
from saccade.data.batching import batches
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.plan.counts import build_on_meta
from saccade.train.transfer import model as initial

GB = 10**9


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(allocation, "get_free_bytes", lambda: 2 * GB)


def test_free_memory_is_that_of_the_machine_or_of_its_container(monkeypatch, tmp_path):
    (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable:    2000 kB\n")
    (tmp_path / "limit").write_text("5000000\n")
    (tmp_path / "use").write_text("4000000\n")
    monkeypatch.setattr(allocation, "MEMORY_INFO", tmp_path / "info")
    monkeypatch.setattr(allocation, "CONTROL_GROUPS", ())
    assert allocation.get_free_bytes() == 2_048_000
    monkeypatch.setattr(allocation, "CONTROL_GROUPS", ((tmp_path / "limit", tmp_path / "use"),))
    assert allocation.get_free_bytes() == 1_000_000
    (tmp_path / "limit").write_text("max\n")
    assert allocation.get_free_bytes() == 2_048_000


def test_a_size_is_written_with_its_unit():
    assert [allocation.format_bytes(n) for n in (7, 2_500, 74 * 10**9, 12 * 10**18)] == [
        "7 bytes", "2.5 kB", "74.0 GB", "12.0 EB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["reader.stack.ff=100000000"],
            r"a tensor .100000000, \d+. of the model needs \d+.\d GB of memory, but 2.0 GB",
        ),
        (["reader.stack.dim=1000000", "writer.stack.dim=1000000"], r"of the model needs \d.* TB of memory, but 2.0 GB"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(free, settings, message):
    recipe = load("dates", overrides=settings)
    with pytest.raises(SaccadeError, match=message):
        build(recipe, source_size=100, target_size=100)


def test_a_plan_may_be_larger_than_the_machine_but_not_than_any_memory(free):
    recipe = load("dates", overrides=["reader.stack.ff=100000000"])
    assert sum(p.numel() for p in build_on_meta(recipe).parameters()) > 10**10
    huge = load("dates", overrides=["reader.stack.dim=1000000000", "writer.stack.dim=1000000000"])
    with pytest.raises(SaccadeError, match=r"a tensor .* would need 12.0 EB, more than any memory; lower the sizes of"):
        build_on_meta(huge)


def test_training_needs_memory_for_gradients_and_optimizer(monkeypatch):
    model = build(load("dates"), source_size=100, target_size=100)
    count = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(allocation, "get_free_bytes", lambda: 12 * count)
    initial.check_training_memory(model, torch.device("cpu"))
    monkeypatch.setattr(allocation, "get_free_bytes", lambda: 12 * count - 1)
    with pytest.raises(SaccadeError, match=f"training {count:,} parameters needs .* of memory, but .* free; train a"):
        initial.check_training_memory(model, torch.device("cpu"))
    initial.check_training_memory(model, torch.device("meta"))


def test_a_training_that_does_not_fit_takes_no_memory(free, tmp_path):
    """Each tensor of 1.3 GB would fit, and all together would not."""
    copy = ["data.train=[{files=['embedded:copy'], examples=20}]", "data.valid=0.2", "train.ema=0"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SaccadeError, match=r"training \d,\d+,\d+,\d+ parameters needs 20.6 GB of memory, but 2.0 GB"):
        saccade.train("dates", tiny=True, run=tmp_path / "run", overrides=[*copy, "reader.stack.ff=5000000"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


def test_an_epoch_of_too_many_rows_is_refused(free):
    class Rows:
        corpus_sizes, weights = [1000, 10], [1e6, 1.0]

        def __len__(self) -> int:
            return 1010

    with pytest.raises(SaccadeError, match="an epoch of 1,000,000,010 rows needs 4.0 GB of memory, but 2.0 GB are"):
        batches.shuffle_rows(Rows(), seed=1, epoch=0)  # type: ignore[arg-type]
