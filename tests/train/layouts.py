"""Trainings of one small recipe as processes that gloo connects, one group of them for many layouts and runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import queue
import signal
import socket
import time
from pathlib import Path

import small
import torch
import torch.distributed as dist
from broken_shards import FAULTS
from replay import gpu_steps
from torch.distributed.distributed_c10d import _resolve_process_group as resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from saccade.breaks.patching import patching
from saccade.config.load import load, override, to_override_list
from saccade.train import api, loop
from saccade.train.batches import prefetch
from saccade.train.distributed.parts import get_local
from saccade.train.loss import MicroBatchLoss

STACK = {"layers": 2, "dim": 16, "heads": 4, "ff": 24, "dropout": 0.1, "norm": "pre"}
TRAIN = {
    "steps": 6,
    "batch_tokens": 96,
    "accumulate": 8,
    "report_every": 1,
    "valid_every": 6,
    "save_every": 3,
    "valid_predictions": 6,
    "clip": 1.0,
    "ema": 0.9,
    # The gradient of a bias of keys is 0 but for rounding: with an epsilon of 1e-9, Adam would make steps of the noise.
    "optimizer": {"eps": 1e-6},
}
LAYOUTS = {  # name: number of processes, train.parallel
    "one": (1, {}),
    "ddp-2": (2, {"data": 2}),
    "ddp-4": (4, {"data": 4}),
    "fsdp-2": (2, {"shard": 2}),
    "fsdp-4": (4, {"shard": 4}),
    "hsdp-4": (4, {"data": 2, "shard": 2}),
    "tensor-2": (2, {"tensor": 2}),
    "tensor-2-fsdp-2": (4, {"tensor": 2, "shard": 2}),
}


def set_split(count):
    """Let new runs split each micro-batch by rows into this many."""
    made = small.session.Progress.__init__
    names = [field.name for field in dataclasses.fields(small.session.Progress)]
    made.__defaults__ = tuple(
        count if name == "split" else value for name, value in zip(names, made.__defaults__, strict=True)
    )


class UnusedBlock(torch.nn.Module):
    """A stack with a matrix that nothing uses."""

    def __init__(self, memory_dim=0, *, dim=16):
        super().__init__()
        self.dim, self.used, self.unused = dim, torch.nn.Linear(dim, dim), torch.nn.Linear(dim, dim)

    def forward(self, x, mask, memory=None, state=None):
        return x + torch.tanh(self.used(x)), mask, state, {}


KINDS = {"with-unused": UnusedBlock}


def load_tiny(name, *, parallel, **train):
    """A shipped recipe with few examples, and with dropout in its stacks."""
    recipe = load(name, tiny=True)
    files = ", ".join(f"{{ files = {list(each.files)}, examples = 200 }}" for each in recipe.data.train)
    overrides = [f"data.train=[{files}]", "data.valid=0.1"]
    if hasattr(recipe.writer, "stack"):
        overrides += ["writer.stack.dropout=0.1", "writer.dropout=0.1"]
    overrides += [f"train.parallel.{name}={size}" for name, size in parallel.items()]
    return override(recipe, [*overrides, *to_override_list({f"train.{key}": value for key, value in train.items()})])


def build_recipe(layout="one", **train):
    stack = {**STACK, **train.pop("stack", {})}
    parts = train.pop("parts", None)
    return small.small(**{**TRAIN, **train}, kinds=KINDS, stack=stack, parts=parts)


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_jobs(rank, jobs, results):
    """Run jobs one after the other as one rank; those with fewer processes than this rank are skipped.

    A job is (port, layout, run, settings): `settings` are keys of [train], and `recipe`: the name of one, in its tiny
    form; `resume`, `dtype`, `count_sent`; `gpu_steps`: whether steps are those of a GPU, "eager" or as "graphs";
    `broken`: a fault of the code; `batch_log`: a folder where each rank writes the digests of its batches; and `fault`:
    what happens ("kill", "hang", "nan", "memory"), after which step, and in which rank.
    """
    torch.set_num_threads(1)
    small.finish.plot_loss = lambda run: None
    for number, (port, layout, run, settings) in enumerate(jobs):
        world, parallel = LAYOUTS[layout]
        if rank >= world:
            continue
        try:
            results.put((number, rank, train_job(rank, world, port, parallel, run, dict(settings))))
        except BaseException as error:
            results.put((number, rank, f"{type(error).__name__}: {error}"))


def train_job(rank, world, port, parallel, run, settings):
    """Train or resume as one rank; returns what was printed and the batches that were used."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_default_dtype(getattr(torch, settings.pop("dtype", "float64")))
    resume, printed = settings.pop("resume", False), io.StringIO()
    batches, measured = [], {}
    parallel = {**parallel, **settings.pop("parallel", {})}
    set_split(settings.pop("split", 1))
    os.environ["SACCADE_COMPILE_BACKEND"] = "eager"
    torch._dynamo.reset(), torch._dynamo.utils.counters.clear()
    fault, step, victim = settings.pop("fault", ("", 0, -1))
    batch_log = settings.pop("batch_log", None)
    kind, sent, broken = settings.pop("gpu_steps", None), [], settings.pop("broken", None)
    counting = count_sent(sent) if settings.pop("count_sent", False) else contextlib.nullcontext()
    steps = contextlib.nullcontext() if kind is None else gpu_steps(graphs=kind == "graphs")
    if rank == victim:
        cause_fault(
            fault, step * settings.get("accumulate", TRAIN["accumulate"]) // (world // parallel.get("tensor", 1))
        )
    with (
        contextlib.redirect_stderr(printed),
        record_batches(batches, None if batch_log is None else get_batch_log(batch_log, rank)),
        measure_bytes(measured),
        counting,
        steps as counts,
        patching() as patch,
    ):
        if broken is not None:
            FAULTS[broken](patch)
        if resume:
            overrides = [f"train.parallel.{name}={size}" for name, size in parallel.items()]
            overrides += [f"train.{name}={value}" for name, value in settings.items()]
            api.train(resume=run, overrides=overrides or ["train.parallel.tensor=1"])
        else:
            build = functools.partial(load_tiny, name) if (name := settings.pop("recipe", None)) else build_recipe
            api.train(build(**settings, parallel=parallel), run=Path(run))
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = {"batches": batches, "bytes": measured, "counts": counts, "sent": sent, "compiled": compiled}
    return {"printed": printed.getvalue(), **found}


