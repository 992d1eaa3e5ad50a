"""saccade as a contender in a suite of training on a CPU, whose script takes `--plugin FILE`.

    python cpu_train.py --threads 1 --clock cpu --plugin benchmarks/cpu_train_contender.py

The suite makes the batches and times the steps; this file only builds our model and takes one step on each batch.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from common import Contender, contender  # type: ignore[import-not-found]  # the suite's own module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from forms import build_transformer

from saccade.data.batching.batch import Batch, Tokens
from saccade.train.batches.pack import pack_if_padded
from saccade.train.objectives.objectives import next_token_loss


@contender("cpu-train")
class Translation(Contender):
    """The blocks, the objective and the packed rows of `saccade train`, with the suite's own optimizer settings."""

    name = "saccade"
    inner_dropout = False  # as in the paper

    def build(self, case: Any) -> None:
        size = case.size
        inner = size.dropout if self.inner_dropout else 0.0
        self.model = build_transformer(size, dropout=size.dropout, inner_dropout=inner).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.batches = [self._batch(b) for b in case.batches]
        self.generator = torch.Generator()

    def _batch(self, b: Any) -> Batch:
        return Batch({"source": Tokens(b.src, b.src != 0), "target": Tokens(b.out, b.out != 0)})

    def step(self) -> torch.Tensor:
        for batch in self.batches:
            term = next_token_loss(self.model, pack_if_padded(batch), self.generator, label_smoothing=0.1)["next-token"]
            loss = term.sum / term.count
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss


@contender("cpu-train")
class AsThePeers(Translation):
    """The same with dropout of attention weights and in the feed-forward network, as the peers have it."""

    name = "saccade, dropout as the peers"
    inner_dropout = True
