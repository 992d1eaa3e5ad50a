"""Sweeps find the planted answer, go on where they were interrupted, and survive trials that fail."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest

import saccade
from saccade.display import Tabular
from saccade.errors import Diverged, SaccadeError
from saccade.runs import list_runs
from saccade.score.statistics import get_half_width
from saccade.sweep import report, worker, workers
from saccade.sweep.api import is_logarithmic, lock_sweep
from saccade.sweep.grid import Axis, parse_grid
from saccade.sweep.picture import draw_scores
from saccade.sweep.progress import Progress, format_time
from saccade.sweep.report import format_note, format_page

LR = "train.schedule.lr"
USELESS, GOOD = 1e-9, 0.01
STEPS = 8


def sweep(recipe, **options):
    lines = options.pop("lines", [])
    return saccade.sweep(recipe, **{"grid": {LR: [USELESS, GOOD]}, "seeds": 2, "report": lines.append, **options})


def states(result):
    return {row.values[LR]: row.state for row in result.rows}


def loss_by_lr(recipe, step):
    """A loss that falls with the steps, the faster the nearer the learning rate is to 0.01."""
    rate = recipe.train.schedule.lr
    return 10 - step / (1 + abs(rate - 0.01) * 100) + recipe.train.seed / 100


def test_a_rate_that_cannot_learn_ends_last(recipe, folder, in_process):
    lines = []
    result = sweep(recipe, lines=lines)
    assert [row.values[LR] for row in result.rows] == [GOOD, USELESS]
    assert result.best.score < result.rows[1].score - 0.1 and not result.higher_is_better
    assert [row.steps for row in result.rows] == [STEPS, STEPS] and all(len(row.scores) == 2 for row in result.rows)
    runs = [f"copy-sweep-lr-{rate}-seed-{seed}" for seed in (1, 2) for rate in ("1e-09", "0.01")]
    assert [name for name, _ in in_process] == runs
    assert {entry.name: entry.state for entry in list_runs()} == dict.fromkeys(runs, "finished")
    assert saccade.load("copy-sweep-lr-0.01-seed-2").recipe.train.seed == 2
    assert lines[0] == "sweep runs/copy-sweep: 4 trials (2 configurations x 2 seeds), 8 steps each, 1 at a time"
    assert lines[-1].startswith("lr=0.01, seed 2: finished at step 8, loss ") and "(4/4 done" in lines[-1]


def test_the_same_weights_as_training_alone(recipe, folder, in_process):
    sweep(recipe, prune=True)  # which pauses and resumes
    saccade.train(recipe, run="alone", overrides=[f"{LR}=0.01", "train.seed=2"])
    names = ("alone", "copy-sweep-lr-0.01-seed-2")
    alone, swept = [(folder / name / "model.safetensors").read_bytes() for name in names]
    assert alone == swept


def test_the_worse_half_is_pruned_after_a_quarter_and_after_half(recipe, by_formula):
    requests, lines = by_formula(loss_by_lr), []
    rates = [USELESS, 0.004, 0.008, GOOD]
    result = sweep(recipe, grid={LR: rates}, prune=True, lines=lines)
    assert [(row.values[LR], row.steps, row.state) for row in result.rows] == [
        (GOOD, 8, "finished"), (0.008, 4, "pruned"), (0.004, 2, "pruned"), (USELESS, 2, "pruned"),
    ]  # fmt: skip
    assert [until for _, until in requests] == [2] * 8 + [4] * 4 + [None] * 2
    assert "lr=0.008: pruned, in the worse half at step 4" in lines
    assert result.rows[1].reason == "worse half at step 4"
    again = sweep(recipe, grid={LR: rates}, prune=True)
    assert again.rows == result.rows and len(requests) == 14
    whole = sweep(recipe, grid={LR: rates})
    assert set(states(whole).values()) == {"finished"} and len(requests) == 20


def test_equal_scores_prune_nobody(recipe, by_formula):
    by_formula(lambda recipe, step: 5.0)
    assert set(states(sweep(recipe, grid={LR: [1e-4, 1e-3, 1e-2]}, prune=True)).values()) == {"finished"}


def test_an_interrupted_sweep_goes_on(recipe, folder, in_process, monkeypatch):
    expected = sweep(recipe, name="whole")
    train, requests = workers.Worker.train, in_process
    requests.clear()

    def train_and_interrupt(self, request):
        outcome = train(self, request)
        if len(requests) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return outcome

    monkeypatch.setattr(workers.Worker, "train", train_and_interrupt)
    with pytest.raises(
        KeyboardInterrupt, match="stopped by Ctrl-C; the sweep 'runs/x' .* go on with the same"
    ) as error:
        sweep(recipe, name="x")
    assert error.value.exit_code == 130 and len(requests) == 2
    monkeypatch.setattr(workers.Worker, "train", train)
    lines = []
    result = sweep(recipe, name="x", lines=lines)
    assert len(requests) == 4 and lines[0].endswith("; 2 are done")
    assert [row.scores for row in result.rows] == [row.scores for row in expected.rows]


def test_a_failing_trial_is_a_row_with_its_reason(recipe, folder, in_process, monkeypatch):
    train, faults = (
        worker.train_until,
        {GOOD: Diverged("the loss is no longer a finite number"), 0.02: MemoryError("full")},
    )

    def fail(chosen, run, pause_step=None):
        if chosen.train.schedule.lr in faults and chosen.train.seed == 2:
            raise faults[chosen.train.schedule.lr]
        train(chosen, run, pause_step)

    monkeypatch.setattr(worker, "train_until", fail)
    grid = {LR: [GOOD, 0.02, 0.03]}
    result = sweep(recipe, grid=grid)
    assert [(row.values[LR], row.state, row.reason) for row in result.rows[:1]] == [(0.03, "finished", "")]
    reasons = {row.values[LR]: row.reason for row in result.rows}
    assert reasons[GOOD] == "1 of 2 seeds: the loss is no longer a finite number"
    assert reasons[0.02] == "1 of 2 seeds: MemoryError: full"
    in_process.clear()
    faults.clear()
    result = sweep(recipe, grid=grid)  # what diverged would diverge again; memory may be free now
    assert in_process == [("copy-sweep-lr-0.02-seed-2", None)]
    assert states(result) == {0.03: "finished", 0.02: "finished", GOOD: "failed"}


def test_a_killed_process_is_a_failure(monkeypatch):
    code = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"

    def start(module, *arguments, environment, stdout, new_session):
        return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=stdout, text=True)

    monkeypatch.setattr(workers, "start_module", start)
    one = workers.Worker([], {})
    assert one.train({}) == workers.Outcome("failed", "its process was ended by SIGKILL; is there enough memory?")
    one.close()


def test_cores_are_shared(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert workers.build_environment(0, 3)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in workers.build_environment(0, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"train.schedule.lrr": [1]}}, "recipe: train.schedule.lrr: unknown key; did you mean 'lr'?"),
        ({"grid": {LR: [0.01, -1]}}, "recipe: train.schedule.lr: expected more than 0.0, got -1"),
        ({"grid": {"reader.stack.dim": [8, 9]}}, "recipe: reader.stack: dim must be a multiple of heads, got dim = 9"),
        ({"grid": {"train.seed": [1]}}, "train.seed cannot be swept: each configuration is trained with the seeds"),
        ({"grid": {"train.metric": ["bleu"]}}, "train.metric cannot be swept: scores by different metrics"),
        ({"overrides": [f"{LR}=1"]}, f"{LR} is in the grid and is set too: {LR}=1; leave one out"),
        ({"overrides": ["train.seed=4"]}, "train.seed=4: each configuration is trained with the seeds 1 to N"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"jobs": 0}, "--jobs must be at least 1, got 0"),
        ({"search": "random"}, "unknown search 'random'; expected grid (every combination of the values) or optuna"),
        ({"trials": 3}, "--trials is for a search beyond the grid; add --search optuna, or leave it out"),
        ({"search": "optuna"}, "--search optuna needs --trials N, the number of configurations to try"),
        ({"grid": {LR: "1e-5..1e-2"}}, f"{LR} has a range, which a grid cannot try; list values as A,B,..., or add"),
        ({"overrides": ["data.valid=0.0"]}, "a sweep chooses by the score on validation data, and recipe 'copy' has"),
        (
            {"grid": {f"a.{i}": list(range(10)) for i in range(9)}},
            "this sweep has 2,000,000,000 trials of 8 steps, 16,0",
        ),
        ({"seeds": 51}, "this sweep has 102 trials of 8 steps, 816 steps in all, and at most 100 are started without"),
        ({"prune": True, "grid": {"train.steps": [8, 9]}}, "--prune compares trials at the same step; leave train"),
        ({"prune": True, "overrides": ["train.valid_every=8"]}, "--prune needs a validation before the end: train.s"),
        ({"prune": True, "overrides": ["train.steps=none", "train.epochs=1"]}, "--prune needs the number of steps;"),
        ({"recipe": "datess"}, "unknown recipe 'datess'; did you mean 'dates'?"),
    ],
)
def test_mistakes_are_found_before_any_training(recipe, folder, by_formula, options, message):
    requests = by_formula(loss_by_lr)
    with pytest.raises(SaccadeError) as error:
        sweep(options.pop("recipe", recipe), **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert not requests and not folder.exists()


def test_another_grid_under_the_same_name_is_refused(recipe, folder, by_formula):
    requests = by_formula(loss_by_lr)
    sweep(recipe)
    with pytest.raises(
        SaccadeError, match="'runs/copy-sweep' has another grid: .*=1e-09,0.01, now .*=0.02; choose anot"
    ):
        sweep(recipe, grid={LR: [0.02]})
    with pytest.raises(SaccadeError, match="was trained with train.clip = 0.0, now it is 1.0; choose another --name"):
        sweep(recipe, overrides=["train.clip=1.0"])
    with pytest.raises(SaccadeError, match="'runs/copy-sweep-lr-0.01-seed-1' is a run; choose another name"):
        sweep(recipe, name="copy-sweep-lr-0.01-seed-1")
    (folder / "copy-sweep" / "sweep.json").write_text("{")
    with pytest.raises(SaccadeError, match=r"sweep.json' is damaged; remove it: finished runs are kept"):
        sweep(recipe)
    with lock_sweep(folder / "y"), pytest.raises(SaccadeError, match="'runs/y' is being trained by another process"):
        sweep(recipe, name="y")
    assert len(requests) == 4
    assert len(sweep(recipe, seeds=3, name="z").best.runs) == 3  # more seeds go on from those that are there


def test_more_seeds_go_on_from_fewer(recipe, by_formula):
    requests = by_formula(loss_by_lr)
    sweep(recipe, seeds=1)
    result = sweep(recipe, seeds=3)
    assert len(requests) == 6 and result.best.scores == pytest.approx([2.01, 2.02, 2.03])


# ---- search


def test_the_search_finds_the_planted_rate_and_repeats_it(recipe, folder, by_formula):
    optuna = pytest.importorskip("optuna")
    requests = by_formula(lambda recipe, step: abs(math.log10(recipe.train.schedule.lr) + 2) + recipe.train.clip)
    options = {"grid": {LR: "1e-5..1e-1:log", "train.clip": [0, 1]}, "search": "optuna", "seeds": 1}
    result = sweep(recipe, **options, trials=12)
    assert result.best.values["train.clip"] == 0 and 0.001 < result.best.values[LR] < 0.1
    assert result.log_keys == [LR] and len(requests) == len(result.rows) <= 12
    count = len(requests)
    assert sweep(recipe, **options, trials=12).rows == result.rows and len(requests) == count
    more = sweep(recipe, **options, trials=14)
    assert len(more.rows) > len(result.rows)
    early = [sweep(recipe, **options, trials=count, name="early").rows for count in (2, 4)]
    assert [len(rows) for rows in early] == [2, 4]  # another start suggests other values
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_the_search_prunes_and_lists_refused_values(recipe, by_formula):
    pytest.importorskip("optuna")
    by_formula(loss_by_lr)
    options = {"search": "optuna", "seeds": 1, "trials": 12, "jobs": 2, "prune": True}
    result = sweep(
        recipe, grid={LR: "1e-5..1e-2:log", "reader.stack.heads": [1, 4], "reader.stack.dim": [8, 6]}, **options
    )
    found = {row.state for row in result.rows}
    assert found == {"finished", "pruned", "failed"}


# ---- the table


def test_the_interval_is_that_of_students_t_distribution():
    from scipy import stats

    for values in ([1.0, 3.0], [1.0, 2.0, 4.0], [float(i % 7) for i in range(31)]):
        low, high = stats.t.interval(0.95, len(values) - 1, loc=0, scale=stats.sem(values))
        assert get_half_width(values) == pytest.approx((high - low) / 2, rel=1e-3)
    assert get_half_width([1.0]) is None
    many = [float(i % 7) for i in range(200)]
    assert 1 < get_half_width(many) / (1.972 * stats.sem(many)) < 1.05


def test_the_table_is_written_and_shown(recipe, folder, by_formula, monkeypatch):
    by_formula(loss_by_lr)
    monkeypatch.setattr(report, "draw_scores", draw_scores)
    result = sweep(recipe, grid={LR: [USELESS, 0.009, GOOD], "train.clip": [0.0, 1.0]})
    page = (folder / "copy-sweep" / "report.md").read_text()
    assert page == format_page(result)
    assert "| lr | clip | loss, mean ± 95% | seeds | steps | minutes | state |" in page
    assert "| 0.01 | 0.0 | 2.0150 ± 0.0635 | 2 | 8 | 0.1 | finished |" in page
    assert "best by validation loss: train.schedule.lr=0.01 train.clip=0.0; the interval of 1 other overlaps" in page
    values = json.loads((folder / "copy-sweep" / "results.json").read_text())
    assert values == json.loads(json.dumps(result.to_dict())) and values["rows"][0]["scores"] == [2.01, 2.02]
    assert {path.name for path in (folder / "copy-sweep").glob("scores.*")} == {"scores.svg", "scores.png"}
    assert "1e-09" in (folder / "copy-sweep" / "scores.svg").read_text()
    assert isinstance(result, Tabular) and "<th>train.schedule.lr</th>" in result._repr_html_()
    assert list(result.to_pandas()["seeds"]) == [2] * 6


def test_a_single_seed_says_so(recipe, by_formula):
    by_formula(loss_by_lr)
    assert format_note(sweep(recipe, seeds=1)).endswith(
        "a single seed has no interval: --seeds 3 tells chance from difference"
    )


def test_values_that_span_a_factor_of_ten_have_a_logarithmic_axis():
    axes = {"1,10": True, "1,9": False, "0,10": False, "-1,10": False, "a,b": False, "true,false": False}
    assert {text: is_logarithmic(Axis("x", tuple(text.split(",")))) for text in axes} == axes
    assert [is_logarithmic(*parse_grid({"x": text})) for text in ("1..2:log", "1..100")] == [True, False]


def test_the_time_left_follows_the_speed_so_far(recipe, folder, by_formula):
    by_formula(loss_by_lr)
    sweep(recipe, seeds=1)
    progress = Progress(10, done=2, jobs=2, steps=8, report=[].append)
    assert progress.format_time_left() == ""
    progress.trained = {"a": (8, 4.0), "b": (4, 2.0)}  # half a second for each of the 52 steps that are left
    assert progress.format_time_left() == "13 s"
    assert [format_time(seconds) for seconds in (119, 600, 7200)] == ["119 s", "10 min", "2.0 h"]
