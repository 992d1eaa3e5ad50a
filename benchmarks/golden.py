"""Does this source tree compute the same, bit for bit, as saccade 0.8? `make golden`

    python benchmarks/golden.py [RECIPE...] [--steps 20] [--jobs 2] [--against COMMIT] [--fresh]
    python benchmarks/golden.py --store       # writes small runs of this version to tests/stored, see golden_store.py

Both trees train every recipe at [tiny], on this machine, with one thread, each in processes of its own with its own
cache and runs folders that are empty at first. golden_record.py says what is recorded: losses of all steps, weights,
checkpoints, predictions, attention, exports. Any difference is listed, and the exit code is then 1.

The other tree is checked out in a temporary git worktree; this one is copied first, so that files may be edited while
it runs. Records of the other tree are kept in ~/.cache/saccade-golden for the same recorder, packages and CPU.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from saccade.config.renames import get_renamed_paths

ROOT, RECORDER = Path(__file__).resolve().parent.parent, Path(__file__).resolve().with_name("golden_record.py")
BASE = "088a6fd07d7f9ebdbfb60ea4ba0d8a1e841f8a2e"  # 0.8
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saccade-golden"

# What has another name in this tree than in the other one.
RENAMED_RECIPES: dict[str, str] = {"nat": "mask-predict"}  # name in the other tree: name here
RENAMED_TENSORS: dict[str, str] = {}  # pattern of re.sub: replacement, such as r"\breader\.": "encoder."
RENAMED_KEYS: dict[str, str] = get_renamed_paths()  # dotted key of a recipe in the other tree: key here
PACKAGES = ("saccade", "saccade_worlds")
RENAMED_SCORES = {"gaze": "attention_lift"}  # name of a metric in the other tree: name here
UNCOMPARED = re.compile(
    r"run files/(plugins\.json|example.*)|state/.* progress\.(split|planned_steps|planned_minutes)|evaluate/.*signature"
)  # new, or only words
# By recipe: facts that were wrong there. LSH attention padded sequences to other lengths than the released Reformer.
CORRECTED = {"reformer": re.compile(r"(own settings|greedy|beam|sampled|int8|attention)/.*")}
NOTHING = re.compile(r"(?!)")
TENSORS = ("run weights/", "checkpoint/", "attention/")  # facts that are named after modules: these are renamed

# The least that shows everything: two checkpoints to average, two validations to choose between, little data.
LEAN = ["train.report_every=1", "train.valid_predictions=4", "data.train.0.examples=400"]
HELD_OUT = {"dates": "data.valid=0.05"}  # by recipe, where validation data is not a list of files
MISSING = object()
Facts = dict[str, Any]


class Compared(NamedTuple):
    recipe: str
    facts: int
    differences: list[str]
    text: str  # of the row in the table


def main() -> None:
    args = arguments()
    if args.store:
        from golden_store import store  # imports torch

        store(ROOT)
        return
    commit = resolve_commit(args.against)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder, check_out(commit, Path(folder) / "old") as old:
        new = copy_tree(Path(folder) / "new")
        names, ours = recipes(old), recipes(new)
        chosen = [name for name in names if not args.recipes or name in args.recipes]
        if unknown := set(args.recipes) - set(names):
            raise SystemExit(f"error: {commit[:9]} has no recipe {', '.join(sorted(unknown))}, only {', '.join(names)}")
        compare = Comparison(old, new, commit, args.steps, fresh=args.fresh)
        print(f"{len(chosen)} recipes, {args.steps} steps each, against {commit[:9]}", flush=True)
        with ThreadPoolExecutor(args.jobs) as pool:
            done = []
            for one in pool.map(compare.recipe, chosen):
                print(one.text, flush=True)
                done.append(one)
    summary(done, added=sorted(set(ours) - {RENAMED_RECIPES.get(name, name) for name in names}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="only these; without any, all")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps, an even number (20)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, of one thread each (2)")
    parser.add_argument("--against", default=BASE, metavar="COMMIT", help="what to compare with (0.8)")
    parser.add_argument("--fresh", action="store_true", help="use no kept records of the other tree")
    parser.add_argument("--store", action="store_true", help="write small runs of this version to tests/stored")
    return parser.parse_args()


class Comparison:
    """Compares records of this tree with those of the other one."""

    def __init__(self, old: Path, new: Path, commit: str, steps: int, *, fresh: bool) -> None:
        self.old, self.new, self.commit, self.steps, self.fresh = old, new, commit, steps, fresh
        self.machine = machine()

    def recipe(self, name: str) -> Compared:
        renamed, overrides = RENAMED_RECIPES.get(name, name), self.overrides(name)
        kept = KEPT / self.key(overrides) / f"{name}.json"
        again = kept.is_file() and not self.fresh
        theirs = json.loads(kept.read_text("utf-8")) if again else record_recipe(self.old, name, overrides)
        if not again and "error" not in theirs:
            write(kept, json.dumps(theirs))
        ours = record_recipe(self.new, renamed, [translate_override(one) for one in overrides])
        found = differences(theirs, ours, corrected=CORRECTED.get(name, NOTHING))
        facts = len(theirs.get("facts", {}))
        said = f"equal    {facts:5d} facts" if not found else f"DIFFERS  {brief(found)}"
        seconds = f"{'kept' if again else theirs.get('seconds', '-')} + {ours.get('seconds', '-')} s"
        return Compared(name, facts, found, f"{name:<30} {said}  ({seconds})")

    def overrides(self, recipe: str) -> list[str]:
        half = max(self.steps // 2, 1)
        every = [f"train.steps={self.steps}", f"train.valid_every={half}", f"train.save_every={half}"]
        return [*every, *LEAN, HELD_OUT.get(recipe, "data.valid.0.examples=16")]

    def key(self, overrides: list[str]) -> str:
        """What a kept record depends on."""
        made_of = [self.commit, digest(RECORDER.read_text("utf-8")), overrides, self.machine]
        return digest(json.dumps(made_of))[:20]


# ---- the trees


def resolve_commit(commit: str) -> str:
    if shutil.which("git") is None:
        raise SystemExit("error: git is needed to check the other tree out")
    found = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        raise SystemExit(f"error: commit {commit[:9]} is not in the history; in a shallow clone: git fetch --unshallow")
    return found.stdout.strip()


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[Path]:
    made = git("worktree", "add", "--detach", "--quiet", str(folder), commit)
    if made.returncode:
        raise SystemExit(f"error: cannot check {commit[:9]} out: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def copy_tree(folder: Path) -> Path:
    """Copy the packages of this tree, and what pip would write about their entry points."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in groups.items()
    ]
    write(folder / "saccade.egg-info" / "PKG-INFO", "Metadata-Version: 2.1\nName: saccade\nVersion: 0\n")
    write(folder / "saccade.egg-info" / "entry_points.txt", "\n".join(points))
    return folder


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


