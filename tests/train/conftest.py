import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import torch

from saccade.config.schema import Recipe, TokenReader, TokenWriter, TransformerStack
from saccade.data.batching.batch import Batch, pad
from saccade.model.build.model import build


@pytest.fixture
def model():
    stack = TransformerStack(layers=1, dim=14, heads=2, ff=19, dropout=0.1)
    torch.manual_seed(3)
    recipe = Recipe(reader=TokenReader(stack=stack), writer=TokenWriter(stack=stack))
    return build(recipe, source_size=13, target_size=13)


@pytest.fixture
def batch():
    source = pad([[5, 6, 7, 2], [8, 2], [9, 10, 2]])
    target = pad([[7, 6, 5, 11, 2], [8, 2], [10, 2]])
    return Batch({"source": source, "target": target})


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """Folder of runs without an explicit path."""
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def processes(cache):
    """A multiprocessing context whose processes start with everything imported."""
    context = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        context.set_forkserver_preload(["small"])
        first = context.Process(target=os.getpid)
        first.start(), first.join()
        yield context


@pytest.fixture(scope="session")
def run_in_process(processes):
    """Run a function in a process of its own and return its exit code."""

    def run(function, *arguments):
        process = processes.Process(target=function, args=arguments)
        process.start()
        process.join(240)
        return process.exitcode

    return run


@pytest.fixture
def fit(tmp_path):
    """Train the small model in this process and return the folder of the run."""
    import small

    def run(name="run", *, overrides=(), kinds=None, resume=False, **settings):
        path = tmp_path / name
        if resume:
            small.api.train(resume=path, overrides=overrides, kinds=kinds)
        else:
            small.api.train(small.small(**settings), run=path, overrides=overrides, kinds=kinds)
        return path

    return run


sys.path.insert(0, str(Path(__file__).parent))  # for small.py, here and in the processes that tests start
