"""Kinds from plugin files and installed packages, and the plugins that a run needs."""

import json
from pathlib import Path

import pytest

import saccade
from saccade.config.descriptions import get_descriptions
from saccade.config.load import get_recipe_path, list_recipes, load, override, save, validate
from saccade.config.plugins import (
    PLUGINS_FILE,
    Kinds,
    check_requirements,
    find_installed,
    find_recipe_folders,
    load_modules,
    load_plugins,
    write_requirements,
)
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.score.compare import compare
from saccade.score.evaluate import evaluate_corpora, score_texts

STACK = "def mixer(*, dim: int, depth: int = 1): ...\nKINDS = {'mixer': mixer}\n"
VALUES = {"reader": {"stack": {"kind": "mixer", "dim": 4}}}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return write(tmp_path / "mixer.py", STACK)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with an entry point, as pip would."""

    def add(name: str, code: str, group: str = "saccade.plugins", value: str = "") -> Path:
        site = tmp_path / "site"
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / name).mkdir()
        write(site / name / "__init__.py", code)
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        write(info / "entry_points.txt", f"[{group}]\n{name} = {value or name}\n")
        monkeypatch.syspath_prepend(site)
        clear_caches()
        return site / name

    clear_caches()
    yield add
    monkeypatch.undo()
    clear_caches()


def clear_caches() -> None:
    find_installed.cache_clear()
    find_recipe_folders.cache_clear()


def test_a_file_brings_kinds(plugin):
    kinds = load_plugins(plugin)
    assert validate(VALUES, kinds=kinds).reader.stack.settings() == {"dim": 4, "depth": 1}
    assert load_plugins(plugin)["mixer"] is kinds["mixer"]  # the same content is run once


def test_a_changed_file_is_run_again(plugin):
    first = load_plugins(plugin)["mixer"]
    write(plugin, STACK.replace("depth: int = 1", "depth: int = 7"))
    assert load_plugins(plugin)["mixer"] is not first


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("a.txt", "", "a plugin is a Python file, such as plugin.py, got '.*a.txt'"),
        ("a.py", "x = 1", "needs a dictionary KINDS = {'name': class or function}, got none"),
        ("a.py", "KINDS = [1]", "needs a dictionary KINDS .*, got list"),
        ("a.py", "KINDS = {1: int}", "needs a dictionary KINDS .*, got the name 1"),
        ("a.py", "x = 1\n1 / 0", r"plugin 'a.py' cannot be loaded: ZeroDivisionError: division by zero \(line 2\)"),
        ("a.py", "def f(:", r"plugin 'a.py' cannot be loaded: SyntaxError: .* \(line 1\)"),
        ("a.py", "import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_line(tmp_path, name, code, message):
    with pytest.raises(SaccadeError, match=message) as error:
        load_plugins(write(tmp_path / name, code))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SaccadeError, match=r"cannot read the plugin '.*none.py': no such file"):
        load_plugins(tmp_path / "none.py")


def test_two_files_cannot_have_one_name(tmp_path, plugin):
    other = write(tmp_path / "other.py", STACK)
    with pytest.raises(SaccadeError, match=r"plugins .*mixer.py and .*other.py both have a kind 'mixer'; rename one"):
        load_plugins(plugin, other)


def test_the_folder_of_a_plugin_is_not_searched_for_modules(tmp_path):
    write(tmp_path / "neighbour.py", "raise SystemExit('was run')")
    with pytest.raises(SaccadeError, match="No module named 'neighbour'"):
        load_plugins(write(tmp_path / "a.py", "import neighbour\nKINDS = {}"))


# ---- what a run needs


def test_a_run_asks_for_its_plugin_by_name(tmp_path, plugin, capsys):
    recipe = validate(VALUES, kinds=load_plugins(plugin))
    write_requirements(recipe.kinds, tmp_path)
    save(recipe, tmp_path / "recipe.toml")
    with pytest.raises(
        SaccadeError, match=r"needs the kind 'mixer' of the plugin mixer.py \(sha256 \w{12}\); add --pl"
    ):
        load(tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml", kinds=load_plugins(plugin)).reader == recipe.reader
    assert not capsys.readouterr().err


def test_a_note_says_that_a_plugin_has_changed(tmp_path, plugin, capsys):
    recipe = validate(VALUES, kinds=load_plugins(plugin))
    write_requirements(recipe.kinds, tmp_path)
    write(plugin, STACK + "# changed\n")
    for _ in range(2):
        check_requirements(tmp_path, load_plugins(plugin))
    assert (
        capsys.readouterr().err.count(
            "was trained with another plugin or version: mixer.py then, mixer.py now (sha256 "
        )
        == 1
    )


def test_only_kinds_that_the_recipe_uses_are_needed(tmp_path):
    write_requirements(validate({}, kinds={"mixer": lambda: None}).kinds, tmp_path)
    assert not (tmp_path / PLUGINS_FILE).exists()


def test_a_kind_given_in_python_is_asked_for_as_such(tmp_path):
    recipe = validate(VALUES, kinds={"mixer": lambda *, dim: None})
    write_requirements(recipe.kinds, tmp_path)
    assert json.loads((tmp_path / PLUGINS_FILE).read_text())[0]["plugin"] == ""
    with pytest.raises(SaccadeError, match=r"needs the kind 'mixer', which was given in Python; pass kinds=\{'mixer'"):
        check_requirements(tmp_path, Kinds())


def test_a_damaged_list_of_plugins_is_one_line(tmp_path):
    write(tmp_path / PLUGINS_FILE, "[{}]")
    with pytest.raises(SaccadeError, match="is not a list of kinds and plugins; put back the file of the run"):
        check_requirements(tmp_path, Kinds())


# ---- installed packages


def test_an_installed_plugin_is_found_when_a_kind_is_unknown(install, tmp_path):
    install("mixers", STACK)
    recipe = validate(VALUES)
    assert recipe.reader.stack.settings() == {"dim": 4, "depth": 1}
    write_requirements(recipe.kinds, tmp_path)
    find_installed.cache_clear()
    (tmp_path / "site" / "mixers-1.2.dist-info" / "entry_points.txt").unlink()
    with pytest.raises(
        SaccadeError, match=r"the kind 'mixer' of the package mixers 1.2; install it: pip install mixers"
    ):
        check_requirements(tmp_path, Kinds())


def test_installed_plugins_are_not_loaded_where_all_kinds_are_known(install):
    install("harmful", "raise SystemExit('was loaded')")
    assert load("dates", tiny=True, overrides=["reader.positions.kind=learned"]).task.name == "translate"


def test_an_installed_plugin_that_fails_is_named_where_a_kind_is_unknown(install):
    install("broken", "1 / 0")
    install("mixers", STACK)
    assert validate(VALUES).reader.stack.kind == "mixer"
    with pytest.raises(
        SaccadeError, match=r"unknown kind 'mixr'; did you mean 'mixer'\?.* the installed plugin broken 1.2"
    ):
        validate({"reader": {"stack": {"kind": "mixr"}}})


def test_a_given_kind_comes_before_an_installed_one(install):
    install("mixers", STACK)
    assert "depth" not in validate(VALUES, kinds={"mixer": lambda *, dim: None}).reader.stack.settings()


def test_recipes_of_an_installed_plugin_are_found_without_importing_it(install):
    folder = install("cookbook", "raise SystemExit('was loaded')", "saccade.recipes", "cookbook:recipes") / "recipes"
    folder.mkdir()
    write(folder / "soup.toml", "[data]\nmax_length = 9\n")
    write(folder / "dates.toml", "not TOML")  # saccade's own comes first
    find_recipe_folders.cache_clear()
    assert {"soup", "dates", "transformer"} <= {*list_recipes()} and len({*list_recipes()}) == len(list_recipes())
    assert load("soup").data.max_length == 9 and load("soup").name == "soup"
    assert get_recipe_path("dates").parent != folder
    with pytest.raises(
        SaccadeError, match=r"^recipe 'soup' has no table \[tiny\] with .*; train it: saccade train soup$"
    ):
        get_demonstration("soup")


@pytest.mark.parametrize("value", ["nowhere:recipes", "cookbook:none", "cookbook", "os.path:recipes", "cookbook:.."])
def test_a_folder_of_recipes_that_is_not_there_is_left_out(install, value):
    before = list_recipes()
    install("cookbook", "", "saccade.recipes", value)
    assert list_recipes() == before


def test_a_module_of_a_plugin_that_fails_is_one_line(install):
    install("shattered", "1 / 0", "saccade.others")
    with pytest.raises(SaccadeError, match="installed plugin shattered 1.2 cannot be loaded: ZeroDivisionError"):
        load_modules("saccade.others")


# ---- kinds that are tables, and tasks with their own table of data

TABLES = """
from typing import ClassVar, Literal
from saccade.config.schema import Data
from saccade.config.table import Count, Table, WriterTraits
from saccade.tasks import BaseTask

