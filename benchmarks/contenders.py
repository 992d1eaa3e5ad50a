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
sys.path.insert(0, str(Path(__file__).resolve().parent))

from forms import build_gpt2, build_transformer

from saccade.config.schema import Train
from saccade.data.batching.batch import Batch, Tokens
from saccade.layers.losses.cross_entropy import smoothed_cross_entropy
from saccade.layers.regions import compiled_regions
from saccade.train.batches.pack import pack_batch
from saccade.train.capture import CudaGraphs
from saccade.train.loss import LossSums
from saccade.train.objectives.objectives import next_token_loss


@contender("gpt-train")
class LanguageModel(Contender):
    """A GPT-2 style decoder-only model with a bf16 residual stream and a chunked loss."""

    name = "saccade, compile"
    sync_each = False

    def build(self, case: Any) -> None:
        self.case, self.model = (
            case,
            build_gpt2(case.size, train=Train(residual_precision="bf16")).to(case.device).train(),
        )
        cuda = case.device == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True, capturable=cuda
        )
        keep = torch.ones_like(case.ids, dtype=torch.bool)
        self.batch = Batch({"ids": Tokens(case.ids, keep), "targets": Tokens(case.targets, keep)})
        self.train = CudaGraphs(self._step, generator=torch.Generator(case.device)) if cuda else self._step

    def _step(self, batch: Batch) -> LossSums:
        self.optimizer.zero_grad(set_to_none=True)
        targets, keep = batch["targets"].ids.flatten(), batch["targets"].mask.flatten()
        with torch.autocast(self.case.device, torch.bfloat16, enabled=self.case.amp):
            with compiled_regions(self.case.device == "cuda", dynamic=False):
                hidden = self.model(batch["ids"].ids, None, None).flatten(0, 1)
            total, _ = smoothed_cross_entropy(hidden, self.model.output.weight, targets, keep, 0.0)
        (total / targets.numel()).backward()
        self.optimizer.step()
        return LossSums(total.detach(), keep.sum(), {})

    def step(self) -> torch.Tensor:
        return self.train(self.batch).total


@contender("seq2seq-train")
class Translation(Contender):
    """Model, objective and packed, graph-captured steps of `saccade train`, with the suite's optimizer."""

    name = "saccade, compile"
    sync_each = False
    compiled = True

    def build(self, case: Any) -> None:
        self.case = case
        self.model = build_transformer(case.size, dropout=case.size.dropout).to(case.device).train()
        self.batches = [self._batch(b) for b in case.batches]
        self.generator = torch.Generator(case.device)
        cuda = case.device == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True, capturable=cuda
        )
        self.train = CudaGraphs(self._step, generator=self.generator) if cuda else self._step

    def _batch(self, b: Any) -> Batch:
        source = torch.ones_like(b.src, dtype=torch.bool) if b.src_real is None else b.src_real
        batch = Batch({"source": Tokens(b.src, source), "target": Tokens(b.out, b.out != 0)}).to("cpu")
        most = max(tokens.ids.numel() for tokens in batch.fields.values())
        return pack_batch(batch, budget=most if self.case.device == "cuda" else None).to(self.case.device)

    def _step(self, batch: Batch) -> LossSums:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.case.device, torch.bfloat16, enabled=self.case.amp), compiled_regions(self.compiled):
            terms = next_token_loss(self.model, batch, self.generator, label_smoothing=0.1)
        first = terms["next-token"]
        (first.sum / first.count).backward()
        self.optimizer.step()
        return LossSums(first.sum.detach(), first.count, terms)

    def step(self) -> torch.Tensor:
        for batch in self.batches:
            loss = self.train(batch).total
        return loss
