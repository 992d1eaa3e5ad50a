import random

import numpy
import pytest
import torch
from torch import nn

from saccade.config.schema import Train
from saccade.train.machine import (
    MemoryTracker,
    autocast,
    build_out_of_memory_error,
    deterministic_mode,
    has_finite_weights,
    reseed,
    uses_bf16,
)

GIB = 1024**3


def draws(number, seed=1):
    generator = torch.Generator()
    reseed(generator, seed=seed, number=number)
    return torch.rand(1).item(), torch.rand(1, generator=generator).item(), random.random(), numpy.random.rand()


def test_random_numbers_follow_from_seed_and_number():
    assert draws(5) == draws(5)
    for other in (draws(6), draws(5, seed=2), draws(-1)):
        assert not set(draws(5)) & set(other)


def test_exactness_is_on_for_the_cpu_and_put_back():
    with deterministic_mode(Train(), torch.device("cpu")) as wanted:
        assert wanted and torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()

    with deterministic_mode(Train(), torch.device("cuda")) as wanted:
        assert not wanted and not torch.are_deterministic_algorithms_enabled()
    with deterministic_mode(Train(deterministic=False), torch.device("cpu")) as wanted:
        assert not wanted


@pytest.mark.parametrize(
    ("precision", "device", "dtype"),
    [("auto", "cpu", torch.float32), ("bf16", "cpu", torch.bfloat16), ("fp32", "cpu", torch.float32)],
)
def test_precision(precision, device, dtype):
    with autocast(Train(precision=precision), torch.device(device)):
        assert nn.Linear(3, 2)(torch.ones(5, 3)).dtype == dtype


def test_auto_precision_is_bf16_on_cuda():
    assert uses_bf16(Train(), torch.device("cuda")) and not uses_bf16(Train(), torch.device("mps"))


def test_non_finite_weights_are_detected():
    layer = nn.Linear(3, 2)
    assert has_finite_weights(layer)
    layer.bias.data[1] = float("nan")
    assert not has_finite_weights(layer)


def test_out_of_memory_names_the_batch_that_would_fit():
    settings = Train(batch_tokens=10_000, accumulate=2)

    error = build_out_of_memory_error(
        settings, total=9 * GIB, fixed=1 * GIB, per_token=4 * GIB / 1000, resume="saccade train --resume r"
    )

    # 0.8 * 8 GiB / (4 GiB per 1000 tokens) = 1600 tokens; 20,000 tokens a step are then 13 pieces
    assert "train.batch_tokens=1600 train.accumulate=13" in str(error) and "\n" not in str(error)
    assert "saccade train --resume r" in str(error) and "recompute" in str(error)


def test_out_of_memory_by_weights_alone_says_so():
    error = build_out_of_memory_error(Train(), total=9 * GIB, fixed=9 * GIB, per_token=1e6, resume="")

    assert "no batch fits; make the model smaller" in str(error)


def test_memory_that_ends_before_the_first_batch_is_used_suggests_a_smaller_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * GIB)
    watch = MemoryTracker(Train(batch_tokens=2000), nn.Linear(3, 2), torch.device("cuda"))

    assert "train.batch_tokens=800 " in str(watch.build_error(resume=""))


@pytest.mark.parametrize(("fitted", "expected"), [(True, 800), (False, 400)])
def test_memory_watch_estimates_from_the_largest_batch(monkeypatch, fitted, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * GIB)
    watch = MemoryTracker(Train(batch_tokens=2000), nn.Linear(3, 2), torch.device("cuda"))
    watch.record_batch(1000), watch.record_batch(500)
    watch.completed_step = fitted

    assert f"train.batch_tokens={expected} " in str(watch.build_error(resume=""))
