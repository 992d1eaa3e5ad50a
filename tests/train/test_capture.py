"""Steps as CUDA graphs, which are recorded and replayed on the CPU."""

import pytest
import small
import torch
from replay import gpu_steps

from saccade.errors import SaccadeError
from saccade.train import loop
from saccade.train.batches.layout import should_capture
from saccade.train.distributed.gradients import ALIGNMENT, BUCKET_SIZE, GradientBuckets

SETTINGS = {"steps": 12, "batch_tokens": 48, "valid_every": 12, "save_every": 12, "report_every": 1, "clip": 0.5}


def train(fit, name, *, graphs, **settings):
    with gpu_steps(graphs=graphs) as counts:
        run = fit(name, **{**SETTINGS, **settings})
    losses = [line["loss"] for line in small.read_metrics(run)]
    return small.weights(run), losses, counts


@pytest.mark.parametrize("accumulate", [1, 3])
def test_replayed_steps_are_eager_steps_bit_for_bit(fit, accumulate):
    """One graph of a whole step, and one of the passes of a micro-batch with another of the update."""
    weights, losses, _ = train(fit, "eager", graphs=False, accumulate=accumulate)
    same_weights, same_losses, counts = train(fit, "graphs", graphs=True, accumulate=accumulate)

    assert counts["replayed"] > counts["recorded"] > 1
    assert same_losses == losses and same_weights == weights


def test_timed_steps_run_eagerly_between_replayed_ones(fit, monkeypatch):
    weights, _, _ = train(fit, "eager", graphs=False, accumulate=2)
    monkeypatch.setattr(loop, "write_profile", lambda s, found: None)
    same, _, counts = train(fit, "profiled", graphs=True, accumulate=2, profile=True)

    assert same == weights and counts["replayed"]


def test_gradients_keep_their_place_in_few_aligned_buckets():
    module = torch.nn.ModuleDict({name: torch.nn.Linear(3, size) for name, size in (("a", 5), ("b", BUCKET_SIZE // 3))})
    module["last"] = torch.nn.Linear(2, 2).double()
    module["a"].bias.requires_grad_(False)
    buckets = GradientBuckets(module)
    buckets.zero()
    places = [parameter.grad.data_ptr() for parameter in module.parameters() if parameter.requires_grad]

    assert [flat.dtype for flat in buckets.flat] == [torch.float32, torch.float32, torch.float64]
    assert module["a"].bias.grad is None
    assert all((place - buckets.flat[0].data_ptr()) % (4 * ALIGNMENT) == 0 for place in places[:2])
    for _ in range(2):
        module["a"](torch.ones(1, 3)).sum().backward()
    assert module["a"].weight.grad.unique() == 2 and buckets.flat[0].sum() == 2 * 15
    module.zero_grad(set_to_none=True)
    buckets.zero()
    assert places == [parameter.grad.data_ptr() for parameter in module.parameters() if parameter.requires_grad]
    assert not any(flat.any() for flat in buckets.flat)


def test_sharded_models_have_no_cuda_graphs():
    settings = {"capturable": True, "is_sharded": True, "device": torch.device("cuda")}
    assert not should_capture(small.small(), **settings)
    with pytest.raises(
        SaccadeError, match=r"train.cuda_graphs=true needs the whole model in each process \(train.para"
    ):
        should_capture(small.small(cuda_graphs=True), **settings)
