"""A second pass over a sequence: a decoder reads it again and attends to the encoder's states (BART classification)."""

from dataclasses import replace

from torch import nn

from saccade.config.protocols import Stack
from saccade.data.tokenization.tokenizer import START
from saccade.layers.auxiliary import merge_aux
from saccade.layers.memory import Memory
from saccade.model.readers.tokens import Embedding, get_packed_positions
from saccade.model.writers.tokens import shift_right


class SecondPass(nn.Module):
    """Memory -> Memory: a causal stack over the tokens of the memory, shifted right, that attends to its states."""

    def __init__(self, embedding: Embedding, stack: Stack) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    def forward(self, memory: Memory) -> Memory:
        assert memory.tokens is not None, "the reader reads tokens"
        before = shift_right(memory.tokens, START, memory.mask)
        states, _, _, aux = self.stack(self.embedding(before, get_packed_positions(memory.mask)), memory.mask, memory)
        return replace(memory, states=states, aux=merge_aux(memory.aux, aux))
