"""A minimal recurrent encoder-decoder, with or without attention, as the lectures draw it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers.attention.scores import Additive, attend

DataSampler = Callable[[int, int], tuple[Tensor, Tensor]]  # (rows, length) -> sources and targets


class ReaderWriter(nn.Module):
    """GRU encoder and decoder; the context is the encoder's last state, or that of attention at each step."""

    def __init__(self, symbols: int, *, width: int, attention: bool) -> None:
        super().__init__()
        self.start = symbols  # id of y_0, which is no symbol
        self.tokens = nn.Embedding(symbols + 1, width)
        self.read = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.write = nn.GRU(2 * width, width, batch_first=True)
        self.score = Additive(width, key_dim=width, hidden_dim=width) if attention else None
        self.output = nn.Linear(2 * width, symbols)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of each target symbol given those before it, the contexts, and the attention weights if any."""
        h, last = self.read(self.tokens(source))
        fixed = torch.cat((last[0], last[1]), -1)
        before = self.tokens(F.pad(target[:, :-1], (1, 0), value=self.start))
        steps = fixed[:, None].expand(-1, target.shape[1], -1)
        s, _ = self.write(torch.cat((before, steps), -1), fixed[None])
        c, a = (steps, h.new_zeros(0)) if self.score is None else attend(s, h, h, score=self.score)
        return self.output(torch.cat((s, c), -1)), c, a


def train_model(
    model: ReaderWriter, task: DataSampler, *, max_length: int, steps: int, rows: int = 64, rate: float = 3e-3
) -> None:
    """Train on sequences of random lengths up to `max_length`."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, 4 * (1 - step / steps))  # linear decay in the last quarter
        source, target = task(rows, int(torch.randint(1, max_length + 1, ())))
        loss = F.cross_entropy(model(source, target)[0].flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def measure_accuracy(model: ReaderWriter, task: DataSampler, length: int) -> float:
    """Return the share of correct symbols with teacher forcing; symbols are independent, so it reveals nothing."""
    source, target = task(200, length)
    return float((model(source, target)[0].argmax(-1) == target).float().mean())
