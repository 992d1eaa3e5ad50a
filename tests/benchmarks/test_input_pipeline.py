import numpy as np
import pytest


@pytest.fixture
def pipeline(script, monkeypatch):
    module = script("input_pipeline")
    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(module, "BUDGETS", {"small": 256})
    return module


def test_generated_corpus_is_a_store(pipeline, tmp_path):
    store = pipeline.write_random_pairs(tmp_path / "store", pairs=200)

    rows = np.arange(200)
    source, target = (store.get_lengths(rows, side=side) for side in (0, 1))
    assert len(store) == 200 and source.min() >= 2 and max(source.max(), target.max()) <= 100
    assert np.corrcoef(source, target)[0, 1] > 0.9


def test_all_ways_are_measured(pipeline, tmp_path):
    rows = pipeline.measure(pipeline.write_random_pairs(tmp_path / "store", pairs=500))

    assert len(rows) == 4  # padded and packed, alone and beside a busy loop
    assert all(row["value"] > 1000 and row["ratio"] > 0 for row in rows)
