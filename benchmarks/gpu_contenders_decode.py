"""saccade as a contender in the decoding suites `gpt-generate` and `translate`; see contenders.py.

    python gpu_generate.py --part gpt --plugin benchmarks/gpu_contenders_decode.py

Weights are random and in the suite's type; every output has exactly as many tokens as the case asks for.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from common import Contender, contender  # type: ignore[import-not-found]  # the suite's own module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from forms import build_gpt2, build_transformer

from saccade.config import schema
from saccade.data.batching.batch import Batch, Tokens
from saccade.predict.engines.graphs import decode_static
from saccade.predict.engines.static_writer import has_kernels
from saccade.predict.search.request import Request

OURS = "saccade, CUDA graphs"


@contender("gpt-generate")
class Generation(Contender):
    """A GPT-2 style decoder-only model, decoded greedily as `saccade predict` does."""

    name = OURS

    def build(self, case: Any) -> None:
        self.case = case
        self.writer = build_gpt2(case.size).to(case.device, case.dtype).eval()
        self.decoding = schema.Decoding(beam=1, min_length=case.new)
        self.extra["kernels"] = has_kernels(self.writer, 1)
        if case.check:  # the cached loop against the model without a cache (bf16 ties may differ)
            self.extra["agree"] = f"{self.agreement():.1%}"

    @torch.inference_mode()
    def agreement(self) -> float:
        made = self.step()
        hidden = self.writer(torch.cat([self.case.prompt, made[:, :-1]], 1), None, None)
        logits = self.writer.head(hidden[:, self.case.prompt.shape[1] - 1 :])
        logits[..., :4] = -torch.inf  # padding, start, end and unknown are not written here
        return float((logits.argmax(-1) == made).float().mean())

    def step(self) -> torch.Tensor:
        limits = [self.case.new] * self.case.prompt.shape[0]
        request = Request(limits, self.decoding, prompts=self.case.prompt)
        return get_best_outputs(decode_static(self.writer, None, request), self.case)


@contender("translate")
class Translation(Contender):
    """Transformer-base as the recipe `transformer` has it."""

    name = OURS

    def build(self, case: Any) -> None:
        self.case = case
        self.model = build_transformer(case.size).to(case.device, case.dtype).eval()
        self.decoding = schema.Decoding(beam=case.beams, min_length=case.new)
        self.extra["kernels"] = has_kernels(self.model.writer, case.beams)
        self.batch = Batch({"source": Tokens(case.src, torch.ones_like(case.src, dtype=torch.bool))})

    def step(self) -> torch.Tensor:
        limits = [self.case.new] * self.case.src.shape[0]
        with torch.inference_mode():
            memory = self.model.read(self.batch)
        return get_best_outputs(
            decode_static(self.model.writer, memory, Request(limits, self.decoding, self.batch)), self.case
        )


def get_best_outputs(found: Any, case: Any) -> torch.Tensor:
    """Return the best output of each sequence."""
    ids = torch.tensor([outputs[0].ids for outputs in found], device=case.device)
    assert ids.shape[1] == case.new, ids.shape
    return ids
