"""Damage every file of runs, caches and exports, one at a time, and run the commands that read it.

Each command must work, or end with one line of error; and no other file may be lost or changed.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaign import choose_memory_folder, judge, prepare, run_cases
from cases import Case
from execute import Verdict, snapshot

PREDICTIONS = {
    "dates": ["3 May"],
    "gpt2": ["Once"],
    "classify": ["a film"],
    "tag": ["the cat"],
    "bert": ["a dog", "--embed", "mean"],
    "vit": ["data/pictures"],
    "captions": ["data/pictures/blue square"],
    "speech": ["data/sounds/a.wav"],
    "t5": ["a"],
    "questions": ["--field", "image=data/pictures/red circle/b.jpg", "--field", "question=what ?"],
}
LOCK = ".training"


def list_commands(run: str) -> list[list[str]]:
    """Commands that read a run."""
    commands = [
        ["predict", run, *PREDICTIONS[run]],
        ["runs"],
        ["watch", run, "--html", "w.html"],
        ["export", run, "out"],
    ]
    if run in ("dates", "vit"):
        commands += [
            ["train", "--resume", run, "train.steps=3"],
            ["plan", f"runs/{run}"],
            ["view", run, *PREDICTIONS[run]],
        ]
    return commands


def damage(content: bytes, foreign: bytes) -> dict[str, bytes | None]:
    """The ways in which a file can be damaged."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else b"\x01"
    zeros = content[:middle] + bytes(min(512, len(content) - middle)) + content[middle + 512 :]
    ways = {"gone": None, "cut": content[:middle], "empty": b"", "flipped": flipped, "zeros": zeros, "foreign": foreign}
    return {name: changed for name, changed in ways.items() if changed != content}


def list_cases(world: Path, files: list[str]) -> Iterator[tuple[str, Case]]:
    """All cases with the name of their damage."""
    foreign = (world / "data/pictures/red circle/a.png").read_bytes()
    for path in files:
        parts = path.split("/")
        if parts[0] == "runs":
            commands = list_commands(parts[1])
        elif parts[0] == "foreign" and len(parts) == 3:
            commands = [["import", f"foreign/{parts[1]}", "--run", "new"]]
        else:
            continue
        for way, content in damage((world / path).read_bytes(), foreign).items():
            for argv in commands:
                yield way, Case([*argv], {path: content})
    for run in ("dates", "vit"):
        inside = [path for path in files if path.startswith(f"runs/{run}/")]
        folders = sorted({str(Path(path).parent) for path in inside})
        for readonly in ([*folders], [f"runs/{run}/checkpoints"], [f"runs/{run}"], [*folders, *inside]):
            for argv in list_commands(run):
                yield "read-only", Case([*argv], readonly=readonly)
    yield "read-only", Case(["export", "gpt2", "folder"], readonly=["folder"])
    yield "read-only", Case(["import", "foreign/gpt2", "--run", "new"], readonly=["runs"])
    yield "read-only", Case(["predict", "dates", "3 May", "--output", "folder/x.txt"], readonly=["folder"])
    yield "read-only", Case(["train", "dates", "--tiny", "--run", "new", "train.steps=1"], readonly=["runs"])


def find_fault(case: Case, verdict: Verdict, memory: int) -> str:
    """What a damaged file must not lead to; empty if the command worked or refused as it should."""
    if fault := judge(verdict, memory):
        return fault
    errors = re.findall(r"^error: .*$", verdict.printed, re.MULTILINE)
    if verdict.code not in (0, 2):
        return f"exit code {verdict.code}"
    if verdict.code == 2 and len(errors) != 1:
        return f"{len(errors)} lines of error"
    lost = [name for name in verdict.changed if Path(name).name != LOCK]
    if lost and (verdict.code == 2 or case.argv[0] != "train"):
        return f"changed or removed {', '.join(lost[:3])}"
    return ""


@dataclass
class DamageSummary:
    """Counts by the kind of damage."""

    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def run_damage(show: Callable[[str], None], only: str = "", shard: tuple[int, int] = (1, 1)) -> DamageSummary:
    """Run all cases, or the k-th of n parts of them; those whose command contains `only`."""
    summary = DamageSummary()
    with tempfile.TemporaryDirectory(prefix="saccade-damage-", dir=choose_memory_folder()) as name:
        Path(name).chmod(0o755)
        world = prepare(Path(name))
        files = sorted(path for path, info in snapshot(world).items() if info[0] == "file" and (world / path).is_file())
        named = [item for item in list_cases(world, files) if only in " ".join(item[1].argv)]
        named = named[shard[0] - 1 :: shard[1]]
        ways = iter([way for way, _ in named])

        def report(case: Case, verdict: Verdict, memory: int) -> None:
            way = next(ways)
            summary.cases[way] += 1
            summary.refused[way] += verdict.code == 2
            fault = find_fault(case, verdict, memory)
            if fault:
                summary.faults.append(f"{way} {[*case.files] or case.readonly}: {' '.join(case.argv)}: {fault}")
                show(f"FAULT {summary.faults[-1]}\n{verdict.detail or verdict.printed}")

        run_cases(world, iter([case for _, case in named]), report)
    return summary
