"""Predictions for which memory runs out end with one line, and smaller batches find the same."""

import pytest

from saccade.errors import MemoryExhausted
from saccade.kernels import memory


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 2 GiB", "[enforce fail] DefaultCPUAllocator"]
)
def test_memory_that_runs_out_in_prediction_is_one_line(make_predictor, monkeypatch, message):
    predictor = make_predictor()
    expected = r"^out of memory with predict.batch_tokens = 4096; lower batch_tokens"
    with pytest.raises(MemoryExhausted, match=expected), predictor.inference():
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="shapes"), predictor.inference():
        raise RuntimeError("shapes differ")


FREE = 4 * 24 * 4 * 11 * 2  # for the largest result with one input, a buffer for its keys


def test_outputs_that_do_not_fit_are_found_in_smaller_batches(make_predictor, monkeypatch):
    predictor, texts = make_predictor(), ["abc", "ab", "gfed", "a"]
    expected = predictor.predict(texts)
    monkeypatch.setattr(memory, "MIN_CHECKED_BYTES", 0)
    monkeypatch.setattr(memory, "is_free", lambda needed: needed <= FREE)
    with pytest.raises(MemoryExhausted):
        predictor.predict(texts * 5)
    assert predictor.predict(texts, batch_tokens=1) == expected
