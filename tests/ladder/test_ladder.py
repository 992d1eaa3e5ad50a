"""A ladder of three rungs end to end, and its error messages."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from saccade.config import schema
from saccade.config.load import load, save
from saccade.config.schema import Recipe
from saccade.errors import Diverged, SaccadeError
from saccade.ladder import train as training
from saccade.ladder.data import LadderData, build_files_data, build_letters_data
from saccade.ladder.report import format_note, format_page, format_table, write_report
from saccade.ladder.results import Ladder, RunResult, build_ladder, group_by_length
from saccade.ladder.rungs import SIZES, choose_rungs, get_settings, read_table
from saccade.ladder.train import build_recipe, train_ladder
from saccade.model.build.model import build
from saccade.train.api import check_same_settings

RUNGS = ["no-attention", "without-norm", "transformer"]
QUICK = [
    *(f"train.{item}" for item in ("steps=3", "batch_tokens=256", "valid_every=3", "save_every=3")),
    *(f"{part}.stack.dim=16" for part in ("reader", "writer")),
    "train.schedule.warmup_steps=1",
]


@pytest.fixture(scope="module")
def small() -> Callable[..., tuple[Ladder, list[str]]]:
    """Train three rungs with two seeds each on rows of at most five letters."""
    ground = build_letters_data(5)
    ground = replace(ground, test=ground.test[:50])

    def run(out: Path, *changes: str) -> tuple[Ladder, list[str]]:
        said: list[str] = []
        ladder = train_ladder(
            ground, choose_rungs(RUNGS), out, seeds=2, overrides=[*QUICK, *changes], report=said.append
        )
        return ladder, said

    return run


def test_a_ladder_goes_on_where_it_stopped(small: Callable[..., tuple[Ladder, list[str]]], tmp_path: Path) -> None:
    ladder, said = small(tmp_path)
    assert [row.rung for row in ladder.rows] == RUNGS
    assert len(said) == 6
    assert said[0].startswith("1/6 no-attention, seed 1: An RNN")
    weights = tmp_path / "transformer-2" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (tmp_path / "without-norm-1" / "card.md").unlink()  # as if it had been interrupted
    again, said = small(tmp_path)
    assert weights.stat().st_mtime_ns == before
    assert [line.endswith("is trained already") for line in said] == [True, True, False, True, True, True]
    assert (tmp_path / "without-norm-1" / "card.md").exists()
    assert [row.score for row in again.rows] == [row.score for row in ladder.rows]
    with pytest.raises(SaccadeError, match=r"no-attention-1' was trained with train\.steps = 3, now it is 4; choose"):
        small(tmp_path, "train.steps=4")


def test_a_diverged_rung_is_reported_and_left_out(
    small: Callable[..., tuple[Ladder, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train_or_load

    def fails(recipe: Recipe, folder: Path) -> object:
        if "no-attention" in recipe.name or recipe.train.seed == 1:
            raise Diverged("the loss is no longer a finite number")
        return whole(recipe, folder)

    monkeypatch.setattr(training, "train_or_load", fails)
    ladder, said = small(tmp_path)
    assert [(row.rung, row.seeds) for row in ladder.rows] == [("without-norm", 1), ("transformer", 1)]
    assert ladder.diverged == ["no-attention-1", "no-attention-2", "without-norm-1", "transformer-1"]
    assert said[1] == "no-attention-1 diverged: the loss is no longer a finite number"
    assert (
        "no-attention-1, no-attention-2, without-norm-1, transformer-1 diverged (the loss became NaN or infinite)"
        in format_note(ladder)
    )
    with pytest.raises(SaccadeError, match="no rung could be trained: x diverged; try"):
        build_ladder(build_letters_data(5), choose_rungs(RUNGS), {name: [] for name in RUNGS}, diverged=["x"])


def test_every_rung_is_a_recipe_at_every_size() -> None:
    for size in SIZES:
        for rung in choose_rungs(size=size):
            recipe = build_recipe(rung, ground_of(size), seed=3, overrides=[])
            assert (recipe.name, recipe.train.seed, recipe.data.max_length) == (rung.run, 3, 21)
            with torch.device("meta"):
                build(recipe, source_size=29, target_size=29)
            assert rung.against in ("", *(other.name for other in choose_rungs(size=size)))
            assert rung.about.endswith(".")


def ground_of(size: str) -> LadderData:
    return replace(build_letters_data(20), size=size, settings=tuple(get_settings(size, "files")))


def test_all_rungs_have_data_tokenizer_and_budget_in_common() -> None:
    for size in SIZES:
        recipes = [build_recipe(rung, ground_of(size), seed=1, overrides=[]) for rung in choose_rungs(size=size)]
        for part in ("data", "tokenizer"):
            assert len({str(getattr(recipe, part)) for recipe in recipes}) == 1, part
        assert len({str(recipe.predict) for recipe in recipes if "mask-predict" not in recipe.name}) == 1
        for setting in ("steps", "batch_tokens", "accumulate", "seed", "ema", "average", "minutes", "epochs"):
            assert len({str(getattr(recipe.train, setting)) for recipe in recipes}) == 1, setting


def test_almost_a_transformer_lacks_one_thing_each() -> None:
    recipes = {rung.name: build_recipe(rung, build_letters_data(20), seed=1, overrides=[]) for rung in choose_rungs()}
    almost = [rung.name for rung in choose_rungs() if rung.group == "almost"]
    found = {name: differences(recipes["transformer"], recipes[name]) for name in (*almost, "transformer-pre")}
    assert found == {
        "without-feed-forward": {"stack.ff"},
        "without-residual": {"stack.residual"},
        "without-norm": {"stack.norm"},
        "without-positions": {"positions"},
        "without-scaling": {"stack.scale_attention"},
        "one-head": {"stack.heads"},
        "transformer-pre": {"stack.norm"},
    }


def differences(one: Recipe, other: Recipe) -> set[str]:
    """Return the settings in which two Transformers differ, which must agree for reader and writer."""
    reading, writing = (
        {
            f"stack.{name}"
            for name in schema.TransformerStack.model_fields
            if getattr(a.stack, name) != getattr(b.stack, name)
        }
        | {name for name in ("positions", "scale_embedding", "dropout") if getattr(a, name) != getattr(b, name)}
        for a, b in ((one.reader, other.reader), (one.writer, other.writer))
    )
    assert reading == writing
    return reading


def test_unknown_rungs_are_reported() -> None:
    with pytest.raises(
        SaccadeError, match=r"unknown rung 'atention'; did you mean 'attention'\? \(rungs: no-attention"
    ):
        choose_rungs(["attention", "atention"])
    with pytest.raises(SaccadeError, match=r"unknown size 'huge'; sizes: class, full"):
        choose_rungs(size="huge")


@pytest.mark.parametrize("length", [0, -3, 1001])
def test_a_length_out_of_range_is_reported(length: int) -> None:
    with pytest.raises(SaccadeError, match=rf"--length is .* from 1 to 1,000, got {length}"):
        build_letters_data(length)


def test_the_full_size_needs_text() -> None:
    with pytest.raises(SaccadeError, match="--size full is for your own text: give --data"):
        build_letters_data(size="full")
    with pytest.raises(SaccadeError, match="needs --data SRC TGT, --valid SRC TGT and --test SRC TGT"):
        build_files_data([["a.en", "a.de"]], [["v.en", "v.de"]], [])


def test_there_is_at_least_one_seed(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="--seeds must be at least 1, got 0"):
        train_ladder(build_letters_data(5), choose_rungs(RUNGS), tmp_path, seeds=0)


def test_a_run_of_other_settings_is_named_by_the_first_of_them(tmp_path: Path) -> None:
    recipe = build_recipe(choose_rungs(["attention"])[0], build_letters_data(5), seed=1, overrides=[])
    check_same_settings(recipe, tmp_path)
    save(recipe, tmp_path / "recipe.toml")
    check_same_settings(load(tmp_path / "recipe.toml"), tmp_path)
    other = build_recipe(choose_rungs(["attention"])[0], build_letters_data(6), seed=1, overrides=[])
    with pytest.raises(SaccadeError, match=r"was trained with data\.max_length = 6, now it is 7; choose another --out"):
        check_same_settings(other, tmp_path)


# ---- results, from outputs that were made up


def made_up() -> Ladder:
    """Build results of a rung with five letters only, a correct one, and one without its rung to compare with."""
    ground = build_letters_data(20)
    rungs = choose_rungs(["no-attention", "attention", "without-norm"])
    right = [target for _, target in ground.test]
    outputs = {"no-attention": [text[:5] for text in right], "attention": right, "without-norm": [""] * len(right)}
    tried = {
        name: [RunResult(texts, {"bleu": 1.0}, "tok:13a", parameters=7, seconds=seconds, sentences_per_second=11.0)]
        for (name, texts), seconds in zip(outputs.items(), (None, 61.0, 660.0), strict=True)
    }
    return build_ladder(ground, rungs, tried)


def test_scores_differences_and_curves_are_those_of_the_outputs() -> None:
    ladder = made_up()
    first, second, third = ladder.rows
    assert (second.score, third.score) == (100.0, 0.0)
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.value == pytest.approx(100 - first.score)
    assert second.difference.low > 0
    assert (second.against, third.against) == ("no-attention", "attention")
    assert first.by_length[0] == 100
    assert first.by_length == sorted(first.by_length, reverse=True)
    assert first.by_length[-1] == pytest.approx(500 / 19.5, abs=1)
    assert sum(part.sentences for part in ladder.bins) == ladder.sentences == 1000


def test_sentences_of_one_length_stay_together() -> None:
    groups = group_by_length([9, 1, 1, 1, 1, 1, 2, 3], bins=4)
    assert [group.tolist() for group in groups] == [[1, 2, 3, 4, 5], [6, 7], [0]]
    assert [group.tolist() for group in group_by_length([4, 4, 4])] == [[0, 1, 2]]


def test_the_table_says_what_it_cost() -> None:
    titles, first, second, third = format_table(made_up())
    assert titles[1] == "letters %"
    assert first[2:5] == ["", "", ""]
    assert second[1] == "100.0"
    assert [row[6] for row in (first, second, third)] == ["", "61 s", "11.0 min"]


def test_the_page_names_every_rung() -> None:
    text = format_page(made_up())
    assert "| attention | 100.0 | +" in text
    assert "* **without-norm** (recipe `transformer`): A Transformer without layer normalization." in text
    assert "![Score" in text


def test_files_hold_all_numbers(tmp_path: Path) -> None:
    ladder = made_up()
    assert write_report(ladder, tmp_path / "new") == tmp_path / "new" / "report.md"
    out = tmp_path / "new"
    assert json.loads((out / "ladder.json").read_text()) == ladder.to_dict()
    rows = list(csv.DictReader((out / "ladder.csv").read_text().splitlines()))
    assert [float(row["letters"]) for row in rows] == [row.score for row in ladder.rows]
    points = list(csv.DictReader((out / "lengths.csv").read_text().splitlines()))
    assert len(points) == 3 * len(ladder.bins)
    assert ElementTree.parse(out / "lengths.svg").getroot().tag.endswith("svg")
    assert "almost a Transformer" in (out / "lengths.svg").read_text()
    assert (out / "lengths.png").read_bytes().startswith(b"\x89PNG")
    before = (out / "lengths.svg").read_bytes()
    write_report(ladder, out)
    assert (out / "lengths.svg").read_bytes() == before


def test_every_rung_stands_in_the_docs() -> None:
    assert {values["group"] for values in read_table()["rung"]} == {"system", "almost"}
    page = (Path(__file__).parent.parent.parent / "docs" / "ladder.md").read_text("utf-8")
    assert not [
        rung.name for rung in choose_rungs() if f"`{rung.name}` | `{rung.recipe}`" not in page or rung.about not in page
    ]