@contextlib.contextmanager
def measure_bytes(found):
    """Note the bytes of parameters, gradients and optimizer state in this process after the update of each step."""
    original = loop.apply_gradients

    def applying(s, scale):
        original(s, scale)
        trained = [parameter for group in s.optimizer.param_groups for parameter in group["params"]]
        states = [value for parameter in trained for value in s.optimizer.state[parameter].values() if value.ndim]
        kept = {"parameters": s.model.parameters(), "gradients": [one.grad for one in trained], "optimizer": states}
        for name, tensors in kept.items():
            found[name] = sum(get_local(tensor).numel() * tensor.element_size() for tensor in tensors)

    loop.apply_gradients = applying
    try:
        yield
    finally:
        loop.apply_gradients = original


class SentBytes(TorchDispatchMode):
    """Counts the bytes that this process sends in collective operations, with the algorithms of rings."""

    # Passes over the ring, whether the whole tensor is the output or an argument, and the argument that is the group
    KINDS = {
        "c10d::allreduce_": (2, 0, 1),
        "c10d::_allgather_base_": (1, 0, 2),
        "c10d::_reduce_scatter_base_": (1, 1, 2),
        "_c10d_functional::all_reduce": (2, 0, 2),
        "_c10d_functional::all_gather_into_tensor": (1, None, 2),
        "_c10d_functional::reduce_scatter_tensor": (1, 0, 3),
    }

    def __init__(self):
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its own operators come here again, with the parts of this process
        outputs = operator(*args, **(kwargs or {}))
        if kind := self.KINDS.get(operator._schema.name):
            passes, whole, group = kind
            name = args[group]
            found = resolve_process_group(name) if isinstance(name, str) else dist.ProcessGroup.unbox(name)
            tensors = tree_leaves(outputs if whole is None else args[whole])
            self.total += passes * (1 - 1 / found.size()) * sum(each.nbytes for each in tensors)
        return outputs


@contextlib.contextmanager
def count_sent(found):
    """Note the bytes that this process sends in each optimizer step."""
    original = loop.optimizer_step

    def counting(s):
        with SentBytes() as sent:
            original(s)
        found.append(sent.total)

    loop.optimizer_step = counting
    try:
        yield
    finally:
        loop.optimizer_step = original


def cause_fault(fault, passes):
    """Let this process die, hang or compute a loss that is not a number after this many training passes."""
    original, reached = MicroBatchLoss.forward, []

    def failing(self, batch, generator):
        reached.append(self.training)
        losses = original(self, batch, generator)
        if not self.training or sum(reached) <= passes:
            return losses
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "memory" and sum(reached) > passes + 1:
            return losses
        if fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if fault == "hang":
            time.sleep(600)
        return losses._replace(total=losses.total * float("nan"))

    MicroBatchLoss.forward = failing


def get_batch_log(folder, rank):
    return Path(folder) / f"batches-{rank}.txt"


@contextlib.contextmanager
def record_batches(found, log=None):
    """Note a digest of every batch that training takes, also in a file, which remains if the process is killed."""
    original = prefetch.Prefetcher.next_batch

    def noting(self):
        batch = original(self)
        content = b"".join(field.content.numpy().tobytes() for field in self.untransformed.fields.values())
        found.append(hashlib.sha256(content).hexdigest()[:12])
        if log is not None:
            with log.open("a") as file:
                file.write(f"{found[-1]}\n")
        return batch

    prefetch.Prefetcher.next_batch = noting
    try:
        yield
    finally:
        prefetch.Prefetcher.next_batch = original


class Group:
    """Runs jobs in processes that are started once for all of them."""

    def __init__(self, processes, folder):
        self.processes, self.folder = processes, Path(folder)

    def run(self, jobs, *, timeout=240):
        """Run (layout, run name, settings) jobs; return {(number, rank): result}.

        A job with a fault is the last one. Its processes give their errors; one that dies or hangs gives nothing.
        """
        full = [(find_port(), layout, str(self.folder / run), settings) for layout, run, settings in jobs]
        fault = jobs[-1][2].get("fault", ("",))[0]
        expected = sum(LAYOUTS[layout][0] for layout, _, _ in jobs) - (fault in ("kill", "hang"))
        results = self.processes.Queue()
        world = max(LAYOUTS[layout][0] for layout, _, _ in jobs)
        started = [self.processes.Process(target=run_jobs, args=(rank, full, results)) for rank in range(world)]
        for process in started:
            process.start()
        found, end = {}, time.monotonic() + timeout
        try:
            while len(found) < expected:
                number, rank, result = results.get(timeout=max(0.1, end - time.monotonic()))
                found[number, rank] = result
                if isinstance(result, str) and not (fault and number == len(jobs) - 1):
                    raise AssertionError(f"job {jobs[number]} rank {rank}: {result}")
            if fault == "kill":
                started[jobs[-1][2]["fault"][2]].join(max(0.1, end - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"timed out: {jobs}, got {sorted(found)}") from None
        finally:
            for process in started:
                process.join(5)
                process.kill()
                process.join()
        return found
