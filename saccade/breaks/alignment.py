"""Breaks of the attention of recurrent writers: scores, weights, contexts, initial states, hard attention, losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.breaks.attention import change_weights, use_reference_attention
from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention import scores
from saccade.layers.attention.alignment import HardAttention, ProjectedMemory, SoftAttention
from saccade.layers.attention.scores import Additive
from saccade.layers.blocks.recurrence import bahdanau_step
from saccade.layers.blocks.recurrent import step_cell
from saccade.layers.blocks.recurrent_writer import InitialState
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives import objectives, reinforce
from saccade.train.objectives.terms import Term


@break_code("additive-score-ignores-query", "Additive scores depend on the keys alone.")
def ignore_query(patch: Patch) -> None:
    patch.replace(Additive.score_projected, lambda original, self, query, keys: original(self, 0 * query, keys))


@break_code("additive-score-is-linear", "Additive scores are v . (W s + U h): tanh is left out.")
def leave_out_tanh(patch: Patch) -> None:
    def score(original: Any, self: Additive, query: Tensor, keys: Tensor) -> Tensor:
        hidden = self.query(query).unsqueeze(-2) + keys.unsqueeze(-3)
        return self.energy(hidden).squeeze(-1)

    patch.replace(Additive.score_projected, score)


@break_code("attention-queries-the-new-state", "The query of Bahdanau attention is s_t in place of s_{t-1}.")
def query_with_new_state(patch: Patch) -> None:
    def step(original: Any, cell: Any, parts: Any, *args: Any) -> tuple[Any, ...]:
        layer, inputs, weight, memory, previous, *steps = args
        cross, gate = parts
        new = step_cell(cell, layer, inputs, previous)
        context, *attention = cross(new[0][:, None], memory, *(steps[0] if steps else ()))
        if gate is not None:
            context = context * torch.sigmoid(gate(new[0]))[:, None]
        return step_cell(cell, layer, inputs + F.linear(context[:, 0], weight), previous), context, *attention

    patch.replace(bahdanau_step.function, step)


@break_code("unnormalized-attention", "Attention weights are sigmoid(e): each between 0 and 1, with any sum.")
def leave_out_normalization(patch: Patch) -> None:
    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        weights = torch.sigmoid(values)
        return weights if mask is None else weights.masked_fill(~mask, 0.0)

    change_weights(patch, compute)


@break_code("shifted-values", "Attention sums up the values of the neighbouring keys.")
def shift_values(patch: Patch) -> None:
    def attend(original: Any, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        y, weights = original(query, key, value.roll(1, -2), **how)
        return y, weights

    use_reference_attention(patch)
    patch.replace(scores.attend, attend)


@break_code("context-left-out", "The context vector of a recurrent writer is zero.")
def leave_out_context(patch: Patch) -> None:
    def forward(original: Any, self: SoftAttention, *args: Any) -> tuple[Tensor, ...]:
        context, *others = original(self, *args)
        return 0 * context, *others

    patch.replace(SoftAttention.forward, forward)


@break_code("open-context-gate", "The gate on the context of a recurrent writer is always open.")
def open_gate(patch: Patch) -> None:
    def step(original: Any, cell: Any, parts: Any, *args: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = original(cell, (parts[0], None), *args)
        return found

    patch.replace(bahdanau_step.function, step)


@break_code("first-state-without-memory", "A recurrent writer starts from the same state for every input.")
def forget_memory_at_first(patch: Patch) -> None:
    patch.replace(InitialState.summarize, lambda original, self, memory: 0 * original(self, memory))


@break_code("keys-without-gradient", "No gradient passes through the keys of a recurrent writer's attention.")
def detach_keys(patch: Patch) -> None:
    def project_memory(original: Any, self: SoftAttention, memory: Memory) -> ProjectedMemory:
        found: ProjectedMemory = original(self, memory)
        return found._replace(keys=found.keys.detach())

    patch.replace(SoftAttention.project_memory, project_memory)


@break_code("hard-attention-averages", "Hard attention returns the weighted sum in place of one position.")
def soften(patch: Patch) -> None:
    def forward(original: Any, self: HardAttention, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        _, weights, sampled = original(self, *args)
        return SoftAttention.forward(self, *args)[0], weights, sampled

    patch.replace(HardAttention.forward, forward)


@break_code("hard-attention-never-samples", "Hard attention takes the largest weight in training too.")
def take_largest(patch: Patch) -> None:
    def forward(original: Any, self: HardAttention, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        training, self.training = self.training, False
        try:
            found: tuple[Tensor, Tensor, Tensor] = original(self, *args)
        finally:
            self.training = training
        return found

    patch.replace(HardAttention.forward, forward)


# ---- objectives


@break_code("writer-reads-its-targets", "Under teacher forcing a writer reads the word that it has to predict.")
def read_targets(patch: Patch) -> None:
    patch.replace(shift_right, lambda original, ids, start, mask=None: ids)


@break_code("coverage-left-out", "The penalty of doubly stochastic attention is 0.")
def leave_out_coverage(patch: Patch) -> None:
    def loss(original: Any, *args: Any, **settings: Any) -> dict[str, Term]:
        found: dict[str, Term] = original(*args, **settings)
        return {name: term._replace(sum=0 * term.sum) if name == "coverage" else term for name, term in found.items()}

    patch.replace(objectives.next_token_loss, loss)


@break_code("hard-attention-without-reward", "The loss of sampled positions does not depend on what was sampled.")
def leave_out_reward(patch: Patch) -> None:
    def compute(original: Any, attention: Any) -> tuple[Tensor, Tensor]:
        log_probs, entropies = original(attention)
        return 0 * log_probs, entropies

    patch.replace(reinforce.compute_log_probs_and_entropies, compute)