class Sum(Table, WriterTraits):
    \"\"\"Adds numbers.\"\"\"
    renamed_keys = {"much": "size"}
    objective_kinds: ClassVar[tuple[str, ...]] = ("label",)
    kind: Literal["sum"] = "sum"
    size: Count = 3
    \"\"\"How many numbers are added.\"\"\"

class CountingData(Data):
    \"\"\"The data of counting.\"\"\"
    limit: Count = 7
    \"\"\"Where counting ends.\"\"\"

class Counting(BaseTask):
    name, former_names, data_table = "counting", ("adding",), CountingData

    def find_conflict(self, recipe):
        return ""

KINDS = {"sum": Sum, "counting": Counting()}
"""
SUM = {"task": "counting", "writer": {"kind": "sum", "size": 2}, "objectives": [{"kind": "label"}]}


@pytest.fixture
def tables(tmp_path):
    return load_plugins(write(tmp_path / "tables.py", TABLES))


def test_a_kind_may_be_a_table(tables, tmp_path):
    recipe = validate(SUM, kinds=tables)
    assert type(recipe.writer) is tables["sum"] and recipe.writer.size == 2
    assert get_descriptions(tables["sum"])["size"] == "How many numbers are added."
    assert recipe.model_dump()["writer"] == {"kind": "sum", "size": 2} and recipe.model_dump()["data"]["limit"] == 7
    assert recipe.model_copy(update={"name": "x"}).writer is recipe.writer
    write_requirements(recipe.kinds, tmp_path)
    assert [item["kind"] for item in json.loads((tmp_path / PLUGINS_FILE).read_text())] == ["counting", "sum"]
    save(recipe, tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml", kinds=tables).writer == recipe.writer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("writer.size=0", "writer.size: expected at least 1, got 0"),
        ("writer.sise=1", r"writer.sise: unknown key; did you mean 'size'\?"),
        ("data.limt=1", r"data.limt: unknown key; did you mean 'limit'\?"),
        ("reader={kind='sum'}", "unknown kind 'sum'"),
        ("reader={kind='counting'}", "unknown kind 'counting'"),
        ("objectives=[{kind='masked'}]", 'a writer of kind "sum" cannot be trained by the objective "masked"'),
    ],
)
def test_mistakes_in_such_tables_are_explained(tables, changes, message):
    with pytest.raises(SaccadeError, match=message) as error:
        override(validate(SUM, kinds=tables), [changes])
    assert "\n" not in str(error.value)


def test_such_tables_and_tasks_have_old_names(tables, capsys):
    found = validate({**SUM, "task": "adding", "writer": {"kind": "sum", "much": 5}}, kinds=tables)
    assert found.task.name == "counting" and found.writer.size == 5
    note = capsys.readouterr().err
    assert 'task = "adding" is now "counting"' in note and "writer.much is now writer.size" in note
    assert override(found, ["writer.much=4"]).writer.size == 4


def test_only_recipes_of_the_task_have_its_data_settings(tables):
    assert override(validate(SUM, kinds=tables), ["data.limit=3"]).data.limit == 3
    with pytest.raises(SaccadeError, match="data.limit: unknown key"):
        validate({"data": {"limit": 3}}, kinds=tables)


METRIC = """
from saccade.score.metrics import MeanMetric
class Same(MeanMetric):
    name = 'same'
    def score_example(self, output, reference):
        return output == reference
