import socket

import pytest
import split_training
import torch
from split_training import Trial, compare, train

TOLERANCE = 1e-10
TENSOR_2, TENSOR_4 = (("tensor",), (2,)), (("tensor",), (4,))
TWICE_TENSOR_2, SHARDED_TENSOR_2 = (("copy", "tensor"), (2, 2)), (("shard", "tensor"), (2, 2))
SMALL = ("data.max_length=16", "writer.stack.dim=16", "writer.stack.layers=1")


def start_workers(processes, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return split_training.Workers(processes, count, port)


@pytest.fixture(scope="module")
def two(processes):
    workers = start_workers(processes, 2)
    yield workers
    workers.stop()


@pytest.fixture(scope="module")
def four(processes):
    workers = start_workers(processes, 4)
    yield workers
    workers.stop()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_equal(trial, outcomes):
    """All processes have the losses, gradients, weights and random numbers of one process."""
    expected = train(trial)
    for outcome in outcomes:
        differences = compare(outcome, expected)
        assert max(differences.values()) <= TOLERANCE, differences
        assert torch.equal(outcome.random_state, expected.random_state)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_language_model_split_over_two_processes_trains_like_one(two, sequence_parallel):
    trial = Trial.load("gpt2", *SMALL)

    check_equal(trial, two(train, trial, TENSOR_2, sequence_parallel=sequence_parallel))
