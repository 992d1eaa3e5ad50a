"""The objective of the non-autoregressive Transformer with fertilities (Gu et al. 2018)."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.aligner import MIN_LOG_PROB, TENSION, Aligner, build_blank_aligner, learn_aligner
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.packing import get_batch_layout
from saccade.model.model import Model
from saccade.model.writers.fertility import copy_by_fertility, get_copyable
from saccade.train.batches.pack import double_batch
from saccade.train.objectives.masking import get_maskable
from saccade.train.objectives.terms import Context, Objective, Term, compute_r_drop_losses, compute_token_losses


def build_fertility_objective(table: Any, context: Context) -> Objective:
    """Build the objective; its aligner is estimated from the training data of the context."""
    aligner = build_blank_aligner() if context.rows is None else learn_aligner(context.rows)
    settings = table.model_dump(exclude={"kind"})
    return functools.partial(fertility_loss, aligner=BatchAligner(aligner), **settings)


def fertility_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    aligner: BatchAligner,
    label_smoothing: float = 0.1,
    fertility_weight: float = 1.0,
    alpha: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of target tokens given aligned copies of the source, and of the fertilities (Gu et al. 2018).

    With `alpha`, two passes with different dropout must agree, as in `r_drop_loss`.
    """
    source, target, writer = batch["source"], batch["target"], model.writer
    predicted, count = get_maskable(target), get_maskable(target).sum()
    fertilities = aligner.count_fertilities(source, target)
    copies = Batch({"copies": copy_source(source, target, fertilities)}, {"copies": 0})
    memory = model.read(double_batch(batch) if alpha else batch)
    inputs = (double_batch(copies) if alpha else copies)["copies"]
    hidden, _ = model.write(inputs.ids, inputs.mask, memory)
    fertility_sum, words = compute_fertility_loss(writer.predict_fertilities(memory), source, fertilities)
    terms = {"fertility": Term(fertility_sum, words, weight * fertility_weight)}
    if not alpha:
        smoothed, nll = compute_token_losses(writer, hidden, target.ids, predicted, label_smoothing)
        return {"translation": Term(smoothed, count, weight), **terms, "nll": Term(nll, count, 0.0)}
    smoothed, nll, divergence = compute_r_drop_losses(writer, hidden, target.ids, predicted, label_smoothing, alpha)
    return {
        "translation": Term(smoothed / 2, count, weight),
        "consistency": Term(divergence, count, weight * alpha / 2),
        **terms,
        "nll": Term(nll / 2, count, 0.0),
    }


def copy_source(source: Tokens, target: Tokens, fertilities: Int[Tensor, "R S"]) -> Tokens:
    """Return copied source tokens in the layout of the target; as many as it has tokens."""
    layout, target_layout = get_batch_layout(source.mask), get_batch_layout(target.mask)
    copies = copy_by_fertility(
        layout.to_padded(source.ids), layout.get_padded_mask(), fertilities, target_layout.lengths - 1,
        target_layout.max_length,
    )  # fmt: skip
    return Tokens(target_layout.pack(copies), target.mask)


def compute_fertility_loss(logits: Tensor, source: Tokens, fertilities: Int[Tensor, "R S"]) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of the fertilities of real source tokens, averaged over passes, and their number.

    Fertilities above the largest class count as that one.
    """
    layout = get_batch_layout(source.mask)
    keep = get_copyable(layout.get_padded_mask()) & layout.real_sequences[:, None]
    passes = len(logits) // len(keep)
    classes = fertilities.clamp(max=logits.shape[-1] - 1).repeat(passes, 1)
    losses = F.cross_entropy(to_loss_dtype(logits).flatten(0, 1), classes.flatten(), reduction="none")
    return (losses * keep.repeat(passes, 1).flatten()).sum() / passes, keep.sum()


@dataclass
class BatchAligner:
    """Aligns batches with the probabilities of an `Aligner`, on the device of the batch."""

    aligner: Aligner
    tables: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)  # codes and log-probabilities

    def count_fertilities(self, source: Tokens, target: Tokens) -> Int[Tensor, "R S"]:
        """Return how many target tokens each source token explains, END left out on both sides."""
        layouts = [get_batch_layout(side.mask) for side in (source, target)]
        ids = [layout.to_padded(side.ids) for layout, side in zip(layouts, (source, target), strict=True)]
        keep = [get_copyable(layout.get_padded_mask()) for layout in layouts]
        best = self.align(ids[0], keep[0], ids[1], keep[1])
        zeros = torch.zeros_like(ids[0])
        return zeros.scatter_add(1, best, keep[1].long())

    def align(
        self,
        source: Int[Tensor, "R S"],
        source_keep: Bool[Tensor, "R S"],
        target: Int[Tensor, "R T"],
        target_keep: Bool[Tensor, "R T"],
    ) -> Int[Tensor, "R T"]:
        """Return the most probable source position of each target token; the null word is not among them."""
        m, n = (keep.sum(1).clamp(min=1)[:, None] for keep in (source_keep, target_keep))
        i, j = (torch.arange(1, ids.shape[1] + 1, device=ids.device) for ids in (source, target))
        distances = ((i / m)[:, None] - (j / n)[:, :, None]).abs()
        scores = self.look_up(source[:, None], target[:, :, None]) - TENSION * distances
        return scores.masked_fill(~source_keep[:, None], -torch.inf).argmax(-1)

    def look_up(self, source: Int[Tensor, "R 1 S"], target: Int[Tensor, "R T 1"]) -> Tensor:
        """log p(f | e) of each pair of tokens (R, T, S)."""
        size = self.aligner.target_size
        codes, log_probs = self.get_tables(source.device)
        wanted = source * size + target
        index = torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)
        return torch.where((codes[index] == wanted) & (target < size), log_probs[index], MIN_LOG_PROB)

    def get_tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self.tables:
            self.tables[device] = (
                torch.from_numpy(self.aligner.codes).to(device),
                torch.from_numpy(self.aligner.log_probs).to(device),
            )
        return self.tables[device]
