"""What all tests share: one thread, nothing downloaded, a cache, a browser, the same random numbers each time."""

import gc
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; xdist's workers share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SACCADE_STRICT_ENGINES", "1")  # a kernel that fails is an error, no reason to do without
os.environ.setdefault("SACCADE_DEVICE", "cpu")  # for tests that choose no device; those marked cuda name theirs

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for devices.py, laid_out.py, signature_checks.py

import signature_checks

signature_checks.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N parts of the tests")
    parser.addoption("--check-all-calls", action="store_true", help="check the signature of every call, not of some")


def pytest_configure(config: pytest.Config) -> None:
    signature_checks.Sampling.all_calls = config.getoption("--check-all-calls")
    if find_spec("absl") is not None:  # tests import rouge-score directly too
        from saccade.score.metrics.rouge import keep_stderr_open

        keep_stderr_open()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported and collected: it is many times what a test makes."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    signature_checks.COUNTS.clear()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen shard: slow tests one by one, the others by file, since they share its fixtures.

    Tests marked cuda are skipped without a GPU.
    """
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    number, _, count = config.getoption("--shard").partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--shard: expected K/N with 1 <= K <= N, got {config.getoption('--shard')!r}")

    def is_chosen(item: pytest.Item) -> bool:
        name = item.nodeid if item.get_closest_marker("slow") else item.nodeid.partition("::")[0]
        return zlib.crc32(name.encode()) % int(count) == int(number) - 1

    left_out = [item for item in items if not is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_chosen(item)]


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory) -> None:
    """Tokenised text of tests goes where pytest tidies up; programs that tests start find it too."""
    folder = tmp_path_factory.mktemp("cache")
    link_kernels(tmp_path_factory, folder)
    os.environ["SACCADE_CACHE"] = str(folder)


def link_kernels(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> None:
    """Let all processes of xdist use the same compiled C kernels: compiling them takes seconds."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    shared.mkdir(mode=0o700, exist_ok=True)
    (folder / "kernels").symlink_to(shared)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def draw_loss() -> Iterator[Callable[[Path], None]]:
    """Let trainings draw no loss curve, which takes longer than they do; gives the function that draws it."""
    from saccade.train import finish

    with pytest.MonkeyPatch.context() as patch:
        original = finish.plot_loss
        patch.setattr(finish, "plot_loss", lambda run: None)
        yield original


@pytest.fixture(scope="module")  # while it lives, no other test of the process can start an event loop
def browser() -> Iterator[Any]:
    """Chromium, in which pages are tested."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright; install it")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("the page is tested in a browser, and there is no chromium here; install it")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
