"""The recurrence of a writer, s_t = g(y_{t-1}, s_{t-1}, c_t), inside which attention may happen.

Without attention the context c is one vector for the whole text (Sutskever et al. 2014, Cho et al. 2014). With
attention it is a look at memory, before each step (Bahdanau et al. 2015) or after it (Luong et al. 2015). Where no look
feeds back into the recurrence, a whole text goes through torch's fused kernels at once; otherwise only what depends on
the step before is computed step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.layers.attention.alignment import HardLook, Look, Source, show
from saccade.layers.attention.scores import Additive
from saccade.layers.auxiliary import Aux, StepAttention, report_routing
from saccade.layers.blocks.experts import NOTHING_BETWEEN, Between, Choice, Routing
from saccade.layers.blocks.recurrent import (
    Connections,
    Hidden,
    Name,
    Way,
    Weights,
    next_hidden,
    over_text,
    recurrent_layer,
)
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.regions import region

NOTHING = "there is nothing to look at"


@dataclass(frozen=True)
class RecurrentState:
    """Where a recurrent writer stands: the state of each layer, and what it looks at."""

    hidden: tuple[Hidden, ...]
    fed: Float[Tensor, "B F"] | None  # what enters the next step beside its word: c, or what was attended to last
    source: Source | None
    readers: Int[Tensor, " B"]  # the number of each row's memory
    lengths: Int[Tensor, " B"]  # positions written so far

    @property
    def looked_at(self) -> Source:
        assert self.source is not None, NOTHING
        return self.source

    def reorder(self, indices: Int[Tensor, " C"]) -> "RecurrentState":
        """The state whose row i is row indices[i] of this one; fewer indices let finished rows leave."""
        readers, source = self.readers.index_select(0, indices), self.source
        # Beams of one sentence look at the same memory, which then stays where it is; a GPU is not asked.
        if source is not None and not (indices.device.type == "cpu" and torch.equal(readers, self.readers)):
            source = source.rows(indices)
        return RecurrentState(
            tuple(tuple(part.index_select(0, indices) for part in layer) for layer in self.hidden),
            None if self.fed is None else self.fed.index_select(0, indices),
            source,
            readers,
            self.lengths.index_select(0, indices),
        )


class Links(NamedTuple):
    """What lies between the layers of a stack, and which positions are real, for the load of experts."""

    dropout: nn.Module
    connections: Connections
    between: Between
    real: Bool[Tensor, "B T"] | None


def through(
    layers: Any,
    x: Float[Tensor, "B T D"],
    hidden: Sequence[Hidden],
    context: Tensor | None,
    *,
    links: Links,
    number: int = 0,
) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
    """Layers one after the other over a whole text, each with the contexts (B, T, M) beside its input.

    `number` is that of the first of them in its stack. Also returned: what the experts between them chose.
    """
    after, routing = [], []
    for i, (layer, before) in enumerate(zip(layers, hidden, strict=True), start=number):
        x, chosen = links.between(i, x, links.real)
        routing += chosen
        below = links.dropout(x) if i else x
        y, last = over_text(layer, below if context is None else torch.cat((below, context), -1), before)
        x = links.connections(i, x, y)
        after.append(last)
    return x, tuple(after), routing


class FixedContext(nn.Module):
    """No attention: all that the writer knows of memory is its first state and, with `memory_dim`, c at each step."""

    def __init__(
        self, dim: int, *, cell: Name, layers: int, memory_dim: int = 0, connections: Way = "none", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(recurrent_layer(cell, dim + memory_dim, dim) for _ in range(layers))
        self.feeds = memory_dim > 0
        self.connections = Connections(connections, dim, layers)
        self.dropout = Dropout(dropout)

    def begin(self, memory: Memory | None, context: Float[Tensor, "B M"] | None) -> tuple[None, Tensor | None]:
        return None, context if self.feeds else None

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: RecurrentState,
        between: Between = NOTHING_BETWEEN,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        context = None if state.fed is None else state.fed[:, None].expand(-1, x.shape[1], -1)
        x, hidden, routing = through(
            self.layers, x, state.hidden, context, links=Links(self.dropout, self.connections, between, real)
        )
        return x, replace(state, hidden=hidden), report_routing(routing)


@region
def additive_step(
    cell: Name,
    cross: Look,
    layer: Weights,
    inputs: Tensor,
    weight: Tensor,
    source: Source,
    before: Hidden,
    gate: nn.Module | None = None,
) -> tuple[Any, ...]:
    """c_t from s_{t-1}, then s_t from y_{t-1}, s_{t-1} and c_t (Bahdanau et al. 2015, section 3.1).

    With a gate, c_t is multiplied by a number from 0 to 1 told by s_{t-1} (Xu et al. 2015, section 4.2.1). Behind
    s_t and c_t come the weights, and of a hard look what was drawn.
    """
    context, *looks = cross(before[0][:, None], source)
    if gate is not None:
        context = context * torch.sigmoid(gate(before[0]))[:, None]
    return next_hidden(cell, layer, inputs + F.linear(context[:, 0], weight), before), context, *looks


class LookFirst(nn.Module):
    """Bahdanau's attention: the state before a step looks, and what it sees enters the step.

    The first layer looks, so that only its steps are taken one by one; the layers above it get the same contexts. The
    word to write is told from s_t, c_t and y_{t-1}, as there in appendix A.2, with tanh in the place of maxout.
    """

    def __init__(
        self,
        dim: int,
        *,
        cell: Name,
        layers: int,
        memory_dim: int,
        gate: bool = False,
        hard: bool = False,
        connections: Way = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell, self.widths = cell, (dim, memory_dim)
        self.gate = nn.Linear(dim, 1) if gate else None
        self.connections = Connections(connections, dim, layers)
        self.layers: Any = nn.ModuleList(recurrent_layer(cell, dim + memory_dim, dim) for _ in range(layers))
        self.cross = (HardLook if hard else Look)(Additive(dim, key_dim=memory_dim, hidden=dim))
        self.readout = nn.Linear(2 * dim + memory_dim, dim)
        self.dropout = Dropout(dropout)

    def begin(self, memory: Memory | None, context: Float[Tensor, "B M"] | None) -> tuple[Source, None]:
        assert memory is not None, NOTHING
        return self.cross.source(memory), None

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: RecurrentState,
        between: Between = NOTHING_BETWEEN,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        lowest, source, hidden = Weights(*self.layers[0].parameters()), state.looked_at, state.hidden[0]
        for_words, for_context = lowest.weight_ih_l0.split(self.widths, 1)
        steps = []
        for inputs in F.linear(x, for_words, lowest.bias_ih_l0).unbind(1):
            hidden, *seen = additive_step(self.cell, self.cross, lowest, inputs, for_context, source, hidden, self.gate)
            steps.append((hidden[0], *seen))
        states, contexts, weights, *drawn = zip(*steps, strict=True)
        show(self.cross, weights, *drawn)
        context = torch.cat(contexts, 1)
        y, upper, routing = through(
            self.layers[1:], self.connections(0, x, torch.stack(states, 1)), state.hidden[1:], context,
            links=Links(self.dropout, self.connections, between, real), number=1,
        )  # fmt: skip
        y = torch.tanh(self.readout(torch.cat((y, context, x), -1)))
        aux: Aux = {"attention": StepAttention(weights, *drawn), **report_routing(routing)}
        return y, replace(state, hidden=(hidden, *upper)), aux


@region
def feeding_step(
    cell: Name,
    parts: tuple[nn.Module, nn.Module, nn.Module, nn.Module, Between],
    layers: tuple[Weights, ...],
    word: Tensor,
    inputs: Tensor,
    source: Source,
    before: tuple[Hidden, ...],
) -> tuple[tuple[Hidden, ...], Tensor, Tensor, dict[int, Choice]]:
    """All layers, and a look from the last one; what is told enters the next step (Luong et al. 2015, section 3.3)."""
    cross, readout, dropout, connections, between = parts
    choices: dict[int, Choice] = {}
    after = [next_hidden(cell, layers[0], inputs, before[0])]
    state = connections(0, word, after[0][0])
    for number in range(1, len(layers)):
        layer = layers[number]
        state, choice = between.routed(number, state)
        if choice is not None:
            choices[number] = choice
        inputs = F.linear(dropout(state), layer.weight_ih_l0, layer.bias_ih_l0)
        after.append(next_hidden(cell, layer, inputs, before[number]))
        state = connections(number, state, after[-1][0])
    context, weights = cross(state[:, None], source)
    return tuple(after), torch.tanh(readout(torch.cat((context[:, 0], state), -1))), weights, choices


class LookAfter(nn.Module):
    """Luong's attention: the state after a step looks, and the attentional state tanh(W [c_t; s_t]) is told.

    `cross` is how it looks. With input feeding the attentional state enters the next step; without, the recurrence is
    one kernel, and all states look at once.
    """

    def __init__(
        self,
        dim: int,
        *,
        cell: Name,
        layers: int,
        memory_dim: int,
        cross: Look,
        feeds: bool = True,
        connections: Way = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell, self.dim, self.feeds = cell, dim, feeds
        self.connections = Connections(connections, dim, layers)
        self.layers: Any = nn.ModuleList(
            recurrent_layer(cell, 2 * dim if feeds and not number else dim, dim) for number in range(layers)
        )
        self.cross = cross
        self.readout = nn.Linear(dim + memory_dim, dim)
        self.dropout = Dropout(dropout)

    def begin(self, memory: Memory | None, context: Float[Tensor, "B M"] | None) -> tuple[Source, Tensor | None]:
        assert memory is not None, NOTHING
        fed = memory.states.new_zeros(len(memory.states), self.dim) if self.feeds else None
        return self.cross.source(memory), fed

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: RecurrentState,
        between: Between = NOTHING_BETWEEN,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        return (self._fed if self.feeds else self._at_once)(x, state, between, real)

    def _at_once(
        self, x: Tensor, state: RecurrentState, between: Between, real: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Aux]:
        x, hidden, routing = through(
            self.layers, x, state.hidden, None, links=Links(self.dropout, self.connections, between, real)
        )
        context, weights = self.cross(x, state.looked_at)
        show(self.cross, (weights,))
        y = torch.tanh(self.readout(torch.cat((context, x), -1)))
        return y, replace(state, hidden=hidden), report_routing(routing)

    def _fed(
        self, x: Tensor, state: RecurrentState, between: Between, real: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Aux]:
        layers = tuple(Weights(*layer.parameters()) for layer in self.layers)
        parts = (self.cross, self.readout, self.dropout, self.connections, between)
        hidden, steps = state.hidden, []
        fed: Any = state.fed
        for_words, for_fed = layers[0].weight_ih_l0.split(self.dim, 1)
        for word, inputs in zip(x.unbind(1), F.linear(x, for_words, layers[0].bias_ih_l0).unbind(1), strict=True):
            inputs = inputs + F.linear(fed, for_fed)
            hidden, fed, *more = feeding_step(self.cell, parts, layers, word, inputs, state.looked_at, hidden)
            steps.append((fed, *more))
        told, looks, choices = zip(*steps, strict=True)
        show(self.cross, looks)
        aux = report_routing(between.join_steps(choices, real))
        return torch.stack(told, 1), replace(state, hidden=hidden, fed=fed), aux
