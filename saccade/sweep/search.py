"""Search beyond a grid: Optuna's TPE sampler suggests values, its successive halving stops hopeless ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from saccade.config.load import parse_value
from saccade.errors import SaccadeError
from saccade.sweep.grid import Axis, Configuration, Grid
from saccade.sweep.schedule import Group, Halving, order_trials, report_pruned
from saccade.sweep.trials import SweepState, Trial
from saccade.sweep.workers import Pool

SEED = 1  # of the sampler


def check_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise SaccadeError("--search optuna needs the package optuna: pip install 'saccade[sweep]'")


class Search:
    """Suggests configurations; those of an earlier start are suggested first, so that their runs are used again."""

    def __init__(self, grid: Grid, state: SweepState, *, higher_is_better: bool, halving: Halving | None) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.grid, self.state, self.halving = grid, state, halving
        pruner: Any = optuna.pruners.NopPruner()
        if halving:
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)  # rungs 1, 2
        self.study = optuna.create_study(
            direction="maximize" if higher_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(seed=SEED + len(state.suggestions)),  # or it would repeat itself
            pruner=pruner,
        )
        self.pruned_state, self.failed_state = optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL
        self.distributions = {axis.key: build_distribution(axis) for axis in grid}
        for values in state.suggestions:
            self.study.enqueue_trial(self.parse(values))
        self.count = 0

    def parse(self, texts: Sequence[str]) -> dict[str, Any]:
        """Values of an earlier start as Optuna has them."""
        return {
            axis.key: text if isinstance(axis, Axis) else parse_value(text)
            for axis, text in zip(self.grid, texts, strict=True)
        }

    def suggest(self) -> tuple[Any, Configuration]:
        """Optuna's trial and the values that it suggests, which are remembered."""
        asked = self.study.ask(self.distributions)
        values = tuple(
            (axis.key, asked.params[axis.key] if isinstance(axis, Axis) else axis.format_number(asked.params[axis.key]))
            for axis in self.grid
        )
        if self.count >= len(self.state.suggestions):
            self.state.suggestions.append([text for _, text in values])
            self.state.save()
        self.count += 1
        return asked, Configuration(values)

    def run(self, pool: Pool, build: Callable[[Configuration], list[Trial]], *, trials: int, jobs: int) -> list[Group]:
        """Train `trials` configurations, as many at a time as the processes can train."""
        found: dict[Configuration, Group] = {}
        while self.count < trials:
            batch = []
            for _ in range(min(jobs, trials - self.count)):
                asked, configuration = self.suggest()
                if configuration not in found:
                    found[configuration] = build_group(configuration, build)
                batch.append((asked, found[configuration]))
            self.train_batch(pool, batch)
        return list(found.values())

    def train_batch(self, pool: Pool, batch: Sequence[tuple[Any, Group]]) -> None:
        """Train some configurations together, rung by rung, and report their scores to the study."""
        left = {group: asked for asked, group in batch if group.pruned_step is None}
        for number, step in enumerate(self.halving.rungs if self.halving else ()):
            pool.train(order_trials([*left]), until=step)
            for group, asked in left.items():
                if (mean := group.get_mean(step)) is not None:
                    asked.report(mean, 2**number)
                    group.pruned_step = step if asked.should_prune() else None
            report_pruned(pool, [*left])
            left = {group: asked for group, asked in left.items() if group.pruned_step is None}
        pool.train(order_trials([*left]))
        for asked, group in batch:
            mean = group.get_mean()
            if group.pruned_step is not None:
                self.study.tell(asked, state=self.pruned_state)
            elif mean is None:
                self.study.tell(asked, state=self.failed_state)
            else:
                self.study.tell(asked, mean)


def build_group(configuration: Configuration, build: Callable[[Configuration], list[Trial]]) -> Group:
    """The trials of suggested values; values that the recipe refuses together have none."""
    try:
        return Group(configuration, build(configuration))
    except SaccadeError as error:
        return Group(configuration, [], refusal=str(error))


def build_distribution(axis: Any) -> Any:
    """Optuna's distribution of a key: a choice of listed values, or a range of numbers."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Axis):
        return CategoricalDistribution(list(axis.values))
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.is_log)
    return FloatDistribution(axis.low, axis.high, log=axis.is_log)
