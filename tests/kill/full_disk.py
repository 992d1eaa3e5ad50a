"""Trainings on a disk that is full at some moment: one line of error, and the same command continues when it is free.

The disk is a small tmpfs, so mounting must be allowed; elsewhere this part is skipped, with a message.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kills import Campaign, Place, read_result
from matrix import Training

DISK_BYTES, PAGE = 4_000_000, 4096
MAX_LEVELS = 24  # of free bytes; from none to what a run needs


@contextmanager
def mount_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of some megabytes; None where mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def leave_free(disk: Path, count: int) -> None:
    """Fill the disk up to `count` bytes, rounded to pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    info = os.statvfs(disk)
    filling = info.f_bavail * info.f_frsize - count
    if filling > 0:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, filling // PAGE * PAGE)


def measure_folder(folder: Path) -> int:
    """Bytes that the files of a folder take, in whole pages, while a checkpoint is there twice."""
    return 2 * sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


def fill_disk(campaign: Campaign, disk: Path, *, part: str) -> tuple[int, list[str]]:
    """Train with the run or the cache on a disk of many levels of free space; how many were refused, and faults."""
    training: Training = campaign.training
    first = campaign.make_place()
    first.launch(training)
    needed = measure_folder(first.run if part == "run" else first.cache)
    refused, wrong = 0, list[str]()
    for level in range(0, needed, max(PAGE, needed // MAX_LEVELS // PAGE * PAGE)):
        place = campaign.make_place()
        on_disk = disk / f"{part}-{level}"
        place.run, place.cache = (on_disk, place.cache) if part == "run" else (place.run, prepare_cache(place, on_disk))
        leave_free(disk, level)
        codes = place.launch(training)
        said = [line for line in place.read_logs().splitlines() if line.startswith("error: ")]
        refused += codes == [2]
        if codes not in ([0], [2]) or (codes == [2] and len(said) != 1):
            wrong.append(f"{part} with {level} bytes: {codes}: {place.read_logs()}")
        (disk / "ballast").unlink(missing_ok=True)
        codes = place.launch(training)
        found = read_result(place.run) if codes == [0] else {}
        if codes != [0] or found["weights"] != campaign.expected["weights"]:
            wrong.append(f"{part} with {level} bytes, then with enough: {codes}: {place.read_logs()}")
        subprocess.run(["rm", "-rf", str(on_disk)], check=True)
    return refused, wrong


def prepare_cache(place: Place, on_disk: Path) -> Path:
    """An empty cache on the disk, with the compiled kernels of the place."""
    on_disk.mkdir()
    (on_disk / "kernels").symlink_to((place.cache / "kernels").readlink())
    return on_disk
