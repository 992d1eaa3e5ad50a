"""saccade as a contender in a benchmark suite whose script takes `--plugin FILE` and offers `common.contender`.

    python gpu_train.py --part seq2seq --plugin benchmarks/contenders.py

The suite makes the batches and times the steps; this file only builds our model and takes one step on each batch.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from common import Contender, contender  # type: ignore[import-not-found]  # the suite's own module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from saccade.config import schema
from saccade.data.batch import Batch, Tokens
from saccade.layers.regions import compiled_regions
from saccade.model.build import build
from saccade.train.objectives import next_token


@contender("seq2seq-train")
class Translation(Contender):
    """The blocks and the objective of `saccade train`, compiled as it does, with the suite's own optimizer settings."""

    name = "saccade, compile"
    sync_each = False

    def build(self, case: Any) -> None:
        size = case.size
        stack = schema.TransformerStack(
            layers=size.layers, dim=size.dim, heads=size.heads, ff=size.ff, dropout=size.dropout
        )
        recipe = schema.Recipe(reader=schema.TokenReader(stack=stack), writer=schema.TokenWriter(stack=stack))
        self.case = case
        self.model = build(recipe, source_size=size.vocab, target_size=size.vocab).to(case.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.batches = [self._batch(b) for b in case.batches]
        self.generator = torch.Generator()

    def _batch(self, b: Any) -> Batch:
        source = torch.ones_like(b.src, dtype=torch.bool) if b.src_real is None else b.src_real
        return Batch({"source": Tokens(b.src, source), "target": Tokens(b.out, b.out != 0)})

    def _loss(self, batch: Batch) -> torch.Tensor:
        term = next_token(self.model, batch, self.generator, smoothing=0.1)["next-token"]
        return term.sum / term.count

    def step(self) -> torch.Tensor:
        for batch in self.batches:
            with torch.autocast(self.case.device, torch.bfloat16, enabled=self.case.amp), compiled_regions():
                loss = self._loss(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss
