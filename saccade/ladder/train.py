"""Train every rung on the same data and evaluate it; finished runs are reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Decoding, Recipe
from saccade.errors import Diverged, SaccadeError
from saccade.ladder.data import LadderData
from saccade.ladder.results import Ladder, RunResult, build_ladder
from saccade.ladder.rungs import Rung
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import RECIPE, list_runs
from saccade.score.compare import measure_run
from saccade.train.api import replace_data, train

Report = Callable[[str], None]


def train_ladder(
    data: LadderData,
    rungs: Sequence[Rung],
    out: Path,
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    kinds: Mapping[str, Any] | None = None,
    report: Report = lambda text: None,
) -> Ladder:
    """Train each rung with seeds 1 to `seeds`, as runs in the folder `out`; `overrides` apply to all rungs."""
    if seeds < 1:
        raise SaccadeError(f"--seeds must be at least 1, got {seeds}")
    plan = [
        (rung, build_recipe(rung, data, seed=seed, overrides=overrides, kinds=kinds), out / f"{rung.run}-{seed}")
        for rung in rungs
        for seed in range(1, seeds + 1)
    ]
    for _, recipe, folder in plan:  # report a mistake before hours of training
        check_same_settings(recipe, folder)
    tried: dict[str, list[RunResult]] = {rung.name: [] for rung in rungs}
    diverged = []
    for number, (rung, recipe, folder) in enumerate(plan, 1):
        state = {entry.name: entry.state for entry in list_runs(out)}.get(folder.name, "new")
        what = f"{folder.name} is trained already" if state == "finished" else rung.about
        report(f"{number}/{len(plan)} {rung.name}, seed {recipe.train.seed}: {what}")
        try:
            predictor = train_or_load(recipe, folder, state)
        except Diverged as error:  # is a result too; the other rungs are still trained
            report(f"{folder.name} diverged: {error}")
            diverged.append(folder.name)
        else:
            tried[rung.name].append(evaluate_run(predictor, folder, data, recipe.predict))
    return build_ladder(data, rungs, tried, diverged=diverged)


def build_recipe(
    rung: Rung, data: LadderData, *, seed: int, overrides: Sequence[str], kinds: Mapping[str, Any] | None = None
) -> Recipe:
    """Build the recipe of a rung for this data and seed."""
    settings = [f"data.max_length={data.max_length}", *data.settings, *rung.settings, *overrides]
    settings = [item.replace("{longest}", str(data.max_length)) for item in settings]
    recipe = load(rung.recipe, overrides=[*settings, f"train.seed={seed}", f"name={rung.run}"], kinds=kinds)
    return replace_data(recipe, data=data.train, valid=data.valid)


def train_or_load(recipe: Recipe, folder: Path, state: str) -> Predictor:
    """Load a finished run, resume an interrupted one, or train a new one."""
    if state == "finished":
        return Predictor.load(folder, kinds=recipe.kinds, device=recipe.train.device)
    if state == "new":
        return train(recipe, run=folder)
    return train(resume=folder, kinds=recipe.kinds)


def check_same_settings(recipe: Recipe, folder: Path) -> None:
    """Check that an existing run has the same settings; only those of decoding may differ."""
    if not (folder / RECIPE).exists():
        return
    recipes = (load(folder / RECIPE, kinds=recipe.kinds), recipe)
    before, now = (_flatten(part.model_dump(mode="json", exclude={"predict", "about"})) for part in recipes)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise SaccadeError(
                f"'{folder}' was trained with {key} = {before.get(key)!r}, now it is {now.get(key)!r}; "
                "choose another --out DIR"
            )


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted keys."""
    if isinstance(values, dict | list) and values:
        items = values.items() if isinstance(values, dict) else enumerate(values)
        return {key: value for name, item in items for key, value in _flatten(item, f"{prefix}.{name}").items()}
    return {prefix.removeprefix("."): values}


def evaluate_run(predictor: Predictor, folder: Path, data: LadderData, decoding: Decoding) -> RunResult:
    """Evaluate a run on the test pairs, after one decoding pass that compiles kernels and is not timed."""
    predictor.predict([source for source, _ in data.test], decoding=decoding)
    member = measure_run(folder, predictor, data.test, decoding=decoding)
    return RunResult(
        hypotheses=member.hypotheses,
        scores={name: score.value for name, score in member.scores.items()},
        signature=member.scores["bleu"].signature,
        parameters=member.parameters,
        seconds=None if member.minutes is None else 60 * member.minutes,
        sentences_per_second=member.sentences_per_second,
    )
