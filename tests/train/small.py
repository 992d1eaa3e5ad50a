"""A model small enough to be trained, killed and resumed many times, for tests and the processes they start."""

import faulthandler
import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it; here it is there before processes are made of this one

from saccade import runs
from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.layers.regions import compiled_regions
from saccade.model.build.model import build
from saccade.train import api, average, checkpoint, finish, loop, loss, session
from saccade.train import validate as validation
from saccade.train.batches import prefetch
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.objectives import next_token_loss

STACK = {"layers": 1, "dim": 14, "heads": 2, "ff": 17, "dropout": 0.1}
TRAIN = {
    "steps": 24,
    "batch_tokens": 256,
    "accumulate": 2,
    "report_every": 4,
    "valid_every": 10,
    "save_every": 7,
    "valid_predictions": 0,
    "schedule": {"kind": "constant", "lr": 0.005, "warmup_steps": 5},
    "device": "cpu",
}
COPY = {
    "train": [{"files": ["embedded:copy"], "examples": 300}],
    "valid": [{"files": ["embedded:copy-heldout"], "examples": 40}],
}


def small(*, data=COPY, kinds=None, stack=STACK, parts=None, **train):
    """A recipe of some thousand parameters that copies letters; `parts` replace its reader and writer."""
    values = {
        "name": "copy",
        "data": data,
        "tokenizer": {"kind": "characters"},
        **(parts or {"reader": {"stack": stack}, "writer": {"stack": stack}}),
        "train": {**TRAIN, **train},
    }
    return validate(values, kinds=kinds)


def weights(run, step=None):
    """The bytes of the final weights, or of a checkpoint's model and optimizer."""
    if step is None:
        return Path(run, "model.safetensors").read_bytes()
    folder = Path(run, "checkpoints", f"step-{step}")
    return [(folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


def read_metrics(run):
    return runs.read_metrics(Path(run, "metrics.jsonl"))


# ---- processes that are killed

PLACES = {
    "batch": (prefetch.Prefetcher, "next_batch"),
    "update": (loop, "apply_gradients"),
    "validation": (validation, "add_batch"),
    "best": (validation, "write_model_weights"),
    "file": (checkpoint, "write_file"),
    "rename": (checkpoint, "sync_folder"),
    "prune": (checkpoint, "prune"),
    "average": (average.MovingAverage, "update"),
    "save": (session, "save_checkpoint"),
}


def train_and_die(run, train, place, nth):
    """Train and kill the process at the nth call of a function; for "file" after half of it is written."""
    quiet()
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), 0

    def dying(*arguments, **settings):
        nonlocal calls
        calls += 1
        if calls == nth:
            if place == "file":
                arguments[0].write_bytes(arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **settings)

    setattr(owner, name, dying)
    api.train(small(**train), run=Path(run))


def train_or_resume(run, train):
    quiet()
    if Path(run, "recipe.toml").exists():
        api.train(resume=run)
    else:
        api.train(small(**train), run=Path(run))


def train_one_rank(run, train, rank, port, out_of_memory_at=0):
    """Train as one of two processes, as torchrun starts them, with a slow disk: the other one must wait.

    Its nth training pass runs out of memory if `out_of_memory_at` is n.
    """
    faulthandler.dump_traceback_later(100, exit=True, file=sys.__stderr__)  # a process that hangs shows where
    quiet()
    saving = checkpoint.complete_folder

    def slow(*arguments, **settings):
        time.sleep(0.3)
        return saving(*arguments, **settings)

    checkpoint.complete_folder = slow
    forward, calls = loss.MicroBatchLoss.forward, 0

    def limited(self, batch, generator):
        nonlocal calls
        calls += self.training
        if self.training and calls == out_of_memory_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, generator)

    loss.MicroBatchLoss.forward = limited
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    api.train(small(**train), run=Path(run))


def train_compiled(run, train, backend, overrides):
    """Train with torch.compile and write the number of graphs."""
    quiet()
    os.environ["SACCADE_COMPILE_BACKEND"] = backend
    api.train(small(**train), run=Path(run), overrides=["train.compile=true", *overrides])
    counters = torch._dynamo.utils.counters
    counts = {"graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"])}
    Path(run, "counts.json").write_text(json.dumps(counts))


def count_packed_graphs(path):
    """Run compiled steps on packed rows of many lengths and write the number of graphs."""
    quiet()
    os.environ["SACCADE_COMPILE_BACKEND"] = "eager"
    recipe = small()
    model = build(recipe, source_size=9, target_size=9)
    for longest in (10, 20, 50, 100, 200, 300, 30, 12):
        rows = [[5] * longest, [6] * (longest // 2 + 1), [7] * 3]
        batch = pack_batch(Batch({name: pad(rows) for name in ("source", "target")}), budget=1024)
        with compiled_regions():
            next_token_loss(model, batch, torch.Generator())["next-token"].sum.backward()
    Path(path).write_text(str(torch._dynamo.utils.counters["stats"]["unique_graphs"]))


def quiet():
    """Use one thread, discard stderr and skip the plot."""
    torch.set_num_threads(1)
    sys.stderr = io.StringIO()
    finish.plot_loss = lambda run: None
