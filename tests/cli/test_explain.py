"""`saccade explain`: keys, ends of keys, tables, kinds and words."""

import json
import subprocess
import sys

import pytest

from saccade.config import descriptions
from saccade.config.descriptions import find_keys, get_values, list_keys, list_places
from saccade.config.load import get_recipe_path, list_recipes, read_recipe


def test_a_key_is_explained_with_its_values_default_and_recipes(cli):
    result = cli("explain", "train.schedule.lr")
    assert result.code == 0
    head, *lines = result.out.splitlines()
    text = " ".join(line.strip() for line in lines)
    assert head == "train.schedule.lr"
    assert text.startswith("Peak learning rate.")
    assert "values: number > 0; default: 1.0" in text
    assert "bert (0.0001)" in text


@pytest.mark.parametrize("query", ["lr", "schedule.lr", "train.lr", "train.optimizer.lr", "train.schedule.lr=3e-4"])
def test_the_end_of_a_key_is_enough(cli, query):
    assert cli("explain", query).out.splitlines()[0] == "train.schedule.lr"


def test_a_position_in_a_list_is_any_position(cli):
    first = cli("explain", "objectives.0.alpha").out
    assert first.startswith("objectives.N.alpha\n")
    assert cli("explain", "objectives.7.alpha").out == first


def test_a_key_that_means_different_things_in_different_tables_is_explained_for_each(cli):
    found = json.loads(cli("explain", "writer.stack.dim", "--json").out)
    by_kind = {kind: entry["description"] for entry in found for kind in entry["kinds"]}
    assert {"transformer", "convolution"} <= by_kind.keys()
    assert by_kind["transformer"] != by_kind["convolution"]


def test_recipes_are_those_whose_table_has_the_kind(cli):
    found = json.loads(cli("explain", "reader.stack.dim", "--json").out)
    convolution = next(entry for entry in found if "convolution" in entry["kinds"])
    assert convolution["recipes"] == {"bytenet": "512", "convs2s": "256"}


def test_recipes_that_set_a_key_are_found_in_their_files(cli):
    [entry] = json.loads(cli("explain", "train.steps", "--json").out)
    expected = {
        name: json.dumps(values["train"]["steps"])
        for name in list_recipes()
        if "steps" in (values := read_recipe(get_recipe_path(name))).get("train", {})
    }
    assert entry["recipes"] == expected


@pytest.mark.parametrize("query", ["train.schedule", "schedule"])
def test_a_table_is_explained_with_its_keys(cli, query):
    out = cli("explain", query).out
    assert out.startswith("[train.schedule]\n  Learning rate schedule.")
    assert "keys: kind, lr, warmup_steps, min_lr" in out


def test_a_kind_is_explained(cli):
    assert cli("explain", "convolution").out.startswith('[reader.stack] kind = "convolution"\n')


def test_words_of_descriptions_are_found(cli):
    assert "train.schedule.lr\n" in cli("explain", "learning rate").out


def test_a_key_of_an_installed_plugin(cli):
    assert cli("explain", "final_epsilon").out.startswith("data.play.final_epsilon\n  Share of random actions")


@pytest.mark.parametrize(
    "query, hint",
    [
        ("lrr", "did you mean train.schedule.lr?"),
        ("train.stepz", "did you mean train.steps or predict.stop or reader.stem?"),
        ("qwertyuiop", "docs/configuration.md lists all keys"),
    ],
)
def test_an_unknown_key(cli, query, hint):
    result = cli("explain", query)
    assert (result.code, result.out) == (2, "")
    assert result.err == (f"error: no key of recipes is called '{query}', and no description has these words; {hint}\n")


def test_every_key_can_be_explained_by_its_path():
    keys = list_keys(list_places())
    assert len(keys) > 1000
    for path in {key.path for key in keys}:
        assert {key.path for key in find_keys(path, keys)} == {path}


def test_values_are_found_through_lists():
    recipe = {"objectives": [{"alpha": 1}, {}, {"alpha": 2}], "train": {"steps": 3}}
    assert get_values(recipe, "objectives.N.alpha") == [1, 2]
    assert get_values(recipe, "train.steps") == [3]
    assert get_values(recipe, "train.steps.more") == get_values(recipe, "model.dim") == []


def test_torch_is_not_imported():
    code = (
        "import sys; from saccade.cli import app; app(['explain', 'train.lr'], standalone_mode=False); "
        "print(sorted({'torch', 'datasets', 'numpy', 'saccade_worlds'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", ["sweep", "hyperparameter search", "grid search"])
def test_words_of_a_command_lead_to_it(cli, words):
    assert cli("explain", words).out.startswith("saccade sweep\n  Hyperparameter search: train all combinations")
    assert [entry["command"] for entry in json.loads(cli("explain", words, "--json").out)] == ["saccade sweep"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_loggers_are_found_by_their_names(cli, name):
    assert cli("explain", name).out.startswith("train.loggers\n")


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("batch_size", "train.batch_tokens"),
        ("Learning Rate", "train.schedule.lr"),
        ("train.num_epochs", "train.epochs"),
        ("fp16", "train.precision"),
        ("lr_scheduler", "[train.schedule]"),
        ("seed", "train.seed"),  # before seeds of parts of a model
        ("gradient clipping", "train.clip"),
        ("early stopping", "train.patience"),
    ],
)
def test_names_of_other_toolkits_and_of_the_most_general_key_come_first(cli, query, first):
    assert cli("explain", query).out.startswith(f"{first}\n")


def test_a_word_is_no_part_of_another_one():
    keys = list_keys(list_places())
    assert not find_keys("ample", keys) and find_keys("examp", keys)


def test_every_name_of_other_toolkits_leads_to_a_key_or_a_table():
    places = list_places()
    keys = list_keys(places)
    for here in descriptions.NAMES_ELSEWHERE.values():
        assert find_keys(here, keys, in_words=False) or [p for p in places if p.path.endswith(here)], here


def test_an_unknown_key_is_answered_with_its_name_here(cli):
    assert "did you mean 'train.batch_tokens'?" in cli("train", "dates", "--tiny", "train.batch_size=3").err


def test_values_have_no_names_of_classes():
    assert not [key.path for key in list_keys(list_places()) if "<class" in key.values]
