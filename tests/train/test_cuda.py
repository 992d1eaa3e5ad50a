"""What only a GPU can show."""

import pytest
import small
import torch

from saccade.errors import SaccadeError
from saccade.train import loop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = {"device": "cuda", "steps": 8, "valid_every": 4, "save_every": 4, "ema": 0.9, "clip": 1.0}


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_step_waits_for_the_gpu(fit, monkeypatch):
    step = loop.optimizer_step

    def watched(s):
        torch.cuda.set_sync_debug_mode("error" if s.progress.step else "default")  # the first one allocates
        try:
            step(s)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(loop, "optimizer_step", watched)

    assert (fit(**CUDA) / "model.safetensors").is_file()


def test_resumed_run_is_exact_where_asked(fit):
    run = fit(**{**CUDA, "steps": 4, "deterministic": True})
    fit(resume=True, overrides=["train.steps=8"])
    whole = fit("whole", **{**CUDA, "deterministic": True})

    assert small.weights(run, 8) == small.weights(whole, 8)


def test_batch_that_does_not_fit_is_told_with_one_that_does(fit):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        with pytest.raises(SaccadeError, match=r"out of GPU memory .*train.batch_tokens=\d+"):
            fit(
                **{**CUDA, "batch_tokens": 4_000_000},
                data={"train": [{"files": ["embedded:copy"], "examples": 200_000}]},
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
