"""Check, build, try and tag a release: `make release VERSION=x.y.z`.

The tag is set only if everything before it passed. Nothing is pushed or uploaded; the last lines say how to do that.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Step = Callable[[Path, str], None]
# Enough to write outputs in the form of dates, within a minute.
SHORT = ["train.steps=200", "train.valid_every=100", "train.save_every=100", "train.valid_predictions=20"]

NEXT = """
{tag} is set. To publish it:
  git push origin {tag}
  .venv/bin/python -m twine upload dist/saccade-{version}*
and make a release of the tag on the forge, with the section {version} of CHANGELOG.md as its text.
To take it back: git tag -d {tag}
"""


class ReleaseError(Exception):
    """A reason why there is no release, in one line."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="release.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("version", help="such as 1.2.3")
    try:
        release(ROOT, parser.parse_args(words).version, (check_code, build, try_wheel))
    except ReleaseError as error:
        raise SystemExit(f"error: {error}") from None


def release(root: Path, version: str, steps: Sequence[Step]) -> None:
    """Tag the commit in `root` if all checks of its files and then all `steps` pass."""
    if problems := find_problems(root, version):
        raise ReleaseError("\n       ".join([f"{version or 'the version'} cannot be released", *problems]))
    for step in steps:
        step(root, version)
    if problems := find_problems(root, version):
        raise ReleaseError("\n       ".join(["the tree changed while it was checked", *problems]))
    tag = f"v{version}"
    run("git", "tag", "--annotate", tag, "--message", f"saccade {version}", folder=root)
    print(NEXT.format(tag=tag, version=version))


# ---- the files


def find_problems(root: Path, version: str) -> list[str]:
    """Return what is wrong with the tree for a release of this version, one line each."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return [f"expected a version such as 1.2.3, got {version!r}; run make release VERSION=1.2.3"]
    found = [*find_git_problems(root, version), *find_changelog_problems(root, version)]
    places = {
        "saccade/__init__.py": r'^__version__ = "(.*)"$',
        "CITATION.cff": r"^version: \"?([^\s\"]+)\"?$",
    }
    for name, pattern in places.items():
        match = re.search(pattern, (root / name).read_text("utf-8"), re.MULTILINE)
        got = match[1] if match else "none"
        if got != version:
            found.append(f"{name}: expected version {version}, got {got}; write {version} there")
    stored = root / "tests" / "stored" / version.rpartition(".")[0]
    if not any(stored.glob("*/expected.json")):
        relative = stored.relative_to(root)
        found.append(f"{relative}: no stored run; write some with .venv/bin/python benchmarks/golden.py --store")
    return found


def find_git_problems(root: Path, version: str) -> list[str]:
    found = []
    if changed := run("git", "status", "--porcelain", folder=root, quiet=True).splitlines():
        names = ", ".join(line[3:] for line in changed[:5])
        found.append(f"the tree has {len(changed)} changed or untracked files ({names}); commit or remove them")
    if run("git", "tag", "--list", f"v{version}", folder=root, quiet=True):
        found.append(f"the tag v{version} exists already; take the next version")
    return found


def find_changelog_problems(root: Path, version: str) -> list[str]:
    sections = read_changelog(root)
    found = []
    if not sections.get(version):
        is_there = "is empty" if version in sections else "is missing"
        found.append(f"CHANGELOG.md: the section {version} {is_there}; write what changed under ## {version}")
    if sections.get("Unreleased"):
        found.append(f"CHANGELOG.md: there are entries under Unreleased; move them to ## {version}")
    return found


def read_changelog(root: Path) -> dict[str, str]:
    """Return the text of each section of CHANGELOG.md by its version."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    parts = re.split(r"^## \[?([\w.]+)\]?.*$", text, flags=re.MULTILINE)[1:]
    return {version: body.strip() for version, body in zip(parts[::2], parts[1::2], strict=True)}


# ---- the steps


def check_code(root: Path, version: str) -> None:
    run("make", "check", folder=root)


def build(root: Path, version: str) -> None:
    """Build the source archive, and the wheel from that archive, so that it is known to have all that a build needs."""
    shutil.rmtree(root / "dist", ignore_errors=True)
    run(sys.executable, "-P", "-m", "build", folder=root)
    made = sorted(path.name for path in (root / "dist").iterdir())
    wanted = [f"saccade-{version}-py3-none-any.whl", f"saccade-{version}.tar.gz"]
    if made != wanted:
        raise ReleaseError(f"expected {' and '.join(wanted)} in dist, got {', '.join(made)}")
    run(sys.executable, "-P", "-m", "twine", "check", "--strict", *(f"dist/{name}" for name in made), folder=root)


def try_wheel(root: Path, version: str) -> None:
    """Install the wheel into a new environment; train and predict with it outside of the source tree."""
    with tempfile.TemporaryDirectory(prefix="saccade-release-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python, saccade = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "saccade"
        fresh = {"SACCADE_CACHE": f"{folder}/cache", "SACCADE_RUNS": f"{folder}/runs", "OMP_NUM_THREADS": "1"}
        wheel = root / "dist" / f"saccade-{version}-py3-none-any.whl"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run(*pip, "-c", root / "constraints.txt", wheel, folder=folder)
        got = run(saccade, "--version", folder=folder).split()[-1]
        if got != version:
            raise ReleaseError(f"expected saccade --version to be {version}, got {got}")
        run(saccade, "train", "dates", "--tiny", "--run", "tried", *SHORT, folder=folder, settings=fresh)
        dates = ["5 May 1994", "mercredi 5 mai 1994"]
        outputs = run(saccade, "predict", "tried", *dates, folder=folder, settings=fresh).splitlines()
        if len(outputs) != len(dates) or not all(re.search(r"\d{4}-\d{2}-\d{2}", line) for line in outputs):
            raise ReleaseError(f"expected a date for each of {len(dates)} inputs, got {outputs}")


def run(*words: str | Path, folder: Path, settings: dict[str, str] | None = None, quiet: bool = False) -> str:
    """Run a program and return its output, which is shown too unless `quiet`; a failure is a ReleaseError."""
    command = [str(word) for word in words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (settings or {})
    if not quiet:
        print("$", *command, flush=True)
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if not quiet:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed with exit code {done.returncode}; nothing was tagged")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
