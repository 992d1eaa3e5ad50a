"""Save the results of a benchmark as one JSON file, with everything needed to reproduce them."""

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("saccade", "torch", "tokenizers", "sacrebleu", "numpy")


def save(name: str, rows: Sequence[Mapping[str, Any]], *, minutes: float, folder: Path, notes: str = "") -> Path:
    """Write `folder/name.json`; `notes` explain the numbers to readers."""
    content = {
        "name": name,
        "command": command(),
        "commit": commit(),
        "date": date.today().isoformat(),
        "hardware": hardware(),
        "versions": {package: found for package in PACKAGES if (found := get_version(package))},
        "minutes": round(minutes, 2),
        "notes": notes,
        "rows": list(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def command() -> str:
    """Return the command line without the folders of this machine."""
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)])


def hardware() -> str:
    """Return the name of the GPU if there is one, else of the processor."""
    import torch

    if torch.cuda.is_available():
        return f"one {torch.cuda.get_device_name()}"
    return f"{processor()}, {torch.get_num_threads()} threads"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def get_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def commit() -> str:
    """Return the commit of this tree, marked as dirty if files differ from it."""
    here = Path(__file__).resolve().parent
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
