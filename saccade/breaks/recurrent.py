"""Breaks of recurrent networks: encoders, their directions, and the state that a decoder starts from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks import recurrence, recurrent
from saccade.layers.blocks.recurrence import FixedContextRecurrence
from saccade.layers.blocks.recurrent import Connections, Hidden, RecurrentStack
from saccade.layers.blocks.recurrent_writer import InitialState

# ---- encoders


@break_code("encoder-forgets-its-state", "A recurrent encoder computes each state from its word alone.")
def forget_encoder_state(patch: Patch) -> None:
    def run_packed_layer(original: Any, layer: Any, packed: PackedSequence, reversal: Any) -> Any:
        y = layer(packed.data[:, None])[0][:, 0]
        states, lengths = pad_packed_sequence(PackedSequence(y, *packed[1:]), batch_first=True)
        last = states[torch.arange(len(states)), lengths - 1].unflatten(-1, (-1, layer.hidden_size)).transpose(0, 1)
        return y, (last, last) if layer.mode == "LSTM" else (last,)

    patch.replace(recurrent.run_packed_layer, run_packed_layer)


@break_code("encoder-ignores-its-words", "A recurrent encoder reads zeros instead of its words.")
def ignore_words(patch: Patch) -> None:
    def forward(original: Any, self: RecurrentStack, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(self, 0 * x, *args, **kwargs)

    patch.replace(RecurrentStack.forward, forward)


@break_code("encoder-shortcut-through-time", "Each state of a recurrent encoder also gets the mean of all words.")
def add_shortcut(patch: Patch) -> None:
    def forward(original: Any, self: RecurrentStack, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        y, *rest = original(self, x, *args, **kwargs)
        return y + x.mean(1, keepdim=True), *rest

    patch.replace(RecurrentStack.forward, forward)


@break_code("recurrence-over-padding", "A recurrent encoder reads padding as if it were words.")
def read_padding(patch: Patch) -> None:
    def run_packed(original: Any, self: RecurrentStack, x: Tensor, lengths: Tensor) -> Any:
        return original(self, x, torch.full_like(lengths, x.shape[1]))

    patch.replace(RecurrentStack.run_packed, run_packed)


@break_code("upper-layers-skipped", "Of a recurrent stack only the first layer has an effect.")
def skip_upper_layers(patch: Patch) -> None:
    def connect(original: Any, self: Connections, number: int, below: Tensor, above: Tensor) -> Tensor:
        return below if number else above

    patch.replace(Connections.forward, connect)


@break_code("one-direction-only", "The backward half of a bidirectional encoder is a copy of the forward half.")
def copy_forward_half(patch: Patch) -> None:
    def forward(original: Any, self: RecurrentStack, *args: Any, **kwargs: Any) -> Any:
        y, *rest = original(self, *args, **kwargs)
        half = y.chunk(2, -1)[0]
        return (torch.cat((half, half), -1) if self.layers[0].bidirectional else y), *rest

    patch.replace(RecurrentStack.forward, forward)


@break_code("backward-states-not-realigned", "The backward states of a bidirectional encoder stay in reading order.")
def keep_reading_order(patch: Patch) -> None:
    def forward(original: Any, self: RecurrentStack, x: Tensor, mask: Any, *args: Any, **kwargs: Any) -> Any:
        y, *rest = original(self, x, mask, *args, **kwargs)
        if not self.layers[0].bidirectional:
            return y, *rest
        forwards, backwards = y.chunk(2, -1)
        lengths = x.new_full((len(x),), x.shape[1], dtype=torch.long) if mask is None else mask.sum(1)
        return torch.cat((forwards, recurrent.reverse_sequences(backwards, lengths)), -1), *rest

    patch.replace(RecurrentStack.forward, forward)


@break_code("source-not-reversed", "An encoder that should read from right to left reads from left to right.")
def keep_source_order(patch: Patch) -> None:
    patch.replace(recurrent.reverse_sequences, lambda original, x, lengths: x)


@break_code("reversal-moves-padding", "The reversal of a source puts its padding first.")
def flip_with_padding(patch: Patch) -> None:
    patch.replace(recurrent.reverse_sequences, lambda original, x, lengths: x.flip(1))


# ---- the state and the context of a decoder


@break_code("context-is-the-mean", "The fixed context is the mean of the encoder states, not the last one.")
def average_context(patch: Patch) -> None:
    def summarize(original: Any, self: InitialState, memory: Any) -> Tensor:
        real = memory.padding[..., None]
        mean: Tensor = (memory.states * real).sum(1) / real.sum(1)
        return mean

    patch.replace(InitialState.summarize, summarize)


@break_code("context-of-padding", "The fixed context is the state at the last position, which may be padding.")
def take_padding(patch: Patch) -> None:
    patch.replace(InitialState.summarize, lambda original, self, memory: memory.states[:, -1])


def change_initial_state(patch: Patch, kept: int) -> None:
    """Set the tensors of the initial state of a decoder to zero from number `kept` on."""

    def forward(original: Any, *args: Any, **kwargs: Any) -> tuple[Hidden, ...]:
        layers = original(*args, **kwargs)
        return tuple(tuple(part if i < kept else 0 * part for i, part in enumerate(layer)) for layer in layers)

    patch.replace(InitialState.forward, forward)


@break_code("initial-state-is-zero", "A recurrent decoder starts from zeros, whatever the encoder has read.")
def start_from_zero(patch: Patch) -> None:
    change_initial_state(patch, kept=0)


@break_code("cell-state-lost", "A decoder of LSTMs gets the hidden states of the encoder, but not the cell states.")
def lose_cell_state(patch: Patch) -> None:
    change_initial_state(patch, kept=1)


@break_code("decoder-without-context", "A decoder without attention gets zeros instead of the context c.")
def drop_context(patch: Patch) -> None:
    def prepare(original: Any, self: FixedContextRecurrence, memory: Any, context: Tensor | None) -> Any:
        return original(self, memory, None if context is None else 0 * context)

    patch.replace(FixedContextRecurrence.prepare_memory, prepare)


@break_code(
    "decoder-forgets-its-state", "Each step of a recurrent decoder starts from s_0 instead of the state before."
)
def forget_decoder_state(patch: Patch) -> None:
    def run_layer(original: Any, layer: Any, x: Tensor, before: Hidden) -> Any:
        length = x.shape[1]
        repeated = tuple(part.repeat_interleave(length, 0) for part in before)
        y, _ = original(layer, x.reshape(-1, 1, x.shape[-1]), repeated)
        return y.view(*x.shape[:2], -1), original(layer, x, before)[1]

    def bahdanau_step(original: Any, *args: Any) -> Any:
        *first, previous, steps = args
        return original(*first, tuple(0 * part for part in previous), steps)

    patch.replace(recurrent.run_layer, run_layer)
    patch.replace(recurrence.bahdanau_step.function, bahdanau_step)


@break_code("decoder-ignores-its-words", "A decoder without attention reads zeros instead of the words so far.")
def ignore_previous_words(patch: Patch) -> None:
    def forward(original: Any, self: FixedContextRecurrence, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(self, 0 * x, *args, **kwargs)

    patch.replace(FixedContextRecurrence.forward, forward)
