"""A step that runs out of memory is taken again with smaller micro-batches, and gives the same update."""

import json

import pytest
import small
import torch
from safetensors.torch import load_file
from test_distributed import port  # noqa: F401  # a fixture
from test_step import FIRST, SECOND, FixedBatches, session

from saccade.data.batching.batch import Batch, Frames, Pictures, pad
from saccade.errors import SaccadeError
from saccade.kernels import memory
from saccade.kernels.memory import is_out_of_memory
from saccade.train import loop, validate
from saccade.train.batches.pack import pack_batch
from saccade.train.distributed.gradients import GradientBuckets
from saccade.train.distributed.ranks import Ranks
from saccade.train.loss import MicroBatchLoss
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.terms import Term
from saccade.train.out_of_memory import report_out_of_memory
from saccade_worlds.navigation.poses import NavigationGraph

STEPS = {"steps": 6, "valid_every": 3, "save_every": 2, "report_every": 2, "accumulate": 1}
WHOLE = Batch(
    {
        "source": pad([[5, 6, 2], [7, 2], [8, 9, 4, 2], [6, 2], [5, 2]]),
        "target": pad([[6, 5, 4, 9, 2], [7, 2], [8, 2], [6, 6, 2], [9, 2]]),
    }
)


class Memory:
    """Forward or backward passes of more than `rows` rows run out of memory, or only the nth pass."""

    def __init__(self, monkeypatch, rows=0, *, backward=False, first_call=1, only_call=None):
        self.calls, forward = [], MicroBatchLoss.forward

        def limited(loss, batch, generator):
            if not loss.training:
                return forward(loss, batch, generator)
            self.calls.append(len(batch["target"].ids))
            number = len(self.calls)
            fails = number == only_call if only_call else self.calls[-1] > rows and number >= first_call
            if fails and not backward:
                run_out()
            losses = forward(loss, batch, generator)
            if fails:  # in the reader, when the gradients of the writer are there
                parameter = next(loss.model.reader.stack.parameters())
                handle = parameter.register_hook(lambda gradient: (handle.remove(), run_out()))
            return losses

        monkeypatch.setattr(MicroBatchLoss, "forward", limited)


def run_out(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class Lines:
    """A log that keeps what is reported."""

    def __init__(self):
        self.lines, self.records = [], []

    def print_line(self, text):
        self.lines.append(text)

    def record(self, event, *, step, values):
        self.records.append((event, step, values))


def logged(batches, **settings):
    s = session(batches, **settings)
    s.log = Lines()
    return s


def state(run, step):
    return json.loads((run / "checkpoints" / f"step-{step}" / "state.json").read_text())


def assert_same_weights(one, other, **tolerance):
    for expected, parameter in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, **tolerance)


EXACT = {"atol": 0, "rtol": 0}
SMOOTH = {"optimizer": {"eps": 0.1}}  # so that Adam does not blow up rounding errors of gradients that are 0


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("rows", "split"), [(4, 2), (2, 4), (1, 8)])
def test_update_is_that_of_the_whole_batch(monkeypatch, backward, rows, split):
    whole, s = session([WHOLE], **SMOOTH), logged([WHOLE], **SMOOTH)
    loop.optimizer_step(whole)
    Memory(monkeypatch, rows, backward=backward)

    loop.optimizer_step(s)

    assert (s.progress.split, s.progress.step) == (split, 1)
    assert_same_weights(whole, s, atol=1e-7, rtol=1e-5)
    assert s.meter.read(Ranks()) == pytest.approx(whole.meter.read(Ranks()), rel=1e-5)


def test_update_is_bit_equal_to_accumulation_of_the_parts(monkeypatch):
    """With dropout: micro-batches are numbered, and get random numbers, as with train.accumulate=4."""
    accumulated = session([*FIRST.split(2), *WHOLE.split(2)], dropout=0.3)
    s = logged([FIRST, WHOLE], dropout=0.3)
    Memory(monkeypatch, 3)

    loop.optimizer_step(accumulated), loop.optimizer_step(s)

    assert s.progress.split == 2
    assert_same_weights(accumulated, s, **EXACT)
    assert s.meter.read(Ranks()) == accumulated.meter.read(Ranks())


def test_later_steps_keep_the_split_and_fail_no_more(monkeypatch):
    memory = Memory(monkeypatch, 3)
    s = logged([WHOLE, WHOLE, SECOND], accumulate=1)

    for _ in range(3):
        loop.optimizer_step(s)

    assert memory.calls == [5, 2, 3, 2, 3, 1]
    assert s.log.records == [("out-of-memory", 1, {"micro_batches_before": 1, "micro_batches": 2})]
    assert len(s.log.lines) == 1 and "step 1: out of memory" in s.log.lines[0]


