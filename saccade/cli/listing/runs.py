"""`saccade runs`: list runs."""

from __future__ import annotations

import json
from dataclasses import asdict

from saccade.cli.arguments import Json
from saccade.cli.table import align_columns


def runs(as_json: Json = False) -> None:
    """List all runs with their state, last step, best score and size of the weights."""
    from saccade.runs import get_runs_folder, list_runs

    entries = list_runs()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    elif not entries:
        print(f"no runs in {get_runs_folder()} yet; try `saccade demo`")
    else:
        rows = [(entry.name, entry.state, f"{entry.step:,}", entry.score, entry.size) for entry in entries]
        print(align_columns([("run", "state", "step", "score", "size"), *rows]))
