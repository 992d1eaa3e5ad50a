"""Trains every rung on the same ground and measures it; what is trained already is taken as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Decoding, Recipe
from saccade.errors import Diverged, SaccadeError
from saccade.ladder.ground import Ground
from saccade.ladder.results import Ladder, Tried, results
from saccade.ladder.rungs import Rung
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import RECIPE, list_runs
from saccade.score.compare import measure
from saccade.train.api import train, with_data

Say = Callable[[str], None]


def climb(
    ground: Ground,
    rungs: Sequence[Rung],
    out: Path,
    *,
    seeds: int = 1,
    changes: Sequence[str] = (),
    say: Say = lambda text: None,
) -> Ladder:
    """Each rung with seeds 1 to `seeds`, as runs inside of `out`; `changes` are settings of all rungs."""
    if seeds < 1:
        raise SaccadeError(f"--seeds is how many seeds each rung is trained with, at least 1, got {seeds}")
    plan = [
        (rung, recipe_of(rung, ground, seed=seed, changes=changes), out / f"{rung.run}-{seed}")
        for rung in rungs
        for seed in range(1, seeds + 1)
    ]
    for _, recipe, folder in plan:  # a mistake is told before hours of training, not after them
        check_same(recipe, folder)
    tried: dict[str, list[Tried]] = {rung.name: [] for rung in rungs}
    diverged = []
    for number, (rung, recipe, folder) in enumerate(plan, 1):
        state = {entry.name: entry.state for entry in list_runs(out)}.get(folder.name, "new")
        what = f"{folder.name} is trained already" if state == "finished" else rung.about
        say(f"{number}/{len(plan)} {rung.name}, seed {recipe.train.seed}: {what}")
        try:
            predictor = trained(recipe, folder, state)
        except Diverged as error:  # a result too: the other rungs go on
            say(f"{folder.name} diverged: {error}")
            diverged.append(folder.name)
        else:
            tried[rung.name].append(try_run(predictor, folder, ground, recipe.predict))
    return results(ground, rungs, tried, diverged=diverged)


def recipe_of(rung: Rung, ground: Ground, *, seed: int, changes: Sequence[str]) -> Recipe:
    """The rung's recipe on the ground."""
    settings = [f"data.max_length={ground.longest}", *ground.settings, *rung.settings, *changes]
    settings = [item.replace("{longest}", str(ground.longest)) for item in settings]
    recipe = load(rung.recipe, overrides=[*settings, f"train.seed={seed}", f"name={rung.run}"])
    return with_data(recipe, data=ground.train, valid=ground.valid)


def trained(recipe: Recipe, folder: Path, state: str) -> Predictor:
    """The run of a recipe: as it is, gone on with, or new."""
    if state == "finished":
        return Predictor.load(folder, device=recipe.train.device)
    if state == "new":
        return train(recipe, run=folder)
    return train(resume=folder)


def check_same(recipe: Recipe, folder: Path) -> None:
    """A run that is there must have been trained with the same settings; how it is decoded may be otherwise."""
    if not (folder / RECIPE).exists():
        return
    recipes = (load(folder / RECIPE), recipe)
    before, now = (_flat(part.model_dump(mode="json", exclude={"predict", "about"})) for part in recipes)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise SaccadeError(
                f"'{folder}' was trained with {key} = {before.get(key)!r}, now it is {now.get(key)!r}; "
                "choose another --out DIR"
            )


def _flat(values: Any, at: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    if isinstance(values, dict | list) and values:
        items = values.items() if isinstance(values, dict) else enumerate(values)
        return {key: value for name, item in items for key, value in _flat(item, f"{at}.{name}").items()}
    return {at.removeprefix("."): values}


def try_run(predictor: Predictor, folder: Path, ground: Ground, decoding: Decoding) -> Tried:
    """One run on the test pairs; they are decoded once before the clock runs, while kernels are made."""
    predictor.predict([source for source, _ in ground.test], decoding=decoding)
    member = measure(folder, predictor, ground.test, decoding=decoding)
    return Tried(
        hypotheses=member.hypotheses,
        scores={name: score.value for name, score in member.scores.items()},
        signature=member.scores["bleu"].signature,
        parameters=member.parameters,
        seconds=None if member.minutes is None else 60 * member.minutes,
        sentences_per_second=member.sentences_per_second,
    )