def recipes(tree: Path) -> list[str]:
    """The names that `saccade recipes` lists."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "saccade", "recipes", "list"],
        env=environment(tree), cwd=tree, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"error: `saccade recipes list` fails in {tree.name}: {last_line(done.stderr)}")
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def environment(tree: Path) -> dict[str, str]:
    beside = {"PYTHONPATH": str(tree), "SACCADE_CACHE": str(tree.with_name(f"{tree.name}-cache"))}
    fixed = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **beside, **fixed, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}


def record_recipe(tree: Path, recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Return the record of golden_record.py for one recipe; if it fails, the last line of its output as `error`."""
    work = tree.with_name(f"{tree.name}-runs") / recipe
    work.mkdir(parents=True)
    file = work / "record.json"
    done = subprocess.run(
        [sys.executable, "-P", str(RECORDER), recipe, str(file), *overrides],
        env={**environment(tree), "SACCADE_RUNS": str(work)}, cwd=work, capture_output=True, text=True,
    )  # fmt: skip
    made = json.loads(file.read_text("utf-8")) if done.returncode == 0 else {"error": last_line(done.stderr)}
    shutil.rmtree(work)
    return dict(made)


def machine() -> list[str]:
    """Describe what results depend on besides the code: CPU, C compiler and installed packages."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else platform.processor()
    cpu = re.findall(r"^(?:model name|flags)\s*:.*$", info, re.MULTILINE)[:2] or [info]
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout if shutil.which("cc") else ""
    packages = {
        f"{one.metadata['Name']}=={one.version}" for one in distributions() if one.metadata["Name"] != "saccade"
    }
    return [sys.version, platform.platform(), *cpu, compiler, *sorted(packages)]


def translate_override(override: str) -> str:
    """An override with the keys of this tree."""
    key, equals, value = override.partition("=")
    return RENAMED_KEYS.get(key, key) + equals + value


# ---- the comparison


def differences(old: dict[str, Any], new: dict[str, Any], *, corrected: re.Pattern[str] = NOTHING) -> list[str]:
    """Return a line for each part of the records that differs, except facts that were wrong in the other tree."""
    failed = [f"{name} tree: {one['error']}" for name, one in (("other", old), ("this", new)) if "error" in one]
    if failed:
        return failed
    theirs, ours = (
        {
            rename(name): value
            for name, value in tree["facts"].items()
            if not UNCOMPARED.fullmatch(name) and not corrected.fullmatch(name)
        }
        for tree, rename in ((old, rename_fact), (new, str))
    )
    lines = []
    for part in dict.fromkeys(name.partition("/")[0] for name in (*theirs, *ours)):
        before, after = select_part(theirs, part), select_part(ours, part)
        if wrong := [name for name in before | after if before.get(name, MISSING) != after.get(name, MISSING)]:
            why = new["notes"].get(part) or old["notes"].get(part)
            lines.append(f"{part}: {len(wrong)} of {len(before | after)} differ; {first(wrong[0], before, after, why)}")
    return lines


def select_part(facts: Facts, part: str) -> Facts:
    return {name.partition("/")[2]: value for name, value in facts.items() if name.partition("/")[0] == part}


def first(name: str, before: Facts, after: Facts, why: str | None) -> str:
    """The first difference of a part, in words."""
    if name not in before or name not in after:
        said = f"{name or 'refused'} is only in {'this' if name in after else 'the other'} tree"
        return f"{said} ({why})" if why else said
    old, new = (json.dumps(facts[name], ensure_ascii=False) for facts in (before, after))
    start = max(next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0) - 30, 0)
    return f"first {name}: {old[start : start + 70]} is now {new[start : start + 70]}"


def rename_fact(fact: str) -> str:
    if fact.startswith(TENSORS):
        for pattern, replacement in RENAMED_TENSORS.items():
            fact = re.sub(pattern, replacement, fact)
    if fact.startswith("evaluate/"):
        return ".".join(RENAMED_SCORES.get(word, word) for word in fact.split("."))
    if fact.startswith("state/"):  # which has the schedule of the recipe
        checkpoint, _, key = fact.rpartition(" ")
        fact = f"{checkpoint} {RENAMED_KEYS.get(f'train.{key}', key).removeprefix('train.')}"
    return fact


def brief(found: list[str]) -> str:
    return ", ".join(line.split(":")[0] for line in found)


def summary(done: list[Compared], *, added: list[str]) -> None:
    wrong = [one for one in done if one.differences]
    for one in wrong:
        print(f"\n{one.recipe}")
        for line in one.differences:
            print(f"  {line}")
    if added:
        print(f"\nnot compared, since the other tree lacks them: {', '.join(added)}")
    print(f"\n{len(done) - len(wrong)} of {len(done)} recipes are equal, {sum(one.facts for one in done):,} facts")
    raise SystemExit(1 if wrong else 0)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()
