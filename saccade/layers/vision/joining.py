"""A picture and a question about it, each a Memory, become one Memory.

S cells, T words, q the question as one vector, v_s a cell, w_t a word.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Stack
from saccade.layers.attention.scores import masked_softmax, scaled_dot
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.record import keep, recording


class Glimpses(nn.Module):
    """Several looks of the whole question at once (Kazemi and Elqursh 2017, section 3):

    a_c = softmax_s(u_c . relu(W v_s + U q)), x_c = sum_s a_cs v_s; what is given is [x_1, ..., x_C, q], as one state.
    """

    def __init__(self, cell_dim: int, question_dim: int, *, hidden: int, glimpses: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = nn.Linear(cell_dim, hidden, bias=False)
        self.question = nn.Linear(question_dim, hidden)
        self.energy = nn.Linear(hidden, glimpses, bias=False)
        self.dropout = Dropout(dropout)
        self.dim = glimpses * cell_dim + question_dim

    def forward(self, look: Memory, ask: Memory) -> Memory:
        cells, question = self.dropout(evened(look.states)), whole(ask)
        scores = self.energy(F.relu(self.cell(cells) + self.question(question)[:, None])).mT
        weights = masked_softmax(scores, look.padding[:, None])
        if recording():
            keep(self, weights[:, :, None])
        seen = (weights.to(cells.dtype) @ cells).flatten(1)
        return one_state(torch.cat((seen, question), -1))


class Hops(nn.Module):
    """Words look at first, then the question with what was seen looks again (Xu and Saenko 2016, equations 1 to 6):

    C = w (A v)', a_1 = softmax_s(max_t C_ts), o_1 = Q q + sum_s a_1s E_1 v_s; in each hop that follows
    a_n = softmax_s(o_{n-1} . E_{n-1} v_s), o_n = o_{n-1} + sum_s a_ns E_n v_s; what is given is relu(o), as one state.
    Products are divided by the root of the width, so that they begin neither large nor small.
    """

    def __init__(self, cell_dim: int, word_dim: int, question_dim: int, *, dim: int, hops: int, dropout: float) -> None:
        super().__init__()
        self.match = nn.Linear(cell_dim, word_dim)
        self.evidence: Any = nn.ModuleList(nn.Linear(cell_dim, dim) for _ in range(hops))
        self.question = nn.Linear(question_dim, dim)
        self.dropout = Dropout(dropout)
        self.dim = dim

    def forward(self, look: Memory, ask: Memory) -> Memory:
        cells, mask = self.dropout(evened(look.states)), look.padding
        weights, told = self.of_words(cells, mask, ask), self.evidence[0](cells)
        seen = self.question(whole(ask)) + (weights.to(cells.dtype) @ told)[:, 0]
        for evidence in self.evidence[1:]:
            weights = masked_softmax(scaled_dot(seen[:, None], told), mask[:, None])
            if recording():
                keep(self, weights[:, None])
            told = evidence(cells)
            seen = seen + (weights.to(told.dtype) @ told)[:, 0]
        return one_state(F.relu(seen))

    def of_words(self, cells: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"], ask: Memory) -> Float[Tensor, "B 1 S"]:
        """The first look: the word that fits a cell best says how much it counts. A map shows each word its cells."""
        assert ask.inputs is not None, "a reader of tokens tells what it was given"
        scores = scaled_dot(ask.inputs, self.match(cells)).masked_fill(~ask.padding[..., None], float("-inf"))
        best, which = scores.max(1)
        weights = masked_softmax(best[:, None].nan_to_num(neginf=0.0), mask[:, None])
        if recording():
            words = torch.arange(scores.shape[1], device=cells.device)[:, None]
            keep(self, torch.where(which[:, None] == words, weights, 0.0)[:, None])
        return weights


class Concat(nn.Module):
    """All cells and then all words, each through a matrix to one width, and through a stack where there is one."""

    def __init__(self, cell_dim: int, word_dim: int, *, dim: int, stack: Stack | None = None) -> None:
        super().__init__()
        self.cell, self.word = nn.Linear(cell_dim, dim), nn.Linear(word_dim, dim)
        self.stack, self.dim = stack, dim

    def forward(self, look: Memory, ask: Memory) -> Memory:
        states = torch.cat((self.cell(look.states), self.word(ask.states)), 1)
        mask = torch.cat((look.padding, ask.padding), 1)
        if self.stack is None:
            return Memory(states, mask)
        states, _, _, aux = self.stack(states, mask)
        return Memory(states, mask, aux=aux)


class QuestionAlone(nn.Module):
    """The question as one state; no picture is read."""

    def __init__(self, question_dim: int) -> None:
        super().__init__()
        self.dim = question_dim

    def forward(self, look: Memory | None, ask: Memory) -> Memory:
        return one_state(whole(ask))


def whole(ask: Memory) -> Float[Tensor, "B D"]:
    """A question as one vector: the last state of a recurrent reader, else the mean of the states of its words."""
    if ask.final is not None:
        return ask.final[-1][0]
    mask = ask.padding[..., None]
    return (ask.states * mask).sum(1) / mask.sum(1).clamp(min=1).to(ask.states.dtype)


def evened(states: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
    """Cells of one length, so that a bright one is not looked at because it is bright; their numbers are about 1."""
    return F.normalize(states, dim=-1) * states.shape[-1] ** 0.5


def one_state(state: Float[Tensor, "B D"]) -> Memory:
    return Memory(state[:, None], torch.ones(len(state), 1, dtype=torch.bool, device=state.device))
