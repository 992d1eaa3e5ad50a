"""`saccade runs`."""

import json
import os
import time
from pathlib import Path

import pytest

from saccade.config.load import load, save
from saccade.errors import SaccadeError
from saccade.runs import LOCK, build_not_a_run_error, find_run, list_runs, lock_run, read_metric_lines, read_metrics

BEST = {"event": "valid", "step": 200, "loss": 0.5, "accuracy": 97.0, "best": True}
WORSE = {"event": "valid", "step": 300, "loss": 0.9, "accuracy": 11.0, "best": False}
MEAN = {"event": "average", "step": 300, "loss": 0.4, "accuracy": 98.5, "chosen": True}


def make_run(folder: Path, name: str, *, lines: list[dict], age: float = 0.0, card: bool = False) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    save(load("dates"), path / "recipe.toml")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file in path.iterdir():
        os.utime(file, (time.time() - age,) * 2)
    if card:
        (path / "card.md").write_text("card")
    return path


def test_an_empty_list_of_runs_is_reported(cli):
    assert cli("runs").out == "no runs in runs yet; try `saccade demo`\n"


def test_runs_are_listed_with_state_step_score_and_size(cli, tmp_path):
    make_run(tmp_path / "runs", "a", lines=[BEST, WORSE], age=9000)
    done = make_run(tmp_path / "runs", "b", lines=[BEST], age=5000, card=True)
    (done / "model.safetensors").write_bytes(b"x" * 2_300_000)
    make_run(tmp_path / "runs", "c", lines=[{"event": "train", "step": 50, "loss": 3.0}])
    (tmp_path / "runs" / "not-a-run").mkdir()
    lines = [line.split("  ") for line in cli("runs").out.splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["run", "state", "step", "score", "size"],
        ["a", "interrupted", "300", "accuracy 97.00", "-"],
        ["b", "finished", "200", "accuracy 97.00", "2.3 MB"],
        ["c", "interrupted", "50", "-", "-"],
    ]


def test_a_copy_of_a_finished_run_is_finished_whatever_the_times_of_its_files(tmp_path):
    path = make_run(tmp_path, "a", lines=[BEST], card=True)
    os.utime(path / "card.md", (time.time() - 60,) * 2)
    assert list_runs(tmp_path)[0].state == "finished"


def test_the_score_is_that_of_the_averaged_weights_where_they_are_used(tmp_path):
    make_run(tmp_path, "a", lines=[BEST, WORSE, MEAN])
    assert list_runs(tmp_path)[0].score == "accuracy 98.50"


def test_a_half_written_line_and_a_broken_recipe_do_not_stop_the_list(tmp_path):
    path = make_run(tmp_path, "a", lines=[BEST])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    (path / "recipe.toml").write_text("broken = ")
    assert list_runs(tmp_path)[0].score == "loss 0.50"


def test_json(cli, tmp_path):
    make_run(tmp_path / "runs", "a", lines=[BEST])
    [entry] = json.loads(cli("runs", "--json").out)
    assert (entry["name"], entry["step"], entry["state"]) == ("a", 200, "interrupted")


def test_the_folder_of_runs_can_be_chosen(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "elsewhere"))
    make_run(tmp_path / "elsewhere", "a", lines=[BEST])
    assert "a  " in cli("runs").out
    assert find_run("a") == tmp_path / "elsewhere" / "a"


def test_a_run_is_found_by_path_before_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "a", lines=[])
    assert find_run("a") == Path("runs/a")
    assert find_run("runs/a") == Path("runs/a")
    (tmp_path / "a").mkdir()
    assert find_run("a") == Path("runs/a")  # the other one is no run
    (tmp_path / "a" / "recipe.toml").touch()
    assert find_run("a") == Path("a")
    assert find_run("none") == Path("none")


def test_only_whole_lines_of_metrics_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_bytes(b'{"step": 1}\n[2]\n"x"\n{"loss": 3}\n{"step": "4"}\n\xff\n{"step": 5, "x": 1}\n{"ste')
    assert read_metrics(path) == [{"step": 1}, {"step": 5, "x": 1}]
    assert [line for line, _ in read_metric_lines(path)] == ['{"step": 1}', '{"step": 5, "x": 1}']


def test_a_run_in_training_is_listed_and_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path))
    run = tmp_path / "one"
    run.mkdir()
    (run / "recipe.toml").write_text("")
    with lock_run(run):
        assert [entry.state for entry in list_runs()] == ["training"]
        with pytest.raises(SaccadeError, match="one' is being trained by another process"), lock_run(run):
            pass
    assert [entry.state for entry in list_runs()] == ["interrupted"]
    assert sorted(path.name for path in run.iterdir()) == [LOCK, "recipe.toml"]


def test_a_mistyped_run_is_reported_with_a_suggestion(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path))
    (tmp_path / "first").mkdir()
    assert "'frist' is not a run" in str(build_not_a_run_error(Path("frist"))) and "'first'?" in str(
        build_not_a_run_error(Path("frist"))
    )


@pytest.mark.parametrize("line", ['{"step": 1}', '{"step": "x"}', "[" * 9999, '{"step": %s}' % ("9" * 5000), "\udcff"])
def test_a_damaged_line_of_metrics_is_passed_over(tmp_path, line):
    run = make_run(tmp_path, "a", lines=[BEST])
    huge = json.dumps({**WORSE, "best": True, "accuracy": 10**400})
    with (run / "metrics.jsonl").open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{line}\n{huge}\n")
    [entry] = list_runs(tmp_path)
    assert (entry.step, entry.score) == (200, "accuracy 97.00")


def test_a_broken_run_does_not_end_the_list(cli, tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        make_run(tmp_path / "runs", name, lines=[BEST])
    (tmp_path / "runs" / "b" / "recipe.toml").write_text("a=" + "[" * 99_999)
    (tmp_path / "runs" / "c" / "metrics.jsonl").unlink()
    (tmp_path / "runs" / "c" / "metrics.jsonl").mkdir()
    (tmp_path / "runs" / "loop").symlink_to("loop")
    assert sorted((entry.name, entry.score) for entry in list_runs(tmp_path / "runs")) == [
        ("a", "accuracy 97.00"), ("b", "loss 0.50"), ("c", "-"),
    ]  # fmt: skip
    read_text = Path.read_text

    def refuse(path, *args, **kwargs):
        if path.parent.name == "b":
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    result = cli("runs")
    assert (result.code, "b    unreadable" in result.out) == (0, True)
    assert len(result.out.splitlines()) == 4


def test_metrics_without_losses_have_no_curve(tmp_path):
    from saccade.score.compare import read_training_minutes
    from saccade.train.finish import plot_loss

    run = make_run(
        tmp_path, "a", lines=[{"step": 3}, {"event": "train", "step": 4}, {"event": "valid", "step": 5, "loss": "x"}]
    )
    plot_loss(run)
    assert read_training_minutes(run) is None


def test_a_copy_of_what_prediction_needs_is_finished(tmp_path):
    for name in ("copy", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text("")
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    (tmp_path / "killed" / "checkpoints").mkdir()
    assert {entry.name: entry.state for entry in list_runs(tmp_path)} == {"copy": "finished", "killed": "interrupted"}
