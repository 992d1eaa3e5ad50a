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
from saccade.runs import get_state
from saccade.score.compare import measure_run
from saccade.train.api import check_same_settings, replace_data, train_or_load

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
        what = f"{folder.name} is trained already" if get_state(folder) == "finished" else rung.about
        report(f"{number}/{len(plan)} {rung.name}, seed {recipe.train.seed}: {what}")
        try:
            predictor = train_or_load(recipe, folder)
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
