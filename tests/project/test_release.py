"""`make release` tags only a clean tree whose files agree on the version, and only after all steps passed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = {
    "saccade/__init__.py": '"""A package."""\n\n__version__ = "1.2.3"\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-01\n\n* One.\n\n## 1.2.2\n\n* Two.\n",
    "tests/stored/1.2/gpt2/expected.json": "{}\n",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_script", ROOT / "scripts" / "release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """A repository that is ready for the release of 1.2.3."""
    for variable in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(variable, "tests")
    for variable in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(variable, "tests@localhost")
    for name, text in FILES.items():
        write(tmp_path / name, text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "all")


def test_a_tree_that_is_ready_is_tagged_after_all_steps(tree, script, capsys):
    done = []
    script.release(tree, "1.2.3", [lambda root, version: done.append(git(root, "tag"))])
    assert done == [""]
    assert git(tree, "tag") == "v1.2.3"
    assert git(tree, "rev-parse", "v1.2.3^{commit}") == git(tree, "rev-parse", "HEAD")
    assert "git push origin v1.2.3" in capsys.readouterr().out


def test_a_step_that_fails_leaves_no_tag(tree, script):
    def fail(root: Path, version: str) -> None:
        script.run(sys.executable, "-c", "raise SystemExit(3)", folder=root)

    with pytest.raises(script.ReleaseError, match="failed with exit code 3; nothing was tagged"):
        script.release(tree, "1.2.3", [fail])
    assert git(tree, "tag") == ""


def test_a_tree_that_a_step_changes_is_not_tagged(tree, script):
    with pytest.raises(script.ReleaseError, match="the tree changed while it was checked"):
        script.release(tree, "1.2.3", [lambda root, version: write(root / "left-over", "")])
    assert git(tree, "tag") == ""


def test_changed_and_untracked_files_are_named(tree, script):
    write(tree / "saccade" / "__init__.py", FILES["saccade/__init__.py"] + "\n")
    write(tree / "new.txt", "")
    [problem] = script.find_problems(tree, "1.2.3")
    assert problem.startswith("the tree has 2 changed or untracked files")
    assert "new.txt" in problem


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("saccade/__init__.py", '__version__ = "1.2.2"\n', "saccade/__init__.py: expected version 1.2.3, got 1.2.2"),
        ("CITATION.cff", "version: 1.2.2\n", "CITATION.cff: expected version 1.2.3, got 1.2.2"),
        ("CITATION.cff", "title: x\n", "CITATION.cff: expected version 1.2.3, got none"),
        ("CHANGELOG.md", "## 1.2.2\n\n* x\n", "CHANGELOG.md: the section 1.2.3 is missing"),
        ("CHANGELOG.md", "## 1.2.3\n\n## 1.2.2\n\n* x\n", "CHANGELOG.md: the section 1.2.3 is empty"),
        (
            "CHANGELOG.md", "## [Unreleased]\n\n* y\n\n## 1.2.3\n\n* x\n",
            "CHANGELOG.md: there are entries under Unreleased; move them to ## 1.2.3",
        ),
    ],
)  # fmt: skip
def test_files_that_disagree_are_named(tree, script, name, text, problem):
    write(tree / name, text)
    commit(tree)
    [found] = script.find_problems(tree, "1.2.3")
    assert found.startswith(problem)


def test_a_version_without_stored_run_is_refused(tree, script):
    (tree / "tests" / "stored" / "1.2" / "gpt2" / "expected.json").unlink()
    commit(tree)
    [problem] = script.find_problems(tree, "1.2.3")
    assert problem.startswith("tests/stored/1.2: no stored run")


def test_a_tag_that_exists_is_refused(tree, script):
    git(tree, "tag", "v1.2.3")
    assert script.find_problems(tree, "1.2.3") == ["the tag v1.2.3 exists already; take the next version"]


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1"])
def test_a_version_in_another_form_is_refused(tree, script, version):
    [problem] = script.find_problems(tree, version)
    assert problem.startswith("expected a version such as 1.2.3, got ")


def test_the_command_ends_with_one_message(script, monkeypatch, tree):
    monkeypatch.setattr(script, "ROOT", tree)
    with pytest.raises(SystemExit, match="error: 1.2.4 cannot be released\n.*section 1.2.4 is missing"):
        script.main(["1.2.4"])
