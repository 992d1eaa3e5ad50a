import time

import pytest
import torch

from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.tokenization.tokenizers import PAD
from saccade.layers.packing import build_packing
from saccade.train.batches.pack import get_tensors
from saccade.train.batches.prefetch import Prefetcher, pad_to_two


class Counting:
    """A stream of batches whose first id is their index."""

    padding = 0.0

    def __init__(self, end=99):
        self.position, self.end = 0, end

    def __next__(self):
        if self.position >= self.end:
            raise ValueError("damaged data")
        self.position += 1
        return Batch({"source": pad([[self.position, 2]])})

    def state(self):
        return {"position": self.position}

    @property
    def epoch(self):
        return self.position / 10


def make_threaded_prefetcher(stream, monkeypatch):
    """A prefetcher with its thread, without CUDA."""
    monkeypatch.setattr(Prefetcher, "_copy_to_device", lambda self, batch: (batch, None))
    monkeypatch.setattr(Prefetcher, "_is_device_idle", lambda self: True)
    return Prefetcher(stream, device=torch.device("cuda"))


def test_state_is_that_of_the_batch_taken_not_of_those_prepared(monkeypatch):
    feed = make_threaded_prefetcher(Counting(), monkeypatch)

    numbers = [feed.next_batch()["source"].ids[0, 0].item() for _ in range(3)]
    time.sleep(0.05)

    assert numbers == [1, 2, 3]
    assert feed.state == {"position": 3} and feed.epoch == 0.3
    assert feed.stream.position > 3
    feed.close()


def test_error_in_the_thread_reaches_the_loop(monkeypatch):
    feed = make_threaded_prefetcher(Counting(end=1), monkeypatch)
    feed.next_batch()

    with pytest.raises(ValueError, match="damaged data"):
        feed.next_batch()
    feed.close()


def test_waiting_is_measured():
    class Slow(Counting):
        def __next__(self):
            time.sleep(0.02)
            return super().__next__()

    feed = Prefetcher(Slow(), device=torch.device("cpu"))
    feed.next_batch()

    assert feed.wait_seconds >= 0.02
    feed.close()


@pytest.mark.parametrize("idle", [True, False])
def test_waiting_counts_where_the_device_has_nothing_else_to_do(monkeypatch, idle):
    class Slow(Counting):
        def __next__(self):
            time.sleep(0.02)
            return super().__next__()

    feed = make_threaded_prefetcher(Slow(), monkeypatch)
    monkeypatch.setattr(Prefetcher, "_is_device_idle", lambda self: idle)
    for _ in range(3):
        feed.next_batch()

    assert feed.wait_seconds > 0.03 if idle else feed.wait_seconds == 0
    feed.close()


def test_all_tensors_of_a_batch_are_found():
    padded, row = pad([[5, 6, 2], [8, 2]]), build_packing([3, 2])
    packed = Tokens(padded.ids[padded.mask][None], row)
    batch = Batch({"source": padded, "target": packed}, {"source": 5, "target": 5})

    found = [id(tensor) for tensor in get_tensors(batch)]

    assert found == [id(tensor) for tensor in (padded.ids, padded.mask, packed.ids, *row.get_tensors())]


@pytest.mark.cuda
def test_batches_arrive_whole_on_the_gpu():
    feed = Prefetcher(Counting(), device=torch.device("cuda"))

    taken = [feed.next_batch()["source"].ids.sum() for _ in range(50)]

    assert [int(number) for number in taken] == [number + 2 for number in range(1, 51)]
    feed.close()


def test_single_rows_and_columns_are_widened_with_padding():
    batch = Batch({"source": pad([[5, 6, 2]]), "target": pad([[2]])})

    wide = pad_to_two(batch)

    assert wide["source"].ids.tolist() == [[5, 6, 2], [PAD] * 3]
    assert wide["target"].ids.tolist() == [[2, PAD], [PAD, PAD]]
    assert wide["target"].mask.sum() == 1 and wide.counts["source"] == 3
    assert pad_to_two(wide) is wide
