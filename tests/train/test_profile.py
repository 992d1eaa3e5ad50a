import json
from collections import Counter
from types import SimpleNamespace

import pytest
import small
import torch

from saccade.config.schema import TransformerStack
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.profiling.communication import measure_communication
from saccade.train.profiling.profile import STEP_COUNTS, StepProfiler, drop_outliers, plan_phases
from saccade.train.profiling.table import count_row_flops, format_markdown, measure_matmul_rate

CPU = torch.device("cpu")
SHORT = {"steps": 12, "valid_every": 12, "save_every": 12}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, cache):
    """A run with a profile, and the values of its profile.json."""
    path = tmp_path_factory.mktemp("profiled") / "run"
    small.api.train(small.small(**SHORT, profile=True), run=path)
    return path, json.loads((path / "profile.json").read_text())


def test_weights_are_the_same_with_and_without(profiled, fit):
    assert small.weights(profiled[0], 12) == small.weights(fit(**SHORT), 12)


def test_parts_make_up_the_step(profiled):
    _, values = profiled

    assert set(values["parts_ms"]) == {"data", "forward", "backward", "optimizer", "rest"}
    assert all(ms > 0 for ms in values["parts_ms"].values())
    assert sum(values["parts_ms"].values()) == pytest.approx(values["timed_step_ms"])


def test_speed_and_use_of_the_machine_are_reported(profiled):
    _, values = profiled

    kept = values["steps"]["usual"]
    assert values["steps"] == {"warm": 3, "plain": 3, "parts": 3, "traced": 3, "usual": kept} and 1 < kept <= 3
    assert values["tokens_per_second"] == pytest.approx(1000 * values["tokens_per_step"] / values["step_ms"])
    used = 1000 * values["model_flops_per_step"] / values["step_ms"]
    assert values["mfu"] == pytest.approx(used / values["matrix_flops_per_second"])
    assert 0 < values["mfu"] < 1
    assert 0 <= values["padding"] < 0.5 and values["peak_memory_bytes"] > 2**20
    assert values["waited_for_data_ms"] < values["step_ms"]


def test_operators_and_parts_stand_in_the_trace(profiled):
    run, values = profiled
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = Counter(event.get("name") for event in events)

    # two micro-batches in each of three steps, one optimizer step in each
    assert names["forward"] == names["backward"] == names["data"] == 6 and names["optimizer"] == 3
    assert values["operators"][0]["ms"] >= values["operators"][1]["ms"] > 0
    assert sum(operator["share"] for operator in values["operators"]) <= 1.001
    assert not {"forward", "step"} & {operator["name"] for operator in values["operators"]}


def test_table_has_the_values_of_the_profile(profiled):
    run, values = profiled
    text = (run / "profile.md").read_text()

    assert text == format_markdown(values)
    for part in ("| forward |", "| MFU |", "| padding |", "`aten::", "https://ui.perfetto.dev", "counted"):
        assert part in text


@pytest.mark.cuda
def test_busy_time_of_the_gpu_is_reported(fit):
    run = fit(**{**SHORT, "steps": 40}, device="cuda", profile=True)
    values = json.loads((run / "profile.json").read_text())

    assert values["device_busy_ms"] > 0 and values["device_waiting_ms"] >= 0
    assert sum(values["parts_ms"].values()) == pytest.approx(values["timed_step_ms"])
    assert values["operators"] and values["peak_memory_bytes"] > 0


def test_waiting_of_a_gpu_is_shown(profiled):
    text = format_markdown({**profiled[1], "step_ms": 10.0, "device_busy_ms": 8.0, "device_waiting_ms": 2.0})

    assert "| the GPU computed | 8.00 ms a step (80.0%) |" in text
    assert "| the GPU waited for the host | 2.00 ms a step (20.0%) |" in text


def test_no_profile_is_written_by_default(fit):
    run = fit(**{**SHORT, "steps": 4})

    assert not list(run.glob("profile.*")) and not (run / "trace.json").exists()


def test_a_run_too_short_for_a_profile_is_reported(fit, capfd):
    run = fit(**{**SHORT, "steps": 2}, profile=True)

    assert "no profile was written: this took 0 steps, a profile takes 3" in capfd.readouterr().err
    assert not (run / "profile.md").exists()


