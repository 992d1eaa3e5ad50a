"""The kernels of the loss against the plain way, on the CPU."""

import itertools

import torch

from saccade.kernels.triton import loss as loss_kernels
from saccade.layers.losses.cross_entropy import Settings, turn_plainly

ROWS = 5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def turned(turn, logits, smoothing, wanted):
    """What a way to turn logits into gradients leaves: values, and logits; rows of logits lie apart in memory."""
    passes, rows, vocabulary = logits.shape
    room = torch.zeros(passes, rows, vocabulary + 3, dtype=logits.dtype)[..., :vocabulary]
    room.copy_(logits)
    values = torch.full((3, rows + 2), float("nan"))[:, 1:-1]
    targets, keep = torch.tensor([0, vocabulary - 1, 1, 1, 0]), torch.tensor([True, True, False, True, True])
    turn(room, targets, keep, values, Settings(smoothing, 3.0), wanted)
    return values, room if wanted else None


def main():
    loss_kernels.BLOCK = 32  # several blocks for small vocabularies
    count = 0
    sizes = itertools.product((1, 2), (2, 16, 37), (0.0, 0.1), TOLERANCE)
    for passes, vocabulary, smoothing, kind in sizes:
        torch.manual_seed(0)
        logits = (3 * torch.randn(passes, ROWS, vocabulary)).to(kind)
        logits[:, 2] = 3e38  # not kept
        for wanted in (True, False):
            got = turned(loss_kernels.turn, logits, smoothing, wanted)
            expected = turned(turn_plainly, logits, smoothing, wanted)
            torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-5)
            if wanted:
                torch.testing.assert_close(got[1], expected[1], rtol=TOLERANCE[kind], atol=TOLERANCE[kind])
        count += 1
    assert count == 24
