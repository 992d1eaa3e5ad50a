"""How a benchmark records what it measured: one JSON file each, with everything needed to do it again."""

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
    """Writes `folder/name.json`; `notes` is what a reader of the numbers must know."""
    content = {
        "name": name,
        "command": command(),
        "commit": commit(),
        "date": date.today().isoformat(),
        "hardware": hardware(),
        "versions": {package: found for package in PACKAGES if (found := installed(package))},
        "minutes": round(minutes, 2),
        "notes": notes,
        "rows": list(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def command() -> str:
    """What was typed, without the folders of this machine."""
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)])


def hardware() -> str:
    """The GPU where there is one, else the processor."""
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


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def commit() -> str:
    """The commit this tree stands at, marked where files differ from it."""
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
