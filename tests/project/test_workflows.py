"""The workflow of the forge, the hooks of pre-commit and the Makefile agree with pyproject.toml and constraints.txt."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pre_commit.clientlib import load_config

ROOT = Path(__file__).parent.parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


def list_steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflow_calls_make_targets_that_exist(workflow):
    commands = [step["run"] for step in list_steps(workflow) if "run" in step]
    targets = {match[1] for command in commands if (match := re.fullmatch(r"make ([\w-]+)(?: [A-Z]+=.*)?", command))}
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    assert targets == {"check", "test", "test-all", "coverage"}
    assert targets <= phony
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in phony)
    assert len(commands) == len([command for command in commands if command.startswith("make ")])


def test_workflow_tests_the_python_versions_of_the_classifiers(workflow):
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    declared = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert tested == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_workflow_tests_the_oldest_and_the_newest_torch(workflow):
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    [oldest] = [line.partition(">=")[2] for line in PROJECT["dependencies"] if line.startswith("torch>=")]
    assert matrix["torch"] == [""]  # the one of constraints.txt
    assert [job["torch"] for job in matrix["include"]] == [f"{oldest}.0"]


def test_shards_of_the_nightly_tests_are_all_of_them(workflow):
    shards = workflow["jobs"]["nightly"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]


def test_workflow_may_only_read_and_names_versions_of_actions(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]
    actions = [step["uses"] for step in list_steps(workflow) if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in actions)


@pytest.mark.parametrize(("torch", "triton"), [("2.11.0", "triton==3.6.0"), ("2.12.0", "triton")])
def test_make_installs_another_torch_into_an_environment_of_its_own(torch, triton, tmp_path):
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    file = f".venv-torch-{torch}/constraints.txt"
    subprocess.run(["make", f"TORCH={torch}", file], cwd=tmp_path, check=True, capture_output=True)
    old, new = ((tmp_path / name).read_text("utf-8").splitlines() for name in ("constraints.txt", file))
    changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
    assert changed == [(f"torch=={PINS['torch']}", f"torch=={torch}"), (f"triton=={PINS['triton']}", triton)]
    (tmp_path / "pyproject.toml").touch()
    planned = subprocess.run(["make", "-n", f"TORCH={torch}", "test"], cwd=tmp_path, capture_output=True, text=True)
    assert f"-c {file} -e '.[dev]'" in planned.stdout
    assert ".venv/" not in planned.stdout


def test_hooks_of_pre_commit_have_the_versions_of_the_constraints():
    config = load_config(str(ROOT / ".pre-commit-config.yaml"))
    assert {repo["repo"] for repo in config["repos"]} == {"local"}  # nothing is fetched from a forge
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy", "end-of-file-fixer"} <= hooks.keys()
    for hook in hooks.values():
        pinned = dict(item.split("==") for item in hook["additional_dependencies"])
        assert pinned == {name: PINS[name] for name in pinned}
        assert ("ruff" in pinned) == hook["id"].startswith("ruff")
        assert pinned or hook["entry"].startswith(".venv/bin/")
