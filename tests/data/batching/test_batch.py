import numpy as np
import torch

from saccade.data.batching.batch import Batch, Tokens, pad


def test_rows_are_padded_at_the_end_and_the_mask_says_where():
    tokens = pad([[5, 6, 2], np.array([7, 2])])

    assert tokens.ids.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert tokens.mask.tolist() == [[True, True, True], [True, True, False]]
    assert tokens.ids.dtype == torch.int64


def test_no_rows_give_an_empty_rectangle():
    assert pad([]).ids.shape == (0, 0)


def test_a_batch_knows_how_many_tokens_are_real():
    batch = Batch({"source": pad([[5, 6, 2], [7, 2]]), "target": pad([[2], [2]])})

    assert batch.counts == {"source": 5, "target": 2}
    assert batch["target"].ids.tolist() == [[2], [2]]


def test_counts_are_kept_and_not_counted_again_on_a_move():
    batch = Batch({"source": pad([[5, 2]])}, {"source": 11})

    assert batch.to("cpu").counts == {"source": 11}


def test_moving_to_another_device_moves_ids_and_mask():
    batch = Batch({"source": pad([[5, 2]])}, {"source": 2}).to("meta")

    assert isinstance(batch["source"], Tokens)
    assert batch["source"].ids.device.type == batch["source"].mask.device.type == "meta"
