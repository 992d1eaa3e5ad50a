"""`make environments`: run the tests where something that they usually have is missing, and print a table.

No compiler, no AVX-512, no triton, no HOME, a HOME that cannot be written to, LANG=C, and a copy of the tree in a
folder whose name has spaces and letters beyond ASCII. `--tests` chooses other tests than those of commands, training,
prediction and kernels; `--only NAME` one environment. `--jobs 12 --parts 3` runs thirds of the tests of the
environments side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/cli", "tests/train", "tests/predict", "tests/layers/test_native.py", "tests/layers/test_step_attention.py",
    "tests/layers/test_stack_step.py", "tests/layers/test_fma.py", "tests/layers/test_vnni.py", "tests/test_files.py",
)  # fmt: skip
# Read by sitecustomize.py, which Python imports first: hides a module, or the features of the processor.
HIDING = """
import importlib.machinery, os

finder = importlib.machinery.PathFinder
find_any = finder.find_spec

def find_spec(cls, name, path=None, target=None):
    hidden = name.partition(".")[0] in os.environ.get("HIDDEN_MODULES", "").split(",")
    return None if hidden else find_any(name, path, target)

finder.find_spec = classmethod(find_spec)
if os.environ.get("HIDE_AVX512"):
    import torch
    torch.cpu._is_vnni_supported = lambda: False
"""


# As root, permissions of files mean nothing unless the capability to override them is dropped.
OBEYING = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
COUNTS = ("passed", "failed", "error", "errors", "skipped")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}  # of torch's own kernels


class Environment(NamedTuple):
    """What differs from the usual: variables (None removes one), the folder of the tests, and what starts them."""

    name: str
    variables: dict[str, str | None]
    folder: str = ""
    launcher: tuple[str, ...] = ()


def list_environments(folder: Path) -> list[Environment]:
    """All environments; `folder` is for what they need."""
    (folder / "hiding").mkdir()
    (folder / "hiding" / "sitecustomize.py").write_text(HIDING)
    locked = folder / "locked-home"
    locked.mkdir(mode=0o555)
    obeying = OBEYING if os.getuid() == 0 else ()
    hiding = {"PYTHONPATH": join_paths(folder / "hiding")}
    return [
        Environment("usual", {}),
        Environment("no compiler", {"CC": str(folder / "no-compiler")}),
        Environment("no AVX-512", {**hiding, "HIDE_AVX512": "1", **AVX2}),
        Environment("no triton", {**hiding, "HIDDEN_MODULES": "triton"}),
        Environment("no HOME", {"HOME": None, "SACCADE_CACHE": None}),
        Environment("read-only HOME", {"HOME": str(locked), "SACCADE_CACHE": None}, launcher=obeying),
        Environment("LANG=C", {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        Environment("spaces and ü in the folder", {}, folder=str(folder / "größe und mehr")),
    ]  # fmt: skip


def join_paths(folder: Path) -> str:
    """The search path of modules with a folder before what it has already."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def copy_tree(target: Path) -> None:
    """Copy the packages, the tests and what they read."""
    for name in ("saccade", "saccade_worlds", "tests", "docs", "benchmarks", "scripts", ".github"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, target / path.name)


def run_tests(environment: Environment, tests: list[str], seconds: float, shard: str) -> dict[str, object]:
    """Run a part of the fast tests in one environment; counts, seconds, and the names of tests that failed."""
    root = Path(environment.folder) if environment.folder else ROOT
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment.variables}
    if environment.folder:  # this copy is imported, not the tree that is installed
        variables["PYTHONPATH"] = join_paths(root)
    present = {name: value for name, value in variables.items() if value is not None}
    command = [
        *environment.launcher, sys.executable, "-P", "-m", "pytest", "-q", "--maxfail=20", "-m", "not slow",
        "-p", "no:cacheprovider", "--shard", shard,
    ]  # fmt: skip
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *tests], cwd=root, env=present, capture_output=True, text=True, timeout=seconds
        )
        printed = done.stdout or done.stderr
    except subprocess.TimeoutExpired as error:
        printed = f"{(error.stdout or b'').decode(errors='replace')}\nstopped after {seconds:.0f} s"
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", printed[-300:])
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    is_whole = (bool(found) or "deselected" in printed[-300:]) and "stopped after" not in printed
    return {
        **{kind: int(count) for count, kind in found},
        "seconds": round(time.monotonic() - begin),
        "names": names,
        "whole": is_whole,
        "end": "" if is_whole and not names else printed[-5000:],
    }


def add_results(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of one environment from those of its parts."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update({kind: part[kind] for kind in COUNTS if kind in part})
    names = [name for part in parts for name in part["names"]]
    whole, end = all(part["whole"] for part in parts), "".join(part["end"] for part in parts)
    return {**counts, "seconds": sum(part["seconds"] for part in parts), "names": names, "whole": whole, "end": end}


def print_row(name: str, result: dict[str, Any], show: Callable[[str], None] = print) -> bool:
    """Print one row of the table; True if the tests ran and none failed."""
    good = bool(result["whole"]) and not result["names"]
    counts = ", ".join(f"{result[kind]} {kind}" for kind in COUNTS if kind in result)
    show(f"{name:<28} {'green' if good else 'RED':<6} {counts} in {result['seconds']} s")
    for line in (*result["names"], *result["end"].splitlines()):
        show(f"    {line}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--tests", nargs="*", default=[*TESTS], help="files and folders of tests")
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit for one part of one environment")
    parser.add_argument("--jobs", type=int, default=1, help="processes of pytest at a time")
    parser.add_argument("--parts", type=int, default=1, help="parts of the tests of an environment, by file")
    parser.add_argument("--json", type=Path, default=None, help="write the results to this file")
    options = parser.parse_args()
    shards = [f"{number}/{options.parts}" for number in range(1, options.parts + 1)]
    with tempfile.TemporaryDirectory(prefix="saccade-environments-") as name, ThreadPoolExecutor(options.jobs) as pool:
        chosen = [one for one in list_environments(Path(name)) if options.only in one.name]
        for folder in {one.folder for one in chosen if one.folder}:
            copy_tree(Path(folder))
        running = [
            [pool.submit(run_tests, one, options.tests, options.seconds, shard) for shard in shards] for one in chosen
        ]
        results, good = {}, True
        for one, parts in zip(chosen, running, strict=True):
            results[one.name] = add_results([part.result() for part in parts])
            good &= print_row(one.name, results[one.name])
            sys.stdout.flush()
            if options.json is not None:
                options.json.write_text(json.dumps(results, indent=2) + "\n")
        Path(name, "locked-home").chmod(0o755)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
