"""What all tests share: one thread, nothing downloaded, a cache of their own, the same random numbers each time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; xdist's workers share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory) -> None:
    """Tokenised text of tests goes where pytest tidies up; programs that tests start find it too."""
    os.environ["SACCADE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
