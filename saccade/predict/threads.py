"""How many threads a program that does nothing but predict should use."""

import os
from pathlib import Path

import torch

TOPOLOGY = Path("/sys/devices/system/cpu")  # Linux
CHOSEN_BY = "OMP_NUM_THREADS"  # whoever sets it has chosen


def use_all_cores() -> None:
    """One thread for each core that this process may use: two threads of one core share what products need."""
    if CHOSEN_BY not in os.environ:
        torch.set_num_threads(cores(available(), TOPOLOGY))


def available() -> set[int]:
    """The numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores(processors: set[int], topology: Path) -> int:
    """How many cores these processors are; as many as there are processors where the system does not say."""
    files = [topology / f"cpu{number}" / "topology" / "thread_siblings_list" for number in processors]
    if not all(file.is_file() for file in files):
        return max(len(processors), 1)
    return max(len({file.read_text().strip() for file in files}), 1)
