"""What all tests share: one thread, nothing downloaded, a cache, a browser, the same random numbers each time."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; xdist's workers share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SACCADE_STRICT_ENGINES", "1")  # a kernel that fails is an error, no reason to do without

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for laid_out.py


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory) -> None:
    """Tokenised text of tests goes where pytest tidies up; programs that tests start find it too."""
    os.environ["SACCADE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


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
