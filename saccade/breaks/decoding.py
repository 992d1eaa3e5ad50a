"""Breaks of decoding: greedy search, beam search, sampling, mask-predict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention import masks
from saccade.layers.attention.cache import AttentionState
from saccade.layers.attention.multihead import PositionalAttention
from saccade.layers.blocks import repeated_passes
from saccade.model.writers import fill
from saccade.model.writers.fill import FillWriter, LengthPrediction
from saccade.predict.search import beam, fertility, filters, greedy, mask_predict, teacher

# ---- one step for each word


@break_code("greedy-takes-the-second-best", "Greedy search takes the second best token of each step.")
def take_the_second(patch: Patch) -> None:
    def choose(original: Any, log_probs: Tensor) -> Tensor:
        first, second = log_probs.topk(2).indices.unbind(-1)
        return torch.where(log_probs.gather(1, second[:, None])[:, 0].isfinite(), second, first)

    patch.replace(greedy.choose_best, choose)


@break_code("beam-ignores-scores", "Beam search compares continuations by their last token only.")
def ignore_scores(patch: Patch) -> None:
    def select(original: Any, log_probs: Tensor, scores: Tensor, width: int) -> Any:
        level = torch.where(scores.isfinite(), torch.zeros_like(scores), scores)
        values, parents, tokens = original(log_probs, level, width)
        return values + scores.flatten()[parents], parents, tokens

    patch.replace(beam._select_candidates, select)


@break_code("beam-stops-at-the-first-end", "Beam search completes a sentence as soon as one of its hypotheses ends.")
def stop_early(patch: Patch) -> None:
    def finish(original: Any, values: Tensor, tokens: Tensor, pool: Tensor, **settings: Any) -> Any:
        found = original(values, tokens, pool, **settings)
        return found._replace(completed=found.completed | found.pool[:, 0].isfinite())

    patch.replace(beam.finish_step, finish)


@break_code("worst-hypothesis-first", "Searches return their worst hypothesis first.")
def sort_backwards(patch: Patch) -> None:
    patch.replace(greedy.sort_hypotheses, lambda original, hypotheses: original(hypotheses)[::-1])


@break_code("beam-states-not-reordered", "Beam search does not reorder the keys and values of its hypotheses.")
def keep_states(patch: Patch) -> None:
    def reorder(original: Any, self: AttentionState, indices: Tensor) -> Any:
        same = len(indices) == len(self.lengths)
        return original(self, torch.arange(len(indices)) if same else indices)

    patch.replace(AttentionState.reorder, reorder)


@break_code("sampling-takes-the-best", "Sampling takes the most probable token.")
def sample_the_best(patch: Patch) -> None:
    patch.replace(greedy.build_sampler, lambda original, warpers, generator: lambda logits: logits.argmax(-1))


@break_code("sampling-ignores-temperature", "Sampling ignores the temperature.")
def ignore_temperature(patch: Patch) -> None:
    patch.replace(filters.scale_by_temperature, lambda original, value: original(1.0))


@break_code("sampling-ignores-top-k", "Sampling from the k most probable tokens takes any token.")
def ignore_top_k(patch: Patch) -> None:
    patch.replace(filters.keep_top_k, lambda original, k: original(10**6))


@break_code("sampling-ignores-top-p", "Nucleus sampling takes any token.")
def ignore_top_p(patch: Patch) -> None:
    patch.replace(filters.keep_top_p, lambda original, p: original(1.0))


# ---- all words at once


@break_code("mask-predict-refines-nothing", "Mask-predict masks no token again after its first pass.")
def refine_nothing(patch: Patch) -> None:
    patch.replace(mask_predict.find_least_confident, lambda original, *given: original(*given) & False)


@break_code("mask-predict-masks-the-surest", "Mask-predict masks the tokens with the highest probability again.")
def mask_the_surest(patch: Patch) -> None:
    patch.replace(mask_predict.find_least_confident, lambda original, log_probs, *given: original(-log_probs, *given))


@break_code("length-is-not-predicted", "A non-autoregressive model gives all lengths the same probability.")
def ignore_length(patch: Patch) -> None:
    def predict(original: Any, self: FillWriter, memory: Any) -> LengthPrediction:
        found = original(self, memory)
        return LengthPrediction(0 * found.logits, found.min_length)

    patch.replace(FillWriter.predict_lengths, predict)


@break_code("no-soft-copy", "Masks of a non-autoregressive model get no copy of the source.")
def drop_soft_copy(patch: Patch) -> None:
    patch.replace(fill.soft_copy, lambda original, *given: 0 * original(*given))


@break_code("fertilities-are-ignored", "A non-autoregressive model copies every source token once.")
def ignore_fertilities(patch: Patch) -> None:
    patch.replace(fertility.choose_fertilities, lambda original, log_probs, **how: 0 * original(log_probs, **how) + 1)


@break_code("no-positional-attention", "Positional attention of a non-autoregressive model adds nothing.")
def drop_positional_attention(patch: Patch) -> None:
    patch.replace(PositionalAttention.project_heads, lambda original, self, x, at: tuple(
        part * scale for part, scale in zip(original(self, x, at), (1, 1, 0), strict=True)
    ))  # fmt: skip


@break_code("attends-to-itself", "Positions of a non-autoregressive model attend to themselves too.")
def attend_to_itself(patch: Patch) -> None:
    patch.replace(repeated_passes.hide_own_position, lambda original, bias, hidden: 0 * original(None, hidden))
    patch.replace(masks.Others.to_dense, lambda original, self, q_pos, k_pos: original(self, q_pos, k_pos) | True)


@break_code("teacher-is-ignored", "Noisy parallel decoding keeps the scores of the student.")
def ignore_teacher(patch: Patch) -> None:
    patch.replace(teacher.rescore_hypotheses, lambda original, model, source, hypotheses, **how: list(hypotheses))


@break_code("one-candidate-is-decoded", "Noisy parallel decoding keeps the candidate with the best fertilities alone.")
def keep_one_candidate(patch: Patch) -> None:
    def propose(original: Any, *given: Any, candidates: int, **how: Any) -> Any:
        found = original(*given, candidates=candidates, **how)
        return found._replace(valid=found.valid & (torch.arange(len(found.valid)) % candidates == 0))

    patch.replace(fertility.propose_copies, propose)


@break_code("teacher-scores-other-candidates", "A candidate of noisy parallel decoding gets the score of another.")
def exchange_scores(patch: Patch) -> None:
    def rescore(original: Any, *given: Any, **how: Any) -> Any:
        found = original(*given, **how)
        return [
            [replace(one, score=other.score) for one, other in zip(group, group[1:] + group[:1], strict=True)]
            for group in found
        ]

    patch.replace(teacher.rescore_hypotheses, rescore)


@break_code("teacher-ignores-length", "Noisy parallel decoding does not normalize the teacher's scores by length.")
def ignore_length_of_candidates(patch: Patch) -> None:
    patch.replace(
        teacher.rescore_hypotheses, lambda original, *given, length_penalty: original(*given, length_penalty=0.0)
    )


@break_code("teacher-favours-short-outputs", "Noisy parallel decoding multiplies the teacher's scores by the length.")
def favour_short_outputs(patch: Patch) -> None:
    patch.replace(
        teacher.rescore_hypotheses,
        lambda original, *given, length_penalty: original(*given, length_penalty=-length_penalty),
    )
