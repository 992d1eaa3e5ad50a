"""The recurrence of a writer, s_t = g(y_{t-1}, s_{t-1}, c_t), with or without attention to memory.

Without attention the context c is one vector for the whole source (Sutskever et al. 2014, Cho et al. 2014). With
attention, c_t is computed before each step (Bahdanau et al. 2015) or after it (Luong et al. 2015). Unless attention
feeds back into the recurrence, whole sequences run in torch's fused kernels; otherwise only what depends on the
previous step is computed step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.layers.attention.alignment import HardAttention, ProjectedMemory, SoftAttention, record_attention
from saccade.layers.attention.scores import Additive
from saccade.layers.auxiliary import Aux, StepAttention, report_routing
from saccade.layers.blocks.experts import NO_EXPERTS, GateOutput, InterLayerExperts, Routing
from saccade.layers.blocks.recurrent import (
    CellName,
    Connections,
    Hidden,
    LayerConnection,
    LayerWeights,
    Widths,
    build_recurrent_layer,
    run_layer,
    split_widths,
    step_cell,
)
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.regions import region

NO_MEMORY_MESSAGE = "there is no memory to attend to"


@dataclass(frozen=True)
class RecurrentState:
    """The decoding state of a recurrent writer: the state of each layer, and the memory that it attends to.

    `input_feed` enters the next step beside the token: the fixed context c, or the last attentional state.
    """

    hidden: tuple[Hidden, ...]
    input_feed: Float[Tensor, "B F"] | None
    memory: ProjectedMemory | None
    memory_rows: Int[Tensor, " B"]  # the row of memory that each row attends to
    lengths: Int[Tensor, " B"]  # positions decoded so far

    @property
    def attended_memory(self) -> ProjectedMemory:
        assert self.memory is not None, NO_MEMORY_MESSAGE
        return self.memory

    def reorder(self, indices: Int[Tensor, " C"]) -> "RecurrentState":
        """The state whose row i is row indices[i] of this one, as beam search needs it; fewer indices drop rows."""
        memory_rows, memory = self.memory_rows.index_select(0, indices), self.memory
        # Beams of one sentence share their memory, which then needs no copy; on a GPU the check would synchronize.
        if memory is not None and not (indices.device.type == "cpu" and torch.equal(memory_rows, self.memory_rows)):
            memory = memory.select_rows(indices)
        return RecurrentState(
            tuple(tuple(part.index_select(0, indices) for part in layer) for layer in self.hidden),
            None if self.input_feed is None else self.input_feed.index_select(0, indices),
            memory,
            memory_rows,
            self.lengths.index_select(0, indices),
        )


class LayerLinks(NamedTuple):
    """What is between the layers of a stack, and the mask of real positions, for the load of experts."""

    dropout: nn.Module
    connections: Connections
    between: InterLayerExperts
    mask: Bool[Tensor, "B T"] | None


def run_layers(
    layers: Any,
    x: Float[Tensor, "B T I"],
    hidden: Sequence[Hidden],
    context: Tensor | None,
    *,
    links: LayerLinks,
    number: int = 0,
) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
    """Run whole sequences through layers, each with the contexts (B, T, M) concatenated to its input.

    `number` is the index of the first of these layers in the stack. Also returns the last state of each layer and the
    routing of experts between layers.
    """
    final, routing = [], []
    for i, (layer, initial) in enumerate(zip(layers, hidden, strict=True), start=number):
        x, layer_routing = links.between(i, x, links.mask)
        routing += layer_routing
        below = links.dropout(x) if i else x
        y, last = run_layer(layer, below if context is None else torch.cat((below, context), -1), initial)
        x = links.connections(i, x, y)
        final.append(last)
    return x, tuple(final), routing


def build_layers(cell: CellName, dim: Widths, layers: int, *, more: int) -> Any:
    """Layers whose inputs have `more` features than the layer below, for a context."""
    input_dim, dim, cell_dim = split_widths(dim)
    return nn.ModuleList(
        build_recurrent_layer(cell, width + more, dim, cell_dim=cell_dim)
        for width in [input_dim, *[dim] * (layers - 1)]
    )


class FixedContextRecurrence(nn.Module):
    """A decoder without attention: memory enters as the initial state and, with `memory_dim`, as c in each step."""

    cross: None = None  # no attention

    def __init__(
        self,
        dim: Widths,
        *,
        cell: CellName,
        layers: int,
        memory_dim: int = 0,
        connections: LayerConnection = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = build_layers(cell, dim, layers, more=memory_dim)
        self.input_feeding = memory_dim > 0
        self.connections = Connections(connections, dim, layers)
        self.dropout = Dropout(dropout)

    def prepare_memory(self, memory: Memory | None, context: Float[Tensor, "B M"] | None) -> tuple[None, Tensor | None]:
        return None, context if self.input_feeding else None

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        state: RecurrentState,
        between: InterLayerExperts = NO_EXPERTS,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        context = None if state.input_feed is None else state.input_feed[:, None].expand(-1, x.shape[1], -1)
        x, hidden, routing = run_layers(
            self.layers, x, state.hidden, context, links=LayerLinks(self.dropout, self.connections, between, mask)
        )
        return x, replace(state, hidden=hidden), report_routing(routing)


@region
def bahdanau_step(
    cell: CellName,
    parts: tuple[SoftAttention, nn.Module | None],
    layer: LayerWeights,
    inputs: Tensor,
    weight: Tensor,
    memory: ProjectedMemory,
    previous: Hidden,
    steps: tuple[Tensor, ...] = (),
) -> tuple[Any, ...]:
    """c_t from s_{t-1}, then s_t from y_{t-1}, s_{t-1} and c_t (Bahdanau et al. 2015, section 3.1).

    With a gate, c_t is multiplied by a scalar sigmoid(W s_{t-1}) (Xu et al. 2015, section 4.2.1). `steps` has the
    positions of this step, for local attention. Returns s_t, c_t, the attention weights and, for hard attention, the
    sampled positions.
    """
    cross, gate = parts
    context, *attention = cross(previous[0][:, None], memory, *steps)
    if gate is not None:
        context = context * torch.sigmoid(gate(previous[0]))[:, None]
    return step_cell(cell, layer, inputs + F.linear(context[:, 0], weight), previous), context, *attention


class BahdanauRecurrence(nn.Module):
    """Bahdanau attention: the state before a step is the query, and the context enters the step.

    Only the first layer attends and must run step by step; the layers above get the same contexts. The output t_i is
    computed from s_t, c_t and y_{t-1} by tanh, or by maxout units after `use_maxout` (Bahdanau et al. 2015, appendix
    A.2.2).
    """

    def __init__(
        self,
        dim: Widths,
        *,
        cell: CellName,
        layers: int,
        memory_dim: int,
        gate: bool = False,
        hard: bool = False,
        connections: LayerConnection = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        input_dim, width, _ = split_widths(dim)
        self.cell, self.widths, self.is_maxout = cell, (input_dim, memory_dim), False
        self.gate = nn.Linear(width, 1) if gate else None
        self.connections = Connections(connections, dim, layers)
        self.layers = build_layers(cell, dim, layers, more=memory_dim)
        self.cross = (HardAttention if hard else SoftAttention)(Additive(width, key_dim=memory_dim, hidden_dim=width))
        self.readout = nn.Linear(width + memory_dim + input_dim, width)
        self.dropout = Dropout(dropout)

    def use_maxout(self, units: int) -> None:
        """Compute the output by maxout units, each the larger one of two linear maps, instead of tanh."""
        self.readout, self.is_maxout = nn.Linear(self.readout.in_features, 2 * units), True

    def prepare_memory(
        self, memory: Memory | None, context: Float[Tensor, "B M"] | None
    ) -> tuple[ProjectedMemory, None]:
        assert memory is not None, NO_MEMORY_MESSAGE
        return self.cross.project_memory(memory), None

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        state: RecurrentState,
        between: InterLayerExperts = NO_EXPERTS,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        first_layer, memory, hidden = LayerWeights(*self.layers[0].parameters()), state.attended_memory, state.hidden[0]
        token_weight, context_weight = first_layer.weight_ih_l0.split(self.widths, 1)
        steps, run_step = [], bahdanau_step.select(not self.cross.score_problem)
        positions = self.cross.list_steps(state.lengths, x.shape[1])
        for inputs, step in zip(F.linear(x, token_weight, first_layer.bias_ih_l0).unbind(1), positions, strict=True):
            hidden, *outputs = run_step(
                self.cell, (self.cross, self.gate), first_layer, inputs, context_weight, memory, hidden, step
            )
            steps.append((hidden[0], *outputs))
        states, contexts, weights, *sampled = zip(*steps, strict=True)
        record_attention(self.cross, weights, *sampled)
        context = torch.cat(contexts, 1)
        y, upper, routing = run_layers(
            self.layers[1:], self.connections(0, x, torch.stack(states, 1)), state.hidden[1:], context,
            links=LayerLinks(self.dropout, self.connections, between, mask), number=1,
        )  # fmt: skip
        y = self.readout(torch.cat((y, context, x), -1))
        y = y.unflatten(-1, (-1, 2)).amax(-1) if self.is_maxout else torch.tanh(y)
        aux: Aux = {"attention": StepAttention(weights, *sampled), **report_routing(routing)}
        return y, replace(state, hidden=(hidden, *upper)), aux


@region
def input_feeding_step(
    cell: CellName,
    parts: tuple[nn.Module, nn.Module, nn.Module, nn.Module, InterLayerExperts],
    layers: tuple[LayerWeights, ...],
    token: Tensor,
    inputs: Tensor,
    memory: ProjectedMemory,
    previous: tuple[Hidden, ...],
    steps: tuple[Tensor, ...] = (),
) -> tuple[tuple[Hidden, ...], Tensor, Tensor, dict[int, GateOutput]]:
    """One step of all layers, then attention from the last one; its output enters the next step (Luong et al. 2015,
    section 3.3). `steps` has the positions of this step, for local attention."""
    cross, readout, dropout, connections, between = parts
    gate_outputs: dict[int, GateOutput] = {}
    new = [step_cell(cell, layers[0], inputs, previous[0])]
    state = connections(0, token, new[0][0])
    for number in range(1, len(layers)):
        layer = layers[number]
        state, gate_output = between.route(number, state)
        if gate_output is not None:
            gate_outputs[number] = gate_output
        inputs = F.linear(dropout(state), layer.weight_ih_l0, layer.bias_ih_l0)
        new.append(step_cell(cell, layer, inputs, previous[number]))
        state = connections(number, state, new[-1][0])
    context, weights = cross(state[:, None], memory, *steps)
    return tuple(new), torch.tanh(readout(torch.cat((context[:, 0], state), -1))), weights, gate_outputs


class LuongRecurrence(nn.Module):
    """Luong attention: the state after a step is the query, and the output is the attentional state tanh(W [c_t; s_t]).

    With input feeding the attentional state enters the next step; without, the recurrence is one fused kernel and all
    positions attend at once.
    """

    def __init__(
        self,
        dim: Widths,
        *,
        cell: CellName,
        layers: int,
        memory_dim: int,
        cross: SoftAttention,
        input_feeding: bool = True,
        connections: LayerConnection = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_dim, self.dim, cell_dim = split_widths(dim)
        self.cell, self.input_feeding = cell, input_feeding
        self.connections = Connections(connections, dim, layers)
        fed = self.input_dim + (self.dim if input_feeding else 0)
        self.layers = build_layers(cell, (fed, self.dim, cell_dim), layers, more=0)
        self.cross = cross
        self.readout = nn.Linear(self.dim + memory_dim, self.dim)
        self.dropout = Dropout(dropout)

    def prepare_memory(
        self, memory: Memory | None, context: Float[Tensor, "B M"] | None
    ) -> tuple[ProjectedMemory, Tensor | None]:
        assert memory is not None, NO_MEMORY_MESSAGE
        input_feed = memory.states.new_zeros(len(memory.states), self.dim) if self.input_feeding else None
        return self.cross.project_memory(memory), input_feed

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        state: RecurrentState,
        between: InterLayerExperts = NO_EXPERTS,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState, Aux]:
        return (self._run_stepwise if self.input_feeding else self._run_parallel)(x, state, between, mask)

    def _run_parallel(
        self, x: Tensor, state: RecurrentState, between: InterLayerExperts, mask: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Aux]:
        x, hidden, routing = run_layers(
            self.layers, x, state.hidden, None, links=LayerLinks(self.dropout, self.connections, between, mask)
        )
        positions = zip(*self.cross.list_steps(state.lengths, x.shape[1]), strict=True)
        context, weights = self.cross(x, state.attended_memory, *(torch.cat(steps, 1) for steps in positions))
        record_attention(self.cross, (weights,))
        y = torch.tanh(self.readout(torch.cat((context, x), -1)))
        return y, replace(state, hidden=hidden), report_routing(routing)

    def _run_stepwise(
        self, x: Tensor, state: RecurrentState, between: InterLayerExperts, mask: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Aux]:
        layers = tuple(LayerWeights(*layer.parameters()) for layer in self.layers)
        parts = (self.cross, self.readout, self.dropout, self.connections, between)
        hidden, steps = state.hidden, []
        input_feed: Any = state.input_feed
        token_weight, feed_weight = layers[0].weight_ih_l0.split((self.input_dim, self.dim), 1)
        run_step = input_feeding_step.select(not self.cross.score_problem)
        positions = self.cross.list_steps(state.lengths, x.shape[1])
        projected = F.linear(x, token_weight, layers[0].bias_ih_l0).unbind(1)
        for token, inputs, step in zip(x.unbind(1), projected, positions, strict=True):
            inputs = inputs + F.linear(input_feed, feed_weight)
            hidden, input_feed, *rest = run_step(
                self.cell, parts, layers, token, inputs, state.attended_memory, hidden, step
            )
            steps.append((input_feed, *rest))
        outputs, weights, gate_outputs = zip(*steps, strict=True)
        record_attention(self.cross, weights)
        aux = report_routing(between.merge_steps(gate_outputs, mask))
        return torch.stack(outputs, 1), replace(state, hidden=hidden, input_feed=input_feed), aux
