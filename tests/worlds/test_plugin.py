"""The worlds are a plugin: saccade does not know them, finds them by their entry points, and reads their old names."""

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import saccade_worlds
from saccade.config import plugins
from saccade.config.descriptions import get_descriptions
from saccade.config.load import list_recipes, load, save, validate
from saccade.config.renames import get_renamed_keys
from saccade.config.table import Table
from saccade.errors import SaccadeError
from saccade_worlds.tables import ActionWriter, PlayData, PlaySettings, TemporalDifference, ValuesWriter

ROOT = Path(saccade_worlds.__file__).parent.parent
CORE = sorted((ROOT / "saccade").rglob("*.py"))
WORDS = re.compile(
    r"saccade_worlds|\bworlds\b|episode|q-learning|navigat|temporal.difference|gymnasium|greeting|replay buffer"
    r"|\"actions\"|\"navigate\"|\"walk\"|\"interact\"",
    re.IGNORECASE,
)
TABLES = (ActionWriter, PlayData, PlaySettings, TemporalDifference, ValuesWriter)


def test_the_installed_package_names_its_plugin():
    found = {point.group: point.value for point in entry_points(name="worlds")}
    assert found == {
        "saccade.plugins": "saccade_worlds",
        "saccade.recipes": "saccade_worlds:recipes",
        "saccade.lectures": "saccade_worlds.lectures",
        "saccade.breaks": "saccade_worlds.lectures.breaks",
    }
    assert dict(plugins.load_installed())["navigate"][0] is saccade_worlds.KINDS["navigate"]


def test_saccade_does_not_import_it():
    imported = {
        name.split(".")[0]
        for path in CORE
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names])
    }
    assert "torch" in imported and "saccade_worlds" not in imported


def test_saccade_does_not_mention_what_it_is_about():
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in CORE
        for line in path.read_text("utf-8").splitlines()
        if WORDS.search(line)
    ]
    assert not found


def test_it_is_imported_only_for_its_own_kinds():
    code = (
        "import sys; from saccade.config.load import list_recipes, load\n"
        "load('dates', tiny=True); assert 'listen-attend-walk' in list_recipes()\n"
        "assert 'saccade_worlds' not in sys.modules\n"
        "load('listen-attend-walk'); assert 'saccade_worlds' in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_its_recipes_are_listed_with_the_others():
    own = {path.stem for path in (ROOT / "saccade_worlds" / "recipes").glob("*.toml")}
    assert own == {"listen-attend-walk", "show-attend-interact", "show-attend-interact-streams"} and own < {
        *list_recipes()
    }


def test_a_run_without_the_plugin_asks_for_its_package(tmp_path, monkeypatch):
    recipe = load("show-attend-interact", tiny=True)
    assert recipe.kinds.used.keys() == {"play", "values", "temporal-difference", "success"}
    plugins.write_requirements(recipe.kinds, tmp_path)
    save(recipe, tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml") == recipe
    monkeypatch.setattr(plugins, "find_installed", lambda: ({}, ()))
    with pytest.raises(SaccadeError, match=r"needs the kind 'play' of the package saccade .*; install it: pip install"):
        load(tmp_path / "recipe.toml")


# ---- tables


@pytest.mark.parametrize("table", TABLES)
def test_every_key_has_a_description(table: type[Table]):
    assert table.__doc__
    assert not [key for key, text in get_descriptions(table).items() if len(text) < 25 or not text.endswith((".", '"'))]


@pytest.mark.parametrize("table", TABLES)
def test_renamed_keys_fit_the_tables(table: type[Table]):
    for old, new in get_renamed_keys(table).items():
        assert new in table.model_fields and old not in table.model_fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("data.play.final_epsilom=0.1", r"data.play.final_epsilom: unknown key; did you mean 'final_epsilon'\?"),
        ("data.pley.final_epsilon=0.1", r"data.pley: unknown key; did you mean 'play'\?"),
        ("writer.stack.dmi=3", r"writer.stack.dmi: unknown key; did you mean 'dim'\?"),
        ("writer.kind=value", r"unknown kind 'value'; did you mean 'values'\?"),
        ("reader.kind=values", "reader: unknown kind 'values'"),
        ("writer.kind=play", "writer: unknown kind 'play'"),
        ("task=pley", r"expected .*'navigate' or 'play', got 'pley'; did you mean 'play'\?"),
    ],
)
def test_mistakes_are_explained(changes, message):
    with pytest.raises(SaccadeError, match=message):
        load("show-attend-interact", overrides=[changes])


# ---- names of 0.8


def test_old_names_of_navigation(capsys):
    new = load("listen-attend-walk", overrides=["writer.input_dropout=0.1"])
    assert load("listen-attend-walk", overrides=["task=walk", "writer.blind=0.1"]) == new
    note = capsys.readouterr().err
    assert 'task = "walk" is now "navigate"' in note and "writer.blind is now writer.input_dropout" in note


def test_old_names_of_playing(capsys):
    keys = {"together": 3, "every": 2, "explore": 0.1, "episodes": 9}
    old = [f"data.play.{key}={value}" for key, value in keys.items()]
    found = load("show-attend-interact", overrides=["task=interact", *old])
    expected = PlaySettings(parallel_episodes=3, batches_per_round=2, final_epsilon=0.1, epsilon_episodes=9)
    assert found.task.name == "play" and found.data.play == expected
    assert "data.play.explore is now data.play.final_epsilon" in capsys.readouterr().err


def test_other_tasks_had_the_settings_of_playing_too():
    assert validate({"data": {"play": {"together": 16}, "max_length": 9}}) == validate({"data": {"max_length": 9}})
