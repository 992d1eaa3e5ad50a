import socket

import pytest
import small
import torch
from safetensors.torch import load_file

from saccade.errors import SaccadeError
from saccade.train.distributed.ranks import Ranks, init_distributed

TRAIN = {"steps": 10, "valid_every": 5, "save_every": 5, "clip": 1.0, "average": {"kind": "last", "n": 2}}


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_two_processes_give_losses_and_weights_of_one(processes, tmp_path, port):
    one, two = tmp_path / "one", tmp_path / "two"
    started = [
        processes.Process(target=small.train_one_rank, args=(str(two), {**TRAIN, "accumulate": 2}, rank, port))
        for rank in range(2)
    ]
    started.append(processes.Process(target=small.train_or_resume, args=(str(one), {**TRAIN, "accumulate": 2})))

    for process in started:
        process.start()
    for process in started:
        process.join(120)

    assert [process.exitcode for process in started] == [0, 0, 0]
    expected, got = small.read_metrics(one), small.read_metrics(two)
    assert expected[-1]["event"] == "average"
    assert [(line["event"], line["step"]) for line in got] == [(line["event"], line["step"]) for line in expected]
    assert [line["loss"] for line in got] == pytest.approx([line["loss"] for line in expected], abs=1e-6)
    weights, same = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name, tensor in weights.items():
        torch.testing.assert_close(same[name], tensor, atol=1e-6, rtol=0)


def test_one_process_needs_no_process_group():
    ranks = Ranks()

    assert (
        ranks.is_main and ranks.any_rank(True, torch.device("cpu")) and not ranks.any_rank(False, torch.device("cpu"))
    )
    assert ranks.all_reduce(torch.tensor(3.0)) == 3.0
    assert ranks.run_main_first(lambda: 7) == 7


def test_process_without_a_gpu_is_reported(monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    with pytest.raises(SaccadeError, match=r"process 1 of this machine has no GPU: there are 1; .* train.device=cpu"):
        init_distributed(torch.device("cuda"))
