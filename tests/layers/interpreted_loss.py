"""The kernels of the loss against the reference."""

import itertools

import torch

from saccade.kernels.triton import loss as loss_kernels
from saccade.layers.losses.cross_entropy import LossSettings, compute_loss_rows_reference

ROWS = 5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def compute_losses(kernel, logits, smoothing, needs_gradients):
    """The losses of each row, and the logits that the kernel overwrites; rows are not contiguous in memory."""
    passes, rows, vocabulary = logits.shape
    buffer = logits.new_zeros(passes, rows, vocabulary + 3)[..., :vocabulary]
    buffer.copy_(logits)
    values = torch.full((3, rows + 2), float("nan"), device=logits.device)[:, 1:-1]
    targets = torch.tensor([0, vocabulary - 1, 1, 1, 0], device=logits.device)
    keep = torch.tensor([True, True, False, True, True], device=logits.device)
    kernel(buffer, targets, keep, values, LossSettings(smoothing, 3.0), needs_gradients)
    return values, buffer if needs_gradients else None


def main(device):
    loss_kernels.BLOCK = 32  # several blocks for small vocabularies
    count = 0
    sizes = itertools.product((1, 2), (2, 16, 37), (0.0, 0.1), TOLERANCE)
    for passes, vocabulary, smoothing, kind in sizes:
        torch.manual_seed(0)
        logits = (3 * torch.randn(passes, ROWS, vocabulary)).to(device, kind)
        logits[:, 2] = 3e38  # not kept
        for needs_gradients in (True, False):
            got = compute_losses(loss_kernels.compute_loss_rows, logits, smoothing, needs_gradients)
            expected = compute_losses(compute_loss_rows_reference, logits, smoothing, needs_gradients)
            torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-5)
            if needs_gradients:
                torch.testing.assert_close(got[1], expected[1], rtol=TOLERANCE[kind], atol=TOLERANCE[kind])
        count += 1
    assert count == 24
