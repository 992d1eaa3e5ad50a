"""Scheduled sampling (Bengio et al. 2015): some inputs of the writer are sampled from its own predictions."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.protocols import HeadedWriter
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.model import Model
from saccade.model.writers.tokens import TokenWriter, shift_right
from saccade.predict.search.greedy import build_sampler
from saccade.train.objectives.terms import Term, compute_token_losses, get_real_tokens

LOGIT_CHUNK = 4096  # positions whose logits are in memory at once


def scheduled_sampling_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    sampling_probability: float = 0.1,
    ctc_weight: float = 0.0,
    label_smoothing: float = 0.1,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of each target token, where a share of the tokens before it are sampled from the model.

    A first pass with teacher forcing samples all tokens at once; a second pass reads the mixture (parallel scheduled
    sampling, Duckworth et al. 2019). `ctc_weight` is the share of the CTC loss (Kim et al. 2017, equation 13).
    """
    target, memory, writer = batch["target"], model.read(batch), model.writer
    inputs = shift_right(target.ids, START, target.mask)
    if sampling_probability and model.training:
        inputs = replace_with_samples(writer, inputs, target.mask, memory, sampling_probability, generator)
    (hidden, _), real = model.write(inputs, target.mask, memory), get_real_tokens(target)
    smoothed, nll = compute_token_losses(writer, hidden, target.ids, real, label_smoothing)
    count = real.sum()
    terms = {"next-token": Term(smoothed, count, weight * (1 - ctc_weight)), "nll": Term(nll, count, 0.0)}
    if ctc_weight:
        terms["ctc"] = Term(model.ctc.loss(memory, target), count, weight * ctc_weight)
    return terms


@torch.no_grad()
def replace_with_samples(
    writer: TokenWriter,
    inputs: Int[Tensor, "B T"],
    mask: Tensor | Packing,
    memory: Memory | None,
    probability: float,
    generator: torch.Generator,
) -> Int[Tensor, "B T"]:
    """Replace input tokens, each with this probability, by samples from the writer at the same position."""
    samples = sample_tokens(writer, writer(inputs, mask, memory), generator)
    replaced = torch.rand(inputs.shape, generator=generator, device=inputs.device) < probability
    return torch.where(replaced & (inputs != START), shift_right(samples, START, mask), inputs)


def sample_tokens(writer: HeadedWriter, hidden: Tensor, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Sample a token at each position from the writer's distribution."""
    sample = build_sampler((), generator)
    parts = [sample(writer.head(part).float()) for part in hidden.flatten(0, 1).split(LOGIT_CHUNK)]
    return torch.cat(parts).view(hidden.shape[:2])