def test_terms_with_counts_of_their_own_are_weighted_as_in_accumulation(monkeypatch):
    def pull(model, batch, generator):
        rows = len(batch["target"].ids)
        return {"pull": Term(rows**2 * model.writer.output.weight.sum(), rows, 1.0)}

    objectives = (next_token_loss, pull)
    s, accumulated = logged([WHOLE], objectives=objectives), session(WHOLE.split(2), objectives=objectives)
    Memory(monkeypatch, 3)

    loop.optimizer_step(s), loop.optimizer_step(accumulated)

    assert_same_weights(accumulated, s, **EXACT)


def test_buffers_that_a_failed_attempt_changed_are_restored(monkeypatch):
    s = logged([WHOLE])
    s.model.register_buffer("calls", torch.zeros(()))

    def counted(model, batch, generator):
        model.calls.add_(len(batch["target"].ids))
        if len(batch["target"].ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return next_token_loss(model, batch, generator)

    s.loss.objectives = (counted,)

    loop.optimizer_step(s)

    assert s.model.calls == 5


@pytest.mark.parametrize("newest", [True, False])
def test_a_single_example_that_does_not_fit_is_one_line(fit, tmp_path, monkeypatch, newest):
    Memory(monkeypatch, first_call=6 if newest else 1)

    with pytest.raises(SaccadeError) as error:
        fit(**STEPS, pack=False)

    where = "step 6" if newest else "step 1"
    assert f"out of memory at {where} with a micro-batch of one example (positions: source " in str(error.value)
    assert "lower data.max_length" in str(error.value) and "\n" not in str(error.value)
    end = "go on from step-4 with: saccade train --resume" if newest else "no checkpoint had been written yet"
    assert end in str(error.value)
    assert (tmp_path / "run/checkpoints/step-4").exists() == newest


def test_stop_ends_with_settings_that_fit(fit, monkeypatch):
    Memory(monkeypatch, first_call=4)

    with pytest.raises(SaccadeError, match=r"out of memory .*train.batch_tokens=128 train.accumulate=2.*--resume"):
        fit(**STEPS, on_out_of_memory="stop", pack=False)


def test_episodes_cannot_be_split():
    episodes = Batch({"source": Pictures(torch.zeros(5, 3, 2, 2), torch.ones(5, 1).bool()), "action": pad([[1], [2]])})
    assert episodes.num_rows is None and episodes.split(2) == [episodes]


def test_other_errors_are_raised(monkeypatch):
    s = logged([WHOLE])
    s.loss.objectives = (lambda model, batch, generator: [][1],)
    with pytest.raises(IndexError):
        loop.optimizer_step(s)

    def broken(model, batch, generator):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    s = logged([WHOLE])
    s.loss.objectives = (broken,)
    with pytest.raises(RuntimeError, match="mat1"):
        loop.optimizer_step(s)


def test_memory_that_runs_out_in_the_update_ends_the_training(fit, monkeypatch):
    """Half of the weights may have been updated, so the step cannot be taken again."""

    def full(s, scale):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "apply_gradients", full)

    with pytest.raises(SaccadeError, match="out of memory with train.batch_tokens=256"):
        fit(**STEPS)


@pytest.mark.parametrize(
    "message",
    [
        "MPS backend out of memory (MPS allocated: 5.44 GB)",
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "not enough memory: you tried to allocate 8000000000000 bytes.",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_messages_of_all_allocators_are_known(message):
    assert is_out_of_memory(RuntimeError(message)) and is_out_of_memory(torch.OutOfMemoryError(""))
    assert not is_out_of_memory(RuntimeError("shape mismatch")) and not is_out_of_memory(ValueError(message))


def test_error_at_the_end_of_a_capture_hides_no_out_of_memory():
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert is_out_of_memory(error)


def test_the_allocator_of_this_machine_is_known():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)


def test_step_goes_on_without_cuda_graphs_that_do_not_fit(monkeypatch):
    plain = session([WHOLE, FIRST], accumulate=1, dropout=0.3)
    s = logged([WHOLE, FIRST], accumulate=1, dropout=0.3)
    calls = []

    def graphs(batch):
        calls.append(batch)
        s.model.writer.output.weight.grad = torch.ones_like(s.model.writer.output.weight)
        raise torch.OutOfMemoryError("CUDA out of memory")

    s.cuda_graphs = graphs

    for _ in range(2):
        loop.optimizer_step(s), loop.optimizer_step(plain)

    assert len(calls) == 1 and s.cuda_graphs is None
    assert (s.progress.split, s.progress.step) == (1, 2)
    assert_same_weights(plain, s, **EXACT)
    assert s.meter.read(Ranks()) == plain.meter.read(Ranks())
    assert s.log.lines == ["step 1: out of memory for CUDA graphs; training goes on without them"]


def test_a_capture_of_sharded_steps_that_runs_out_of_memory_ends_the_training_with_one_line():
    """The other processes are in the middle of an exchange, so that it cannot go on without graphs."""
    s = logged([WHOLE], accumulate=1)
    s.ranks, s.run = Ranks(mesh=object()), small.Path("r")

    def capture(batch):
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    for buckets in (None, GradientBuckets(s.model)):  # of a whole step, of the passes of a micro-batch
        s.cuda_graphs, s.buckets = capture, buckets
        s.prefetcher = FixedBatches([WHOLE])
        with pytest.raises(SaccadeError) as error, report_out_of_memory(s):
            loop.optimizer_step(s)
        assert str(error.value).startswith("out of memory with train.batch_tokens=") and "\n" not in str(error.value)


def test_captured_update_that_fails_halfway_is_not_taken_again(monkeypatch):
    s = logged([WHOLE])
    s.cuda_graphs = lambda batch: loop.compute_step(s, batch)
    s.run = small.Path("r")

    def full(s, scale):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "apply_gradients", full)

    with pytest.raises(SaccadeError, match="out of memory with"):
        loop.optimizer_step(s)


