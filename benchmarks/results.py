"""Save the results of a benchmark as one JSON file, with everything needed to reproduce them."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from saccade.reproduce.environment import get_commit, get_hardware, get_versions


def save(name: str, rows: Sequence[Mapping[str, Any]], *, minutes: float, folder: Path, notes: str = "") -> Path:
    """Write `folder/name.json`; `notes` explain the numbers to readers."""
    content = {
        "name": name,
        "command": command(),
        "commit": commit(),
        "date": date.today().isoformat(),
        "hardware": get_hardware(),
        "versions": get_versions(),
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


def commit() -> str:
    """Return the commit of this tree, marked as dirty if files differ from it."""
    return get_commit() or "unknown"
