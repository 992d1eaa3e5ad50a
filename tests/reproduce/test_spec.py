"""Recorded results: they are complete, agree with benchmarks/results, and mistakes in one are one line."""

import json
from pathlib import Path

import pytest

from saccade.config.load import list_recipes, load
from saccade.errors import SaccadeError
from saccade.reproduce.prepare import PREPARATIONS
from saccade.reproduce.spec import find_specs, list_specs, read_specs

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SPECS = list_specs()
RECORDED = {name: spec for name, spec in SPECS.items() if spec.recorded is not None}
MINIMAL = {
    "title": "a", "dataset": "embedded", "recipe": "dates", "metric": "accuracy", "unit": "%", "floor": 1.0,
    "tuned": "nothing", "test": [{"files": ["embedded:dates-heldout"]}],
    "recorded": {"values": {1: 50.0, 2: 52.0}, "hardware": "a CPU", "date": "2026-01-01"},
}  # fmt: skip


def read_rows():
    for path in sorted(RESULTS.glob("*.json")):
        yield from json.loads(path.read_text("utf-8"))["rows"]


def write(**changes):
    import tomli_w

    table = {**MINIMAL, "recorded": {**MINIMAL["recorded"], "values": {"1": 50.0, "2": 52.0}}, **changes}
    return tomli_w.dumps({"results": {"mine": {key: value for key, value in table.items() if value is not None}}})


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_values_are_those_of_the_benchmark_results(name):
    """Each seed has its row in a results file, with the same value up to rounding."""
    recorded = SPECS[name].recorded
    found = {row.get("seed", 1): row["value"] for row in read_rows() if row["what"] == recorded.row}
    assert recorded.values == pytest.approx(found)


def test_recorded_parameters_are_those_of_the_benchmark_results():
    sizes = {row["what"]: row["value"] for row in read_rows() if row["what"].endswith(": parameters")}
    rows = {name: spec.recorded.row.removesuffix(f": {spec.metric}") for name, spec in RECORDED.items()}
    names = {name: f"{row}: parameters" for name, row in rows.items()}
    found = {name: 1e6 * sizes[row] for name, row in names.items() if row in sizes}
    assert len(found) >= 12
    assert {name: SPECS[name].recorded.parameters for name in found} == pytest.approx(found, abs=600)


@pytest.mark.parametrize("name", SPECS)
def test_settings_and_metric_of_a_result_fit_its_recipe(name):
    spec = SPECS[name]
    assert spec.recipe in list_recipes()
    settings = [word for word in spec.settings if "{" not in word or "=" in word.split("{")[0]]
    recipe = load(spec.recipe, tiny=spec.tiny, overrides=[word for word in settings if not word.startswith("init=")])
    assert recipe.train.steps or recipe.train.epochs
    assert not spec.prepare or spec.prepare in PREPARATIONS
    for stage in spec.before:
        assert bool(stage.recipe) != bool(stage.predict)
        if stage.recipe:
            load(stage.recipe, overrides=stage.settings)


def test_every_recipe_with_a_result_has_a_spec():
    """Recipes that results name, but for what is no training and scoring of one recipe."""
    trained = {spec.recipe for spec in SPECS.values()} | {s.recipe for spec in SPECS.values() for s in spec.before}
    assert trained >= {
        "multi30k", "tatoeba", "sutskever", "bahdanau", "convs2s", "bytenet", "deep-att", "gnmt", "moe", "mask-predict",
        "gnmt-reward", "shakespeare", "vit", "show-attend-tell", "listen-attend-spell", "show-attend-read",
        "show-ask-attend-answer", "listen-attend-walk", "gpt2", "roberta", "classify", "dates",
    }  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_a_result_states_what_it_was_chosen_on_and_where_data_comes_from(name):
    spec = SPECS[name]
    assert spec.tuned and (spec.source or not spec.files)
    assert spec.recorded is None or (spec.recorded.hardware and spec.recorded.minutes)
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in spec.files.values())


def test_tolerance_is_two_spreads_or_the_floor():
    spec = read_specs(write(), origin="a.toml")["mine"]
    assert (spec.recorded.mean, spec.tolerance) == (51.0, pytest.approx(2 * 2**0.5))
    assert read_specs(write(floor=7.0), origin="a.toml")["mine"].tolerance == 7.0
    one = {**MINIMAL["recorded"], "values": {"1": 50.0}}
    alone = read_specs(write(recorded=one), origin="a.toml")["mine"]
    assert alone.recorded.spread is None and alone.tolerance == 1.0 and "one seed, no spread" in alone.rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "a.toml is not TOML: Invalid value"),
        ("x = 1", r"a.toml has no results; expected a table \[results.NAME\] for each"),
        (write(metric=None), "a.toml: results.mine.metric: Field required"),
        (write(flor=2.0), "a.toml: results.mine.flor: Extra inputs are not permitted"),
        (write(train=[["a.txt"]]), r"a.toml: results.mine: 'a.txt' has no SHA-256 in \[files\]"),
        (write(floor=0.0), "a.toml: results.mine.floor: Input should be greater than 0"),
        (write(runs_of="yours"), "a.toml: results.mine.runs_of: expected a result above that has runs, got 'yours'"),
        (write(test=[]), "a.toml: results.mine.test: Tuple should have at least 1 item"),
        (write(recorded={"values": {}, "hardware": "a", "date": "b"}), "a.toml: results.mine.recorded.values: "),
    ],
)
def test_a_mistake_in_a_file_of_results_is_one_line(text, message):
    with pytest.raises(SaccadeError, match=message) as raised:
        read_specs(text, origin="a.toml")
    assert "\n" not in str(raised.value)


def test_the_example_of_the_docs_is_a_result():
    page = (RESULTS.parents[1] / "docs" / "reproduce.md").read_text("utf-8")
    [spec] = read_specs(page.split("```toml\n")[1].split("```")[0], origin="page").values()
    assert (spec.name, spec.recorded.mean, spec.tolerance) == ("my-transformer", pytest.approx(31.13, abs=0.01), 0.5)


def test_names_and_files_are_found(tmp_path):
    (tmp_path / "mine.toml").write_text(write(), "utf-8")
    assert [spec.name for spec in find_specs(["fsdd", str(tmp_path / "mine.toml"), "fsdd"])] == ["fsdd", "mine"]
    with pytest.raises(SaccadeError, match="unknown result 'fsd'; did you mean 'fsdd'"):
        find_specs(["fsd"])
    with pytest.raises(
        SaccadeError, match=r"cannot read '.*none.toml': No such file or directory; expected a TOML file"
    ):
        find_specs([str(tmp_path / "none.toml")])