KINDS = {'same': Same}
"""


def test_an_installed_metric_is_found_when_it_is_named(install, tmp_path):
    install("metrics_of_mine", METRIC)
    parts = [f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2", "ff=8", "layers=1")]
    few = ["train.steps=1", "train.valid_every=1", "train.valid_predictions=3", "data.train.0.examples=20"]
    settings = [*parts, *few, "data.valid=0.2", "tokenizer.size=60", "train.device=cpu", "train.metric=same"]
    model = saccade.train("dates", tiny=True, run=tmp_path / "run", overrides=settings)
    assert json.loads((tmp_path / "run" / PLUGINS_FILE).read_text())[0]["plugin"] == "metrics_of_mine 1.2"
    assert '"same"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    found = evaluate_corpora(model, model.recipe.data.train, metrics=["same"], synthetic_count=2)
    assert dict(found.scores).keys() == {"same"}
    compared = compare([tmp_path / "run"] * 2, [("5 May", "x")], metric="same", samples=5, device="cpu")
    assert compared.rows[1].difference.value == 0
    assert score_texts(["a", "b"], ["a", "c"], metrics=["same"], kinds=Kinds())["same"].value == 0.5
    with pytest.raises(SaccadeError, match="unknown metric 'some'; expected one of"):
        validate({"train": {"metric": "some"}})
