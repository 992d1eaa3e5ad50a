"""Steps as CUDA graphs, which are recorded and replayed on the CPU."""

import dataclasses

import pytest
import small
import torch
from replay import gpu_steps

from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.train import loop
from saccade.train.batches import layout
from saccade.train.batches.layout import should_capture
from saccade.train.capture import CudaGraphs, Recording, UpdateGraph
from saccade.train.distributed.gradients import ALIGNMENT, BUCKET_SIZE, GradientBuckets
from saccade.train.distributed.ranks import Ranks

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


def test_graphs_are_dropped_before_the_processes_part(fit, monkeypatch):
    """Also after an error: NCCL waits for graphs that hold its operations when a process group ends."""
    sessions = []
    monkeypatch.setattr(small.api, "finish", sessions.append)
    monkeypatch.setattr(small.api.Predictor, "load", lambda *arguments, **settings: None)
    released = []
    for kind in (CudaGraphs, UpdateGraph):
        release = kind.release
        monkeypatch.setattr(kind, "release", lambda self, release=release: (release(self), released.append(self)))
    with gpu_steps(graphs=True):
        fit(**{**SETTINGS, "steps": 5})
        monkeypatch.setattr(loop, "validate", lambda s: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit("failed", **{**SETTINGS, "steps": 5})

    assert len(released) == 4
    for graphs, update in (released[:2], released[2:]):
        assert graphs.seen_shapes and not graphs.captured and update.scale is not None and update.recording is None
    assert sessions[0].cuda_graphs is None


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


def test_sharded_models_have_cuda_graphs_in_one_process_or_if_requested():
    """Graphs of several shards hold collective operations; tensor parallelism has none."""
    settings = {"capturable": True, "device": torch.device("cuda")}
    one, two = Ranks(mesh=object()), Ranks(world_size=2, mesh=object())
    assert should_capture(small.small(), ranks=one, **settings)
    assert not should_capture(small.small(), ranks=two, **settings)
    assert should_capture(small.small(cuda_graphs=True), ranks=two, **settings)
    assert not should_capture(small.small(cuda_graphs=False), ranks=one, **settings)
    tensor = dataclasses.replace(two, tensor=2)
    assert not should_capture(small.small(), ranks=tensor, **settings)
    with pytest.raises(SaccadeError, match=r"train.cuda_graphs=true needs train.parallel.tensor=1; leave"):
        should_capture(small.small(cuda_graphs=True), ranks=tensor, **settings)


def test_a_start_with_shards_says_which_setting_makes_graphs_of_their_steps(monkeypatch):
    two, gpu = Ranks(world_size=2, mesh=object()), torch.device("cuda")
    monkeypatch.setattr(layout, "should_pack", lambda *arguments, **settings: True)

    def hint(ranks=two, device=gpu, **settings):
        return layout.choose_layout(small.small(**settings), build_model(), (), device=device, ranks=ranks).hint

    assert "train.cuda_graphs=true" in hint()
    others = (hint(cuda_graphs=False), hint(cuda_graphs=True), hint(Ranks()), hint(recompute=True))
    assert not any((*others, hint(dataclasses.replace(two, tensor=2)), hint(device=torch.device("cpu"))))


def build_model():
    return build(small.small(), source_size=9, target_size=9)


class CountingRecorder:
    """Counts the functions that run eagerly, are recorded, and are replayed."""

    def __init__(self):
        self.eager = self.recorded = self.replayed = 0

    def run(self, function):
        self.eager += 1
        return function()

    def record(self, function):
        self.recorded += 1
        result = function()

        def replay():
            self.replayed += 1

        return Recording(replay, result)


def test_steps_are_graphs_only_where_all_processes_have_the_same_shape():
    recorder, agreed = CountingRecorder(), [False, True, True, False, True]
    graphs = CudaGraphs(lambda batch: batch, recorder, agree=lambda shape: agreed.pop(0))
    batch = Batch({"source": pad([[4, 5], [6, 7, 8]])})
    for _ in range(5):
        graphs(batch)

    assert (recorder.eager, recorder.recorded, recorder.replayed) == (3, 1, 2)
