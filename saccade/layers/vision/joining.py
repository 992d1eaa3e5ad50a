"""Fusion of a picture and a question about it, each a Memory, into one Memory for visual question answering.

In formulas: S picture cells v_s, T words w_t, and q the question as one vector.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack
from saccade.layers.attention.scores import masked_softmax, scaled_dot
from saccade.layers.auxiliary import Aux
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, record_weights


class Glimpses(nn.Module):
    """Several attention maps (glimpses) with the question as query (Kazemi and Elqursh 2017, section 3).

    a_c = softmax_s(u_c . relu(W v_s + U q)), x_c = sum_s a_cs v_s; the output is [x_1, ..., x_C, q], as one state.
    """

    def __init__(
        self, cell_dim: int, question_dim: int, *, hidden_dim: int, glimpses: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.cell = nn.Linear(cell_dim, hidden_dim, bias=False)
        self.question = nn.Linear(question_dim, hidden_dim)
        self.energy = nn.Linear(hidden_dim, glimpses, bias=False)
        self.dropout = Dropout(dropout)
        self.dim = glimpses * cell_dim + question_dim

    def forward(self, picture: Memory, question: Memory) -> Memory:
        cells, query = self.dropout(normalize_cells(picture.states)), summarize_question(question)
        scores = self.energy(F.relu(self.cell(cells) + self.question(query)[:, None])).mT
        weights = masked_softmax(scores, picture.padding[:, None])
        if is_recording():
            record_weights(self, weights[:, :, None])
        glimpses = (weights.to(cells.dtype) @ cells).flatten(1)
        return to_single_state(torch.cat((glimpses, query), -1))


class WeightedWords(nn.Module):
    """The question as a weighted sum of its word vectors, sum_t u_t w_t + b (Xu and Saenko 2016, equation 4).

    u_t is learned for each position t up to `length`.
    """

    def __init__(self, dim: int, *, length: int) -> None:
        super().__init__()
        self.weights, self.bias = nn.Parameter(torch.ones(length)), nn.Parameter(torch.zeros(dim))

    def forward(self, question: Memory) -> Float[Tensor, "B D"]:
        assert question.inputs is not None, "the reader of the question must return its inputs"
        weights = self.weights[: question.inputs.shape[1]] * question.padding
        return (weights[:, None] @ question.inputs)[:, 0] + self.bias


class Hops(nn.Module):
    """Multi-hop attention: first from the words, then from the question and the evidence so far (Xu and Saenko 2016).

    Equations 1 to 6: C = w (A v)', a_1 = softmax_s(max_t C_ts), o_1 = Q q + sum_s a_1s E_1 v_s; in each further hop
    a_n = softmax_s(o_{n-1} . E_{n-1} v_s), o_n = o_{n-1} + sum_s a_ns E_n v_s; the output is relu(o), as one state.
    Dot products are scaled by 1 / sqrt(width). With `words`, it gives the question in place of Q q, as in the paper.
    """

    def __init__(
        self,
        cell_dim: int,
        word_dim: int,
        question_dim: int,
        *,
        dim: int,
        hops: int,
        words: WeightedWords | None = None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.match = nn.Linear(cell_dim, word_dim)
        self.evidence: Any = nn.ModuleList(nn.Linear(cell_dim, dim) for _ in range(hops))
        self.question: Any = nn.Linear(question_dim, dim) if words is None else None
        self.words: Any = words
        self.dropout = Dropout(dropout)
        self.dim = dim

    def forward(self, picture: Memory, question: Memory) -> Memory:
        cells, mask = self.dropout(normalize_cells(picture.states)), picture.padding
        weights, evidence = self.attend_by_words(cells, mask, question), self.evidence[0](cells)
        state = self.embed_question(question) + (weights.to(cells.dtype) @ evidence)[:, 0]
        for project in self.evidence[1:]:
            weights = masked_softmax(scaled_dot(state[:, None], evidence), mask[:, None])
            if is_recording():
                record_weights(self, weights[:, None])
            evidence = project(cells)
            state = state + (weights.to(evidence.dtype) @ evidence)[:, 0]
        return to_single_state(F.relu(state))

    def embed_question(self, question: Memory) -> Float[Tensor, "B D"]:
        embedded: Tensor = self.question(summarize_question(question)) if self.words is None else self.words(question)
        return embedded

    def attend_by_words(
        self, cells: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"], question: Memory
    ) -> Float[Tensor, "B 1 S"]:
        """The first hop: a cell is scored by the word that matches it best; recorded maps show each word's cells."""
        assert question.inputs is not None, "the reader of the question must return its inputs"
        scores = scaled_dot(question.inputs, self.match(cells)).masked_fill(~question.padding[..., None], float("-inf"))
        best, which = scores.max(1)
        weights = masked_softmax(best[:, None].nan_to_num(neginf=0.0), mask[:, None])
        if is_recording():
            words = torch.arange(scores.shape[1], device=cells.device)[:, None]
            record_weights(self, torch.where(which[:, None] == words, weights, 0.0)[:, None])
        return weights


class WordsOnly(nn.Module):
    """A stack without layers, for a question of which the words alone count: returns its inputs."""

    capabilities = Capabilities(static_shapes=True)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"], None, Aux]:
        return x, mask, None, {}


class Concat(nn.Module):
    """Cells and words, projected to the same width and concatenated; then a stack, if there is one."""

    def __init__(self, cell_dim: int, word_dim: int, *, dim: int, stack: Stack | None = None) -> None:
        super().__init__()
        self.cell, self.word = nn.Linear(cell_dim, dim), nn.Linear(word_dim, dim)
        self.stack, self.dim = stack, dim

    def forward(self, picture: Memory, question: Memory) -> Memory:
        states = torch.cat((self.cell(picture.states), self.word(question.states)), 1)
        mask = torch.cat((picture.padding, question.padding), 1)
        if self.stack is None:
            return Memory(states, mask)
        states, _, _, aux = self.stack(states, mask)
        return Memory(states, mask, aux=aux)


class QuestionOnly(nn.Module):
    """The question as one state, without the picture (a baseline)."""

    def __init__(self, question_dim: int) -> None:
        super().__init__()
        self.dim = question_dim

    def forward(self, picture: Memory | None, question: Memory) -> Memory:
        return to_single_state(summarize_question(question))


def summarize_question(question: Memory) -> Float[Tensor, "B D"]:
    """The question as one vector: the last state of a recurrent reader, else the mean of its states."""
    if question.final is not None:
        return question.final[-1][0]
    mask = question.padding[..., None]
    return (question.states * mask).sum(1) / mask.sum(1).clamp(min=1).to(question.states.dtype)


def normalize_cells(states: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
    """Scale all cells to norm sqrt(D), so that attention does not depend on their brightness."""
    return F.normalize(states, dim=-1) * states.shape[-1] ** 0.5


def to_single_state(state: Float[Tensor, "B D"]) -> Memory:
    return Memory(state[:, None], torch.ones(len(state), 1, dtype=torch.bool, device=state.device))
