"""`make environments`: run the tests where something that they usually have is missing, and print a table.

No compiler, no AVX-512, no triton, no HOME, a HOME that cannot be written to, LANG=C, and a copy of the tree in a
folder whose name has spaces and letters beyond ASCII. `--tests` chooses other tests than those of commands, training,
prediction and kernels; `--only NAME` one environment.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    hiding = {"PYTHONPATH": str(folder / "hiding")}
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


def copy_tree(target: Path) -> None:
    """Copy what the tests need: all that git knows or would add, and the environment as a link."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(environment: Environment, tests: list[str], seconds: float) -> dict[str, object]:
    """Run the fast tests in one environment; counts, seconds, and the names of tests that failed."""
    root = Path(environment.folder) if environment.folder else ROOT
    if environment.folder:
        copy_tree(root)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment.variables}
    if environment.folder:  # this copy is imported, not the tree that is installed
        variables["PYTHONPATH"] = str(root)
    present = {name: value for name, value in variables.items() if value is not None}
    command = [
        *environment.launcher,
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-x",
        "--maxfail=20",
        "-m",
        "not slow",
    ]
    command += ["-p", "no:cacheprovider"]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *tests], cwd=root, env=present, capture_output=True, text=True, timeout=seconds
        )
        printed = done.stdout or done.stderr
    except subprocess.TimeoutExpired as error:
        printed = f"{(error.stdout or b'').decode(errors='replace')}\nstopped after {seconds:.0f} s"
    counts = {
        kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", printed[-300:])
    }
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    is_whole = bool(counts) and "stopped after" not in printed
    return {
        **counts,
        "seconds": round(time.monotonic() - begin),
        "names": failed,
        "whole": is_whole,
        "end": printed[-1500:],
    }


def print_row(name: str, result: dict[str, object], show: Callable[[str], None] = print) -> bool:
    """Print one row of the table; True if the tests ran and none failed."""
    good = bool(result["whole"]) and not result["names"]
    counts = ", ".join(
        f"{result[kind]} {kind}" for kind in ("passed", "failed", "error", "errors", "skipped") if kind in result
    )
    show(f"{name:<28} {'green' if good else 'RED':<6} {counts} in {result['seconds']} s")
    for failed in result["names"] if isinstance(result["names"], list) else ():
        show(f"    {failed}")
    if not good and not result["names"]:
        show(str(result["end"]))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--tests", nargs="*", default=[*TESTS], help="files and folders of tests")
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit for one environment")
    parser.add_argument("--json", type=Path, default=None, help="write the results to this file")
    options = parser.parse_args()
    results, good = {}, True
    with tempfile.TemporaryDirectory(prefix="saccade-environments-") as name:
        for environment in list_environments(Path(name)):
            if options.only in environment.name:
                results[environment.name] = run_tests(environment, options.tests, options.seconds)
                good &= print_row(environment.name, results[environment.name])
                sys.stdout.flush()
        Path(name, "locked-home").chmod(0o755)
    if options.json is not None:
        kept = {name: {key: value for key, value in row.items() if key != "end"} for name, row in results.items()}
        options.json.write_text(json.dumps(kept, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
