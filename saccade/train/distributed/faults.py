"""What a training of several processes does when one of them is killed, hangs, or is started again by torchrun."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

from saccade.errors import HungProcess, ProcessLost
from saccade.runs import LAUNCH, RECIPE, get_runs_folder
from saccade.train.distributed.ranks import Ranks

LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")  # errors of gloo
TIMED_OUT = ("Timed out waiting", "timed out")
MIN_GRACE, MAX_GRACE = 5.0, 30.0  # seconds for the other processes to notice the same timeout


def get_restart_count() -> int:
    """How often torchrun has started this group of processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def get_launch_id() -> str:
    """Identify a start of torchrun, the same after it has started its processes again; empty without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return f"{platform.node()} {os.getppid()}" if name == "none" else name


def find_restarted_run(run: Path | None) -> Path | None:
    """Find the folder in which this start of torchrun has trained before it started its processes again.

    `run` is the folder that the user named. None if this is the first start, or nothing was begun. On several machines
    only the agent whose process has ended counts a restart, so that the name of the start decides.
    """
    launch, machines = get_launch_id(), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if not launch or (machines == 1 and not get_restart_count()):
        return None
    folders = [run] if run is not None else sorted(get_runs_folder().glob("*/"), key=lambda path: path.stat().st_mtime)
    for folder in reversed(folders):
        mark = folder / LAUNCH
        if mark.is_file() and mark.read_text(encoding="utf-8") == launch:
            return folder
    return None


def is_begun(folder: Path) -> bool:
    """Whether a restarted run has written its recipe and is resumed; otherwise it begins anew in the same folder."""
    return (folder / RECIPE).is_file()


@contextmanager
def report_lost_processes(ranks: Ranks, *, timeout: float, resume: str) -> Iterator[None]:
    """Turn errors of collective operations into a SaccadeError that says which processes are missing."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if ranks.world_size == 1 or not (isinstance(error, dist.DistError) or "gloo" in text):
            raise
        if any(part in text for part in TIMED_OUT):
            raise build_timeout_error(ranks, timeout=timeout, resume=resume) from None
        if any(part in text for part in LOST):
            raise ProcessLost(
                f"a process of the {ranks.world_size} has ended or was killed; torchrun --max-restarts and --processes "
                f"start all of them again, otherwise go on with: {resume}"
            ) from None
        raise


def build_timeout_error(ranks: Ranks, *, timeout: float, resume: str) -> ProcessLost:
    """Find out which processes have not noticed the timeout too, and so hang elsewhere; build the error about them."""
    store = distributed_c10d._get_default_store()
    store.set(f"timeout/{ranks.rank}", "1")
    time.sleep(min(MAX_GRACE, max(MIN_GRACE, 0.1 * timeout)))
    waiting = [rank for rank in range(ranks.world_size) if store.check([f"timeout/{rank}"])]
    missing = [rank for rank in range(ranks.world_size) if rank not in waiting]
    names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    message = (
        f"the processes waited {timeout:g} s (train.parallel.timeout) for "
        f"{names if missing else 'each other in different operations'}; see what it does there, raise the time if a "
        f"step may take longer, and go on with: {resume}"
    )
    return HungProcess(message) if ranks.rank == min(waiting) else ProcessLost(message)
