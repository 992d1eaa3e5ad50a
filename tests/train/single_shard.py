"""One training of a GPU or CPU in three ways: plain, and sharded over a single process, eagerly and as CUDA graphs."""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from saccade.model.run import DEVICE
from saccade.train.distributed.parts import gather_whole
from saccade.train.loop import optimizer_step
from saccade.train.machine import deterministic_mode

STEPS = 12
SETTINGS = ["train.precision=fp32", "train.accumulate=2", "train.clip=0.5"]
SETTINGS += ["train.schedule={kind='constant', lr=0.01, warmup_steps=1}"]
STILL = [f"{part}.dropout=0" for part in ("reader", "writer", "reader.stack", "writer.stack")]


def train_in_three_ways(folder, device):
    """Write losses, weights and numbers of graphs of each way to a folder."""
    os.environ[DEVICE] = device  # of this process alone
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    scale_gpu = importlib.import_module("scale_gpu")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as runs:
        bench = scale_gpu.Bench(tiny=True, folder=Path(runs), out=Path(folder), seconds=0.0)
        ways = {"plain": ["train.cuda_graphs=false"], "eager": ["train.cuda_graphs=false"], "graphs": []}
        for way, overrides in ways.items():
            base = scale_gpu.SYSTEMS["transformer"]
            system = base._replace(overrides=[*base.overrides, *SETTINGS, *STILL, *overrides])
            recipe = bench.load(system)
            with deterministic_mode(recipe.train, bench.device):
                s = bench.open(recipe, system, "plain" if way == "plain" else "fsdp")
                write_training(s, Path(folder), way)
            del s
            scale_gpu.release_memory()
        dist.destroy_process_group()


def write_training(s, folder, way):
    losses = []
    for _ in range(STEPS):
        s.meter.clear()
        optimizer_step(s)
        losses.append(s.meter.read(s.ranks)["loss"])
    s.prefetcher.close()
    weights = {name: gather_whole(tensor).clone() for name, tensor in s.model.named_parameters()}
    save_file(weights, folder / f"{way}.safetensors")
    captured = len(s.cuda_graphs.captured) if s.cuda_graphs else 0
    (folder / f"{way}.json").write_text(json.dumps({"losses": losses, "captured": captured}))
