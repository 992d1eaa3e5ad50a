"""Tests that need a GPU."""

import json

import pytest
import single_shard
import small
import torch
from safetensors.torch import load_file
from test_convolution import STACKS
from test_recurrent import RECURRENT, stacks

import saccade
from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.train import loop, loss

pytestmark = pytest.mark.cuda
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


def test_out_of_memory_error_names_a_batch_that_fits(fit):
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 2**27  # beside what earlier tests of this process still hold
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(SaccadeError, match=r"out of GPU memory .*train.batch_tokens=\d+"):
            fit(
                **{**CUDA, "batch_tokens": 4_000_000, "on_out_of_memory": "stop"},
                data={"train": [{"files": ["embedded:copy"], "examples": 200_000}]},
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("graphs", [True, False])
def test_step_that_runs_out_of_memory_is_split(fit, monkeypatch, graphs, capfd):
    overrides = ["reader.dropout=0", "writer.dropout=0", "reader.stack.dropout=0", "writer.stack.dropout=0"]
    settings = {**CUDA, "stack": WIDE, "accumulate": 1, "cuda_graphs": graphs, "precision": "fp32"}
    whole = fit("whole", overrides=overrides, **settings)
    forward, sizes = loss.MicroBatchLoss.forward, []

    def limited(self, batch, generator):
        if self.training:
            sizes.append(batch.counts["target"])
            if len(sizes) > 1 and sizes[-1] > 100:  # with graphs, the second call is the capture and replays make none
                torch.empty(2**45, device="cuda", dtype=torch.uint8)  # runs out of memory
        return forward(self, batch, generator)

    monkeypatch.setattr(loss.MicroBatchLoss, "forward", limited)
    split = fit("split", overrides=overrides, **settings)

    assert ("without them" in capfd.readouterr().err) == graphs
    lines = [[line["loss"] for line in small.read_metrics(run) if "loss" in line] for run in (whole, split)]
    assert lines[1] == pytest.approx(lines[0], rel=1e-3)
    assert [line["micro_batches"] for line in small.read_metrics(split) if line["event"] == "out-of-memory"][:1] == [2]


WIDE = {**small.STACK, "dim": 32, "ff": 32}  # heads as wide as the kernels for packed rows want


@pytest.mark.parametrize("system", ["transformer", *STACKS, *sorted(RECURRENT.keys() - {"sutskever"})])
def test_steps_as_graphs_give_the_weights_of_plain_steps(fit, system):
    kind = {"parts": stacks(system)} if system in RECURRENT else {"stack": STACKS.get(system, WIDE)}
    settings = {**CUDA, **kind, "accumulate": 1, "steps": 30, "precision": "fp32"}
    overrides = ["reader.dropout=0", "writer.dropout=0", "reader.stack.dropout=0", "writer.stack.dropout=0"]
    losses = {}
    for graphs in (True, False):
        run = fit(f"graphs-{graphs}", overrides=overrides, cuda_graphs=graphs, **settings)
        losses[graphs] = [line["loss"] for line in small.read_metrics(run)]

    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


def test_graphs_draw_new_dropout_at_every_step(fit, monkeypatch):
    """With the same weights, batch and random numbers, a step has the same loss."""
    seen = []
    monkeypatch.setattr(loop, "apply_gradients", lambda s, scale: None)
    take = small.prefetch.Prefetcher.next_batch
    first = []

    def same(self):
        first[:] = first or [take(self)]
        return first[0]

    monkeypatch.setattr(small.prefetch.Prefetcher, "next_batch", same)
    add = loop.CudaGraphs.__call__

    def watched(self, batch):
        sums = add(self, batch)
        seen.append(sums.total.item())
        return sums

    monkeypatch.setattr(loop.CudaGraphs, "__call__", watched)
    fit(**{**CUDA, "stack": WIDE, "accumulate": 1, "steps": 6, "ema": 0.0})

    assert len(set(seen)) == len(seen) == 6


@pytest.mark.parametrize("name", ["vit", "vit-masked", "cnn-self-attention", "show-attend-tell", "show-attend-read"])
def test_steps_about_pictures_as_graphs_are_plain_ones_however_often_one_trains(name, tmp_path):
    # Twenty steps: sums are added up in another order each time, and what that changes grows.
    still = ["data.train.0.examples=400", "train.steps=20", "train.valid_every=20", "train.save_every=20"]
    still += ["train.device=cuda", "train.precision=fp32", "train.report_every=1", "reader.dropout=0"]
    still += [] if name == "vit-masked" else ["writer.dropout=0"]  # its writer has none
    losses = []
    for number, graphs in enumerate(("true", "true", "false")):
        recipe = load(name, tiny=True, overrides=[*still, f"train.cuda_graphs={graphs}"])
        saccade.train(recipe, run=tmp_path / str(number))
        losses.append([line["loss"] for line in small.read_metrics(tmp_path / str(number))])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] == pytest.approx(losses[2], rel=1e-2)


def test_shards_as_graphs_train_like_eager_ones_and_like_the_whole_model(processes, tmp_path):
    """FSDP2 with NCCL in a process group of one process; a store in memory needs no port."""
    process = processes.Process(target=single_shard.train_in_three_ways, args=(str(tmp_path), "cuda"))
    process.start()
    process.join(240)
    assert process.exitcode == 0
    check_three_ways(tmp_path, graphs=True)


def check_three_ways(folder, *, graphs):
    plain, eager, captured = (json.loads((folder / f"{way}.json").read_text()) for way in ("plain", "eager", "graphs"))
    assert eager["captured"] == plain["captured"] == 0 and (captured["captured"] > 1) == graphs
    assert len({round(loss, 3) for loss in plain["losses"]}) > 6  # the model learns: old gradients would be noticed
    for way in ("eager", "graphs"):
        found = json.loads((folder / f"{way}.json").read_text())
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-3)
        weights, same = (load_file(folder / f"{name}.safetensors") for name in (way, "plain"))
        distance = sum((weights[name] - same[name]).square().sum().item() for name in weights) ** 0.5
        assert distance < 0.01 * sum(value.square().sum().item() for value in same.values()) ** 0.5
