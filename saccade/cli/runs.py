"""`saccade runs`."""

from __future__ import annotations

import json
from dataclasses import asdict

from saccade.cli.arguments import Json
from saccade.cli.table import aligned


def runs(as_json: Json = False) -> None:
    """List the runs here with their score, size and state."""
    from saccade.runs import list_runs, runs_folder

    found = list_runs()
    if as_json:
        print(json.dumps([asdict(item) for item in found], indent=2))
    elif not found:
        print(f"no runs in {runs_folder()} yet; try `saccade demo`")
    else:
        rows = [(item.name, item.state, f"{item.step:,}", item.score, item.size) for item in found]
        print(aligned([("run", "state", "step", "score", "size"), *rows]))