def test_split_batches_are_those_that_are_collated_from_their_rows():
    first, second = WHOLE.split(2)
    assert first["source"].ids.tolist() == [[5, 6, 2], [7, 2, 0]] and first.counts == {"source": 5, "target": 7}
    assert second["source"].ids.tolist() == [[8, 9, 4, 2], [6, 2, 0, 0], [5, 2, 0, 0]]
    assert [part.num_rows for part in WHOLE.split(8)] == [1] * 5
    for name in ("source", "target"):
        assert sum(part.counts[name] for part in WHOLE.split(3)) == WHOLE.counts[name]


def test_pictures_sound_and_maps_are_split_too():
    rows = torch.arange(3.0)
    batch = Batch(
        {
            "source": Pictures(rows[:, None, None, None].expand(3, 3, 2, 2), torch.ones(3, 4).bool()),
            "sound": Frames(rows[:, None, None].expand(3, 5, 2), torch.ones(3, 5).bool()),
            "ground": NavigationGraph(
                rows[:, None].long(), torch.ones(3, 1).bool(), torch.zeros(9, 2), torch.zeros(9, 1)
            ),
        }
    )
    parts = batch.split(3)
    for number, part in enumerate(parts):
        assert part["source"].values.unique() == part["sound"].values.unique() == part["ground"].start_poses == number
        assert part["ground"].transitions.shape == (9, 2)


def test_parts_are_packed_like_whole_batches(monkeypatch):
    feed = small.prefetch.Prefetcher(Fixed([WHOLE]), device=torch.device("cpu"), transform=pack_batch)
    feed.next_batch()
    parts = feed.load_parts(feed.untransformed, 2)

    for part, expected in zip(parts, WHOLE.split(2), strict=True):
        assert part["source"].ids.flatten().tolist() == expected["source"].ids[expected["source"].mask].tolist()


class Fixed:
    epoch = 0.0

    def __init__(self, batches):
        self.batches = iter(batches)

    def __next__(self):
        return next(self.batches)

    def state(self):
        return {}


@pytest.mark.parametrize("pack", [True, False])
def test_run_that_was_split_resumes_exactly(fit, monkeypatch, pack):
    settings = {**STEPS, "pack": pack}
    with monkeypatch.context() as patch:
        Memory(patch, only_call=3)
        run = fit(**settings)
    assert state(run, 2)["progress"]["split"] == 1 and state(run, 4)["progress"]["split"] == 2
    weights, events = small.weights(run, 6), [(line["event"], line["step"]) for line in small.read_metrics(run)]
    assert events.count(("out-of-memory", 3)) == 1
    assert weights != small.weights(fit("whole", **settings), 6)  # other random numbers

    small.checkpoint.remove(run / "checkpoints/step-6")
    fit(resume=True)

    assert small.weights(run, 6) == weights
    assert [(line["event"], line["step"]) for line in small.read_metrics(run)] == events


def test_run_that_is_killed_in_the_step_that_fails_is_exact(fit, monkeypatch, run_in_process, tmp_path):
    """It resumes from before the split, runs out of memory at the same step and splits again."""
    settings = {**STEPS, "steps": 4}
    with monkeypatch.context() as patch:
        Memory(patch, only_call=3)
        whole = fit("whole", **settings)
    assert run_in_process(small.train_and_die, str(tmp_path / "run"), settings, "update", 3) == -9

    Memory(monkeypatch, only_call=1)
    run = fit(resume=True)

    assert small.weights(run, 4) == small.weights(whole, 4)


