"""The form `[paper]` of recipes: its size beside the number in the paper, its plan, and a step of it in small."""

import json
from pathlib import Path
from typing import Any

import pytest

from saccade.config.load import list_recipes, load, read_paper_form
from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.plan.counts import build_on_meta, count_parameters
from saccade.plan.estimate import PlanRequest, make_plan
from saccade.train import train

PAPERS = {name: form for name in list_recipes() if (form := read_paper_form(name)) is not None}
# Recipes that change a mechanism of layers in their paper's form; the others are trained by the slow tests.
QUICK = ("bahdanau", "convs2s", "deep-att", "gnmt", "moe")
WIDTH = 16
SMALL = {
    "dim": WIDTH, "cell_dim": 2 * WIDTH, "input_dim": WIDTH // 2, "maxout_dim": WIDTH // 2, "ff": 2 * WIDTH,
    "heads": 2, "kv_heads": 1, "head_dim": WIDTH // 2,
}  # fmt: skip


# Numbers of parameters with the mechanisms of the papers, where these state none or another one: by them a layer, a
# direction or a width that is missing is noticed.
COUNTS = {
    "bahdanau": 81_421_000, "bytenet": 269_899_200, "convs2s": 112_638_464, "deep-att": 118_124_544,
    "gnmt": 284_043_264, "gnmt-reward": 284_043_264, "mask-predict": 60_834_849, "moe": 8_727_140_352,
    "nat": 69_418_547, "show-attend-tell": 65_794_793, "t5-1.0": 60_506_624,
}  # fmt: skip
MECHANISMS = {
    "albert": {"objectives.0.max_ngram": 3, "train.optimizer.kind": "lamb", "reader.stack.share_layers": True},
    "bahdanau": {"reader.stack.bidirectional": True, "writer.stack.maxout_dim": 500, "tokenizer.kind": "words"},
    "bytenet": {
        "tokenizer.kind": "characters", "reader.stack.layers": 30, "writer.stack.layers": 30,
        "reader.stack.hidden_dims": [800] * 30, "reader.stack.unfold": (1.2, 0),
    },
    "convs2s": {
        "reader.stack.hidden_dims": [512] * 10 + [768] * 3 + [2048] * 2, "reader.stack.kernels": [3] * 13 + [1] * 2,
    },
    "deep-att": {"reader.stack.columns": 2, "reader.stack.layers": 9, "writer.stack.layers": 7},
    "gnmt": {
        "tokenizer.kind": "wordpiece", "tokenizer.size": 32_000, "reader.stack.layers": 8, "writer.stack.layers": 8,
        "reader.stack.bidirectional": "first", "reader.stack.full_directions": True, "writer.stack.residual": True,
    },
    "moe": {
        "reader.stack.cell": "lstm", "reader.stack.experts.count": 2048, "reader.stack.experts.groups": 64,
        "reader.stack.experts.top_k": 2, "writer.stack.cell_dim": 2048,
    },
    "nat": {"writer.kind": "fertility", "objectives.0.kind": "fertility"},
    "t5-1.0": {"reader.stack.gated": False, "reader.stack.activation": "relu", "writer.tie": "all"},
}  # fmt: skip


def get_value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for word in key.split("."):
        value = value[int(word)] if word.isdigit() else getattr(value, word)
    return list(value) if isinstance(value, tuple) and len(value) > 2 else value


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_form_of_the_paper_has_its_mechanisms(name: str) -> None:
    recipe = load(name, paper=True)
    assert {key: get_value(recipe, key) for key in MECHANISMS[name]} == MECHANISMS[name]


@pytest.mark.parametrize("name", PAPERS)
def test_the_number_of_parameters_is_that_of_the_paper_or_the_difference_is_explained(name: str) -> None:
    form = PAPERS[name]
    count = count_parameters(build_on_meta(load(name, paper=True)))
    assert count == COUNTS.get(name, count)
    for key in form.ours:
        get_value(load(name, paper=True), key)  # every key of `ours` exists
    assert form.difference or form.parameters, "where a paper states no number, `difference` says so"
    if form.parameters is not None and not form.difference:
        assert count == pytest.approx(form.parameters, rel=0.01)
    if form.parameters is not None:
        assert count == pytest.approx(form.parameters, rel=0.25)  # what is explained is a part, not another model


@pytest.mark.parametrize("name", [name for name in PAPERS if name in QUICK])
def test_the_paper_is_planned(name: str) -> None:
    plan = make_plan(load(name, paper=True), PlanRequest()).as_dict()
    assert json.loads(json.dumps(plan))


def shrink(recipe: Recipe, name: str) -> list[str]:
    """Overrides that make every width small and leave depth and mechanisms as they are, with data of `[tiny]`."""
    tiny = load(name, tiny=True)
    changes: dict[str, Any] = {f"train.{key}": 1 for key in ("steps", "accumulate", "save_every", "valid_every")}
    changes |= {
        "train.batch_tokens": 512,
        "train.valid_predictions": 4,
        "predict.beam": 2,
        "predict.n_best": 1,
        "tokenizer.size": 400,
    }
    changes |= {"train.epochs": "none", "data.max_length": min(tiny.data.max_length, recipe.data.max_length)}
    for part in ("reader", "writer"):
        table = getattr(recipe, part)
        stack = getattr(table, "stack", None)
        changes |= {f"{part}.stack.{key}": value for key, value in SMALL.items() if getattr(stack, key, None)}
        if (hidden := getattr(stack, "hidden_dim", None)) is not None:
            changes[f"{part}.stack.hidden_dim"] = [max(4, size // 128) for size in hidden]
        if getattr(stack, "experts", None) is not None:
            changes |= {f"{part}.stack.experts.{key}": value for key, value in EXPERTS.items()}
        if getattr(table, "embedding_dim", None):
            changes[f"{part}.embedding_dim"] = WIDTH // 2
    changes["data.train"] = [{"files": list(corpus.files), "examples": 64} for corpus in tiny.data.train]
    changes["data.valid"] = [{"files": list(corpus.files), "examples": 4} for corpus in tiny.data.valid]
    return [f"{key}={to_toml(value)}" for key, value in changes.items()]


EXPERTS = {"count": 16, "groups": 4, "hidden_dim": 8}


def to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PAPERS]
)
def test_one_step_of_the_paper_at_reduced_width(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = shrink(load(name, paper=True), name)
    trained = train(name, paper=True, run=tmp_path / "run", overrides=small)
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("loss" in event for event in events)
    paper, ours = load(name, paper=True), trained.recipe
    for part in ("reader", "writer"):
        for key in ("layers", "columns", "full_directions", "kernels", "initial_state"):
            tables = (getattr(recipe, part) for recipe in (paper, ours))
            expected, found = (getattr(getattr(table, "stack", None), key, None) for table in tables)
            assert expected == found


def test_tiny_and_paper_exclude_each_other() -> None:
    with pytest.raises(SaccadeError, match="in its tiny form or in that of its paper, got both; leave one out"):
        load("gnmt", tiny=True, paper=True)


def test_a_recipe_that_is_not_from_a_paper_says_so() -> None:
    with pytest.raises(SaccadeError, match=r"recipe 'dates' has no \[paper\] table; leave --paper out"):
        load("dates", paper=True)


def test_a_loaded_recipe_has_no_forms() -> None:
    with pytest.raises(SaccadeError, match="paper=True needs the name or the file of a recipe"):
        train(load("dates"), paper=True)
