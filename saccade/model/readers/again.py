"""A second reading of a text: by what could write it, with all of the first one before its eyes."""

from dataclasses import replace
from typing import Any

from torch import nn

from saccade.config.protocols import Stack
from saccade.data.tokenization.tokenizer import START
from saccade.layers.auxiliary import merge_aux
from saccade.layers.memory import Memory
from saccade.model.readers.tokens import Embedding, places
from saccade.model.writers.tokens import shift_right


class Again(nn.Module):
    """Memory -> Memory: at each place a causal stack knows the tokens before it, and attends to all that was read."""

    def __init__(self, embedding: Embedding, stack: Stack) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack: Any = stack

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    def forward(self, memory: Memory) -> Memory:
        assert memory.tokens is not None, "a text was read"
        before = shift_right(memory.tokens, START, memory.mask)
        states, _, _, aux = self.stack(self.embedding(before, places(memory.mask)), memory.mask, memory)
        return replace(memory, states=states, aux=merge_aux(memory.aux, aux))