def test_all_processes_split_when_one_runs_out_of_memory(processes, tmp_path, port):  # noqa: F811
    one, two = tmp_path / "one", tmp_path / "two"
    part = {"stack": {**small.STACK, "dropout": 0.0}, "dropout": 0.0}
    train = {"steps": 6, "valid_every": 3, "save_every": 3, "clip": 1.0, "on_out_of_memory": "split", **SMOOTH}
    train["parts"] = {"reader": part, "writer": part}
    started = [
        processes.Process(target=small.train_one_rank, args=(str(two), {**train, "accumulate": 2}, rank, port, fails))
        for rank, fails in ((0, 0), (1, 3))
    ]
    started.append(processes.Process(target=small.train_or_resume, args=(str(one), {**train, "accumulate": 2})))
    for process in started:
        process.start()
    for process in started:
        process.join(120)

    assert [process.exitcode for process in started] == [0, 0, 0]
    assert state(two, 3)["progress"]["split"] == 2
    assert [line["step"] for line in small.read_metrics(two) if line["event"] == "out-of-memory"] == [3]
    weights, same = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name, tensor in weights.items():
        torch.testing.assert_close(same[name], tensor, atol=1e-5, rtol=0)


class FreeMemory:
    """Free memory on a CPU for the results of operations, each alone."""

    def __init__(self, monkeypatch, free):
        self.asked, self.granted = [], []
        monkeypatch.setattr(memory, "MIN_CHECKED_BYTES", 0)
        monkeypatch.setattr(memory, "is_free", self.grant)
        self.free = free

    def grant(self, needed):
        self.asked.append(needed)
        if needed <= self.free:
            self.granted.append(needed)
        return needed <= self.free


def test_a_linear_layer_that_does_not_fit_on_the_cpu_splits_the_batch(monkeypatch):
    """The widest output, of queries, keys and values, has 5 x 5 x 42 floats; three rows are free."""
    whole = session([WHOLE], **SMOOTH)
    loop.optimizer_step(whole)
    s, free = logged([WHOLE, WHOLE], accumulate=1, **SMOOTH), FreeMemory(monkeypatch, 4 * 3 * 5 * 42)

    loop.optimizer_step(s)

    assert s.progress.split == 2 and "out of memory; from here on a batch is split into 2" in s.log.lines[0]
    assert_same_weights(whole, s, atol=1e-7, rtol=1e-5)
    asked = len(free.asked)
    loop.optimizer_step(s)
    assert len(free.asked) == asked  # not in further steps


def measure_loss(s):
    return validate.compute_mean_loss(s, [(0, WHOLE), (1, SECOND)])


def test_validation_computes_a_batch_that_does_not_fit_on_the_cpu_in_parts(monkeypatch):
    s = session([WHOLE])
    whole = measure_loss(s)
    free = FreeMemory(monkeypatch, 4 * 3 * 5 * 42)  # three rows of the widest output

    assert measure_loss(s) == pytest.approx(whole, rel=1e-6)
    refused = 4 * 5 * 4 * 42  # five rows of four source tokens
    assert refused in free.asked
    s.progress.split = 2  # as a batch of training
    free.asked.clear()
    assert measure_loss(s) == pytest.approx(whole, rel=1e-6)
    assert refused not in free.asked


def test_an_example_of_validation_that_does_not_fit_ends_the_training(monkeypatch):
    s = session([WHOLE])
    FreeMemory(monkeypatch, 4 * 4 * 42)
    with pytest.raises(SaccadeError, match="out of memory with train.batch_tokens"), report_out_of_memory(s):
        measure_loss(s)


def test_a_training_whose_validation_and_outputs_do_not_fit_ends_as_any_other(tmp_path, monkeypatch):
    """The same outputs and scores, from smaller batches, and no layer that did not fit."""
    train = {**STEPS, "valid_predictions": 40, "metric": "accuracy", "stack": {**small.STACK, "dropout": 0.0}}
    small.api.train(small.small(**train), run=tmp_path / "one")
    free = FreeMemory(monkeypatch, 4 * 4 * 90 * 42)
    small.api.train(small.small(**train), run=tmp_path / "other")

    one, other = (
        [line for line in small.read_metrics(tmp_path / name) if line["event"] == "valid"] for name in ("one", "other")
    )
    assert len(one) == len(other) == 2
    for before, after in zip(one, other, strict=True):
        assert after["accuracy"] == before["accuracy"]
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-3)
    decoding = 4 * small.TRAIN["batch_tokens"] * 2 * 4 * 17  # by the feed-forward network, in batches of the usual size
    assert max(free.granted) <= free.free < decoding