def test_run_that_ends_in_a_trace_lets_go_of_the_profiler():
    watch = StepProfiler(True, prefetcher=SimpleNamespace(rows=0, tokens=Counter()), device=CPU)
    watch.plan(steps_left=3)
    with pytest.raises(KeyboardInterrupt):
        for number in range(3):
            with watch.profile_step():
                if number == 2:
                    raise KeyboardInterrupt

    watch.close()

    assert watch.get_result() is None
    with torch.profiler.profile(acc_events=True):  # two at a time are refused
        pass


@pytest.mark.parametrize("left", [3, 4, 11, 27])
def test_short_run_has_steps_of_every_kind(left):
    counts = Counter(plan_phases(left))

    assert all(counts[kind] for kind in ("plain", "parts", "traced"))
    assert counts.total() <= left


def test_long_run_is_watched_for_a_few_steps_only():
    assert Counter(plan_phases(None)) == Counter(plan_phases(10**6)) == Counter(STEP_COUNTS)
    assert plan_phases(2) == []


def test_parts_run_one_by_one_only_where_they_are_timed():
    watch = StepProfiler(True, prefetcher=SimpleNamespace(rows=0, tokens=Counter()), device=CPU)
    watch.plan(steps_left=3)
    apart = []
    for _ in range(4):
        with watch.profile_step():
            apart.append(watch.needs_eager)

    assert apart == [False, True, True, False]
    assert watch.get_result() is not None and watch.get_result() is None


def test_outlier_steps_are_dropped():
    """The second step captures a graph."""
    loads = [(2, Counter(source=5)), (9, Counter(source=9)), (3, Counter(source=7))]

    assert drop_outliers([1.0, 9.0, 1.5], loads) == (2, 2.5, 5, Counter(source=12))


def test_gpu_has_longer_to_warm_up():
    watch = StepProfiler(True, prefetcher=None, device=torch.device("cuda"))
    watch.plan(steps_left=None)

    assert watch.phases.index("plain") == 100


def test_flops_are_those_of_the_matrix_products(model):
    """By hand: 2 FLOPs for each weight and token forward and 4 backward; the same for scores and their use."""
    loss = SimpleNamespace(objectives=[next_token_loss], device=CPU)
    rows, source, target = 3, 5, 7
    found = SimpleNamespace(rows=rows, tokens=Counter(source=rows * source, target=rows * target))
    stack = TransformerStack(layers=1, dim=14, heads=2, ff=19)
    square, ff = stack.dim**2, 2 * stack.dim * stack.ff
    weights = source * (4 * square + ff) + target * (6 * square + ff) + source * 2 * square + target * stack.dim * 13
    scores = 2 * stack.dim * (source * source + target * target + target * source)

    assert count_row_flops(loss, found, model=model.eval()) == 6 * weights + 6 * scores


def test_rate_of_the_machine_is_measured():
    assert 1e8 < measure_matmul_rate(CPU, torch.float32) < 1e15


def plant(name, begin, end, device="CUDA", annotation=False):
    span = SimpleNamespace(start=begin, end=end)
    kind = SimpleNamespace(name=device)
    return SimpleNamespace(name=name, time_range=span, device_type=kind, is_user_annotation=annotation)


def test_communication_is_hidden_while_kernels_compute():
    """Of 500 us in collective operations, kernels run during 100 of the first 400 and during none of the others."""
    events = [
        plant("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1000, 1400),
        plant("ncclDevKernel_AllGather_RING_LL", 1300, 1400),
        plant("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2000, 2100),
        plant("nccl:all_reduce", 0, 9000, annotation=True),
        plant("gemm", 900, 1050), plant("gemm", 1020, 1060), plant("softmax", 1360, 1500),
        plant("forward", 0, 9000, annotation=True), plant("aten::mm", 0, 9000, "CPU"),
    ]  # fmt: skip

    found = measure_communication(events, steps=2)

    assert found["ms"] == pytest.approx(0.25) and found["hidden"] == pytest.approx(100 / 500)
    reduce, gather = found["operations"]
    assert reduce == {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ms": pytest.approx(0.25), "calls": 1.0}
    assert gather == {"name": "ncclDevKernel_AllGather_RING_LL", "ms": pytest.approx(0.05), "calls": 0.5}


def test_communication_on_cpus_is_hidden_while_operators_compute(profiled):
    events = [
        plant("gloo:all_reduce", 0, 100, "CPU", annotation=True),
        plant("aten::mm", 50, 75, "CPU"),
        plant("other", 0, 9, "CPU"),
    ]

    assert measure_communication(events, steps=1)["hidden"] == 0.25
    assert measure_communication(events[1:], steps=1) == {} == profiled[1]["communication"]
    assert "collective" not in (profiled[0] / "profile.md").read_text()
