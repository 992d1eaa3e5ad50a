"""Memory of the machine: what is free, and the refusal of what would not fit."""

from __future__ import annotations

import os
from pathlib import Path

from saccade.errors import SaccadeError

MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUPS = (  # limit and use of a container, of versions 2 and 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def get_free_bytes() -> int | None:
    """Memory that can still be allocated, within the limit of a container; None where it is not known."""
    found = [count for count in (_read_available(), _read_container_room()) if count is not None]
    return min(found, default=None)


def check_allocation(needed: int, what: str, hint: str) -> None:
    """Raise if something needs more memory than is free, with both numbers; `hint` is what to do."""
    free = get_free_bytes()
    if free is not None and needed > free:
        raise SaccadeError(f"{what} needs {format_bytes(needed)} of memory, but {format_bytes(free)} are free; {hint}")


def is_free(needed: int) -> bool:
    """Whether so much memory can still be allocated, as far as that is known."""
    free = get_free_bytes()
    return free is None or needed <= free


def format_bytes(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:,.1f} {UNITS[unit]}" if unit else f"{count} bytes"


def _read_available() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text(encoding="ascii").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:  # macOS has no such file, and does not tell what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _read_container_room() -> int | None:
    for limit, usage in CONTROL_GROUPS:
        try:
            return max(0, int(limit.read_text(encoding="ascii")) - int(usage.read_text(encoding="ascii")))
        except (OSError, ValueError):  # "max": no limit
            continue
    return None
