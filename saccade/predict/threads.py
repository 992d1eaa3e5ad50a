"""Choose the number of threads of a process that only runs inference."""

import os
from pathlib import Path

import torch

TOPOLOGY = Path("/sys/devices/system/cpu")  # Linux
THREADS_VARIABLE = "OMP_NUM_THREADS"  # if set, it is respected
DEVICE_VARIABLE = "SACCADE_DEVICE"  # as above


def use_all_cores() -> None:
    """Use one thread per physical core: hyper-threads of one core compete for its matrix units."""
    if THREADS_VARIABLE not in os.environ:
        torch.set_num_threads(count_cores(get_available_cpus(), TOPOLOGY))


def share_devices(number: int, count: int) -> dict[str, str]:
    """Return the environment of one of `count` processes that share the cores or GPUs, unless the user chose them."""
    threads, gpus = max(1, count_cores(get_available_cpus(), TOPOLOGY) // count), torch.cuda.device_count()
    chosen = {THREADS_VARIABLE: str(threads), **({DEVICE_VARIABLE: f"cuda:{number % gpus}"} if gpus > 1 else {})}
    return {name: value for name, value in chosen.items() if name not in os.environ}


def get_available_cpus() -> set[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def count_cores(cpus: set[int], topology: Path) -> int:
    """Count the physical cores of these logical CPUs; without topology information, the logical CPUs."""
    files = [topology / f"cpu{number}" / "topology" / "thread_siblings_list" for number in cpus]
    if not all(file.is_file() for file in files):
        return max(len(cpus), 1)
    return max(len({file.read_text().strip() for file in files}), 1)
