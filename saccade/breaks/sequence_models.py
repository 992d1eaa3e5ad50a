"""Breaks of sequence models: the decoder with attention, convolutions, the Transformer's block, training, search."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.layers.attention import alignment, backends
from saccade.layers.attention.alignment import ProjectedMemory, SoftAttention
from saccade.layers.attention.multihead import CrossAttention
from saccade.layers.attention.scores import Additive
from saccade.layers.blocks import convolution, recurrence, recurrent
from saccade.layers.blocks.convolution import WeightNormLinear
from saccade.layers.blocks.recurrent import step_cell
from saccade.layers.blocks.transformer import Block
from saccade.model.model import Model
from saccade.model.writers import tokens
from saccade.predict.search import greedy
from saccade.train import optimizer

# ---- the decoder of Bahdanau et al.


@break_code("query-after-the-step", "The query of Bahdanau's attention is s_t instead of s_(t-1).")
def attend_after_step(patch: Patch) -> None:
    def step(original: Any, cell: Any, parts: Any, layer: Any, inputs: Tensor, weight: Tensor, *rest: Any) -> Any:
        memory, previous, steps = rest
        (hidden, *_), *_ = original(cell, parts, layer, inputs, weight, memory, previous, steps)
        context, *attention = parts[0](hidden[:, None], memory, *steps)
        return step_cell(cell, layer, inputs + F.linear(context[:, 0], weight), previous), context, *attention

    patch.replace(recurrence.bahdanau_step.function, step)


@break_code("context-not-fed-back", "The context of Bahdanau's attention does not enter the next state.")
def keep_context_out(patch: Patch) -> None:
    def step(original: Any, cell: Any, parts: Any, layer: Any, inputs: Tensor, weight: Tensor, *rest: Any) -> Any:
        return original(cell, parts, layer, inputs, 0 * weight, *rest)

    patch.replace(recurrence.bahdanau_step.function, step)


@break_code("score-ignores-the-query", "The additive score does not depend on the decoder's state.")
def ignore_query(patch: Patch) -> None:
    def score(original: Any, self: Additive, query: Tensor, keys: Tensor) -> Any:
        return original(self, 0 * query, keys)

    patch.replace(Additive.score_projected, score)


@break_code("attention-to-the-last-state", "A recurrent decoder attends to copies of the last encoder state.")
def attend_to_last_state(patch: Patch) -> None:
    def project(original: Any, self: SoftAttention, memory: Any) -> ProjectedMemory:
        projected: ProjectedMemory = original(self, memory)
        last = (memory.padding.sum(1) - 1).clamp(min=0)
        keys, values = (
            part[torch.arange(len(part)), last][:, None].expand_as(part) for part in (projected.keys, projected.values)
        )
        return projected._replace(keys=keys, values=values)

    patch.replace(SoftAttention.project_memory, project)


@break_code("gru-without-reset", "The reset gate of a GRU that runs step by step is always open.")
def open_reset_gate(patch: Patch) -> None:
    def step(original: Any, inputs: Tensor, hidden: Tensor, before: Any) -> Any:
        reset, others = hidden.split((hidden.shape[-1] // 3, 2 * hidden.shape[-1] // 3), -1)
        return original(inputs, torch.cat((reset + 100, others), -1), before)

    patch.replace(recurrent.gru_step, step)


@break_code("recorded-steps-shifted", "The attention weights that are displayed for a word are those of the next word.")
def shift_recorded_steps(patch: Patch) -> None:
    def record(original: Any, layer: SoftAttention, weights: Any, *sampled: Any) -> None:
        original(layer, (torch.cat(tuple(weights), 1).roll(-1, 1),), *sampled)

    patch.replace(alignment.record_attention, record)


# ---- training and search


@break_code("memory-without-gradient", "No gradient passes from the decoder into the encoder.")
def detach_memory(patch: Patch) -> None:
    def read(original: Any, self: Model, batch: Any) -> Any:
        with torch.no_grad():
            return original(self, batch)

    patch.replace(Model.read, read)


@break_code("biases-never-updated", "The optimizer does not get the biases of a model.")
def forget_biases(patch: Patch) -> None:
    def split(original: Any, model: nn.Module) -> Any:
        decayed, free = original(model)
        return decayed, [parameter for parameter in free if parameter.ndim > 1]

    patch.replace(optimizer.split_by_decay, split)


@break_code("targets-not-shifted", "Teacher forcing gives the decoder the word that it is to predict.")
def leave_targets(patch: Patch) -> None:
    patch.replace(tokens.shift_right, lambda original, ids, start, mask=None: ids)


@break_code("search-starts-with-stop", "Search gives the decoder [STOP] instead of [START] as its first input.")
def start_with_stop(patch: Patch) -> None:
    patch.set(greedy, "START", END)


@break_code("targets-without-stop", "Encoded texts end without [STOP].")
def drop_stop(patch: Patch) -> None:
    def encode(original: Any, self: Tokenizer, library_ids: list[int]) -> list[int]:
        return original(self, library_ids)[:-1] or [END]

    patch.replace(Tokenizer.to_model_ids, encode)


# ---- parallel layers


@break_code("attention-one-query-at-a-time", "Attention computes the queries of a sequence one after the other.")
def loop_over_queries(patch: Patch) -> None:
    def attend(original: Any, q: Tensor, *args: Any, q_pos: Tensor, **kwargs: Any) -> Tensor:
        steps = [original(q[:, :, t : t + 1], *args, q_pos=q_pos[:, t : t + 1], **kwargs) for t in range(q.shape[2])]
        return torch.cat(steps, 2)

    patch.replace(backends.sdpa_attention, attend)


@break_code("convolution-one-position-at-a-time", "A convolution over time computes its positions one after the other.")
def loop_over_positions(patch: Patch) -> None:
    def forward(original: Any, self: WeightNormLinear, x: Tensor, weight: Tensor) -> Tensor:
        return torch.stack([original(self, part, weight) for part in x.unbind(1)], 1)

    patch.replace(WeightNormLinear.forward, forward)


def change_neighbors(patch: Patch, change: Any) -> None:
    """Change what a convolution sees: change(neighbours (B, T, k, D)) has the same shape."""

    def gather(original: Any, padded: Tensor, *, kernel: int, dilation: int) -> Tensor:
        found: Tensor = original(padded, kernel=kernel, dilation=dilation)
        changed: Tensor = change(found.unflatten(-1, (kernel, -1))).flatten(-2)
        return changed

    patch.replace(convolution.gather_neighbors, gather)


@break_code("convolution-sees-all-positions", "A convolution over time gets the mean of the sequence with each window.")
def see_all_positions(patch: Patch) -> None:
    change_neighbors(patch, lambda found: found + found.mean(1, keepdim=True))


@break_code("convolution-sees-one-position", "The window of a convolution over time has the same word at every place.")
def see_one_position(patch: Patch) -> None:
    change_neighbors(patch, lambda found: found[:, :, found.shape[2] // 2, None].expand_as(found))


# ---- the Transformer's block


def change_block(patch: Patch, change: Any) -> None:
    """Change the hidden states that enter a Transformer block."""

    def forward(original: Any, self: Block, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(self, change(hidden), *args, **kwargs)

    patch.replace(Block.forward, forward)


@break_code("block-with-recurrence", "A Transformer block adds a running mean over the positions before.")
def add_running_mean(patch: Patch) -> None:
    def run(hidden: Tensor) -> Tensor:
        state, states = torch.zeros_like(hidden[:, 0]), []
        for x in hidden.unbind(1):
            state = 0.9 * state + 0.1 * x
            states.append(state)
        return hidden + torch.stack(states, 1)

    change_block(patch, run)


@break_code("block-with-convolution", "A Transformer block adds the position before to each position.")
def add_neighbor(patch: Patch) -> None:
    change_block(patch, lambda hidden: hidden + F.pad(hidden[:, :-1], (0, 0, 1, 0)))


@break_code("cross-attention-off", "Cross-attention of a Transformer returns zeros.")
def drop_cross_attention(patch: Patch) -> None:
    def forward(original: Any, self: CrossAttention, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return 0 * x

    patch.replace(CrossAttention.forward, forward)
