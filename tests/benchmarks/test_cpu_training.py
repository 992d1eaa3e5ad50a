from types import SimpleNamespace

import pytest
import torch

SIZE = SimpleNamespace(vocab=31, dim=8, layers=1, heads=2, ff=16, dropout=0.1)


@pytest.fixture
def training(script):
    return script("cpu_training")


@pytest.fixture
def contenders(contenders_of):
    return contenders_of("cpu_train_contender")


def batch(*lengths):
    ids = torch.nn.utils.rnn.pad_sequence([torch.arange(5, 5 + n) for n in lengths], batch_first=True)
    return SimpleNamespace(src=ids, out=ids)


def test_our_contenders_learn_on_padded_and_even_batches(contenders, training):
    assert [(name, made.name) for name, made in contenders] == [
        ("cpu-train", training.OURS),
        ("cpu-train", training.ALIKE),
    ]
    for _, made in contenders:
        one = made()
        one.build(SimpleNamespace(size=SIZE, batches=[batch(7, 3, 2), batch(5, 5)]))
        before = [parameter.detach().clone() for parameter in one.model.parameters()]

        assert torch.isfinite(one.step())
        assert all(not torch.equal(a, b) for a, b in zip(before, one.model.parameters()))


def test_ratios_are_ours_to_each_peer_and_to_the_floor(training):
    timed = [
        {"case": "mixed", "contender": "OpenNMT-py 3.5.1", "ms": 300.0, "vs_first": 1.0},
        {"case": "mixed", "contender": "nn.Transformer", "ms": 400.0, "vs_first": 0.75},
        {"case": "mixed", "contender": "JoeyNMT", "error": "ImportError: none"},
        {"case": "mixed", "contender": "saccade", "ms": 200.0, "vs_first": 1.5},
        {"case": "mixed", "contender": "saccade, dropout as the peers", "ms": 240.0, "vs_first": 1.25},
    ]

    rows = training.compare_speeds(timed, tokens=1000, floor=0.15)

    assert [(row["value"], row["peer_value"], row.get("ratio")) for row in rows] == [
        (5000, 3333, 1.5),
        (5000, 2500, 2.0),
        (5000, 6667, 0.75),
        (4167, 3333, 1.25),
        (4167, 2500, 1.667),
        (4167, 6667, 0.625),
        (4167, None, None),
    ]
    assert rows[-1]["peer"] == "not run: JoeyNMT: ImportError: none"


def test_without_our_time_there_is_no_result(training):
    with pytest.raises(SystemExit, match="saccade: boom"):
        training.compare_speeds([{"contender": "saccade", "error": "boom"}], tokens=1, floor=1.0)


def test_rate_of_a_product_is_positive(training):
    assert training.measure_matmul_rate(32) > 1e6
