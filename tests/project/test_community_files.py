"""Files for people who join, report or cite: forms of the forge, citation, and links between pages at the root."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import saccade

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
PAGES += sorted((ROOT / "docs" / "decisions").glob("*.md"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
NOT_IN_SDIST = {".ci", ".dockerignore", ".gitignore"}  # neither built from nor tested


def test_citation_names_this_version_and_its_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == saccade.__version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # required by the format


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_something_and_name_each_answer_once(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form["name"]
    assert form["description"]
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] for part in questions)
    assert len({part["id"] for part in questions}) == len(questions)
    assert any(part.get("validations", {}).get("required") for part in questions)


def test_there_are_forms_for_bugs_features_and_questions():
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    config = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text("utf-8"))
    assert config["blank_issues_enabled"] is False


def test_the_supported_version_is_the_current_one():
    minor = saccade.__version__.rpartition(".")[0]
    assert f"\n| {minor} | yes |" in (ROOT / "SECURITY.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert links or page.name.startswith("library-")
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_contributing_leads_to_all_pages_for_contributors():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    wanted = ["docs/decisions/index.md", "docs/log.md", "docs/deprecation.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
    assert not [name for name in [*wanted, "CITATION.cff"] if f"]({name})" not in text]


def test_decisions_have_the_same_parts_and_are_all_listed():
    index = (ROOT / "docs" / "decisions" / "index.md").read_text("utf-8")
    pages = [path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "index.md"]
    assert not [path.name for path in pages if f"]({path.name})" not in index]
    for path in pages:
        if not path.name.startswith("library-"):
            headings = re.findall(r"^## (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert headings == ["Status", "Context", "Options", "Decision", "Consequences"], path.name


def test_source_archive_has_everything_that_is_tracked():
    """Tests run from an unpacked archive, too: it leaves out only what neither builds nor tests anything."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout: what is tracked is asked of git")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["sdist"]
    included = {name.removeprefix("/") for name in settings["include"]} | {"LICENSE", "pyproject.toml"}
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {name.partition("/")[0] for name in done.stdout.splitlines()}
    assert tracked - included == NOT_IN_SDIST
    assert included <= tracked
