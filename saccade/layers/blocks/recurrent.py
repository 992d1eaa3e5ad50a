"""Recurrent networks, h_t = f(x_t, h_{t-1}): cells, layers in torch's fused kernels, and the stack of a reader.

`recurrent_writer.py` has the stack of a writer, which attends to memory.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from saccade.config.protocols import Capabilities
from saccade.layers.auxiliary import Aux, report_routing
from saccade.layers.blocks.experts import NO_EXPERTS, InterLayerExperts, Routing
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

# ---- connections past a recurrent layer

LayerConnection = Literal["none", "residual", "fast-forward"]
# Of the inputs, of the hidden states and of the cell states of an LSTM, where they differ
Widths = int | tuple[int, int] | tuple[int, int, int]
FIRST_RESIDUAL_LAYER = 2  # the two lowest layers have no residual connection (Wu et al. 2016, section 3.1)


def split_widths(dim: Widths) -> tuple[int, int, int]:
    """The widths of the inputs, of the hidden states and of the cell states."""
    widths = (dim,) if isinstance(dim, int) else dim
    return widths[0], widths[min(1, len(widths) - 1)], widths[-1]


class Connections(nn.Module):
    """Combines the input and the output of a layer into the input of the layer above.

    none: the output alone. residual: their sum, from the third layer on (Wu et al. 2016, equation 6).

    fast-forward: f^{k+1} = W [h^k; f^k], where h^k is the output of layer k for its input f^k, so that a path of linear
    maps bypasses all recurrences (Zhou et al. 2016, section 3.1). In the paper f^k are the inputs of the four gates,
    half of which are passed on; here f^k is as wide as h^k and the gates get W_ih f^k, which torch's kernels support.
    f^1 is the token embedding; the output of the stack is one more such map, of the last h and f.
    """

    def __init__(self, kind: LayerConnection, dim: Widths, layers: int) -> None:
        super().__init__()
        self.is_residual = kind == "residual"
        input_dim, dim, _ = split_widths(dim)
        below = [input_dim, *[dim] * (layers - 1)] if kind == "fast-forward" else []
        joins = [nn.Linear(dim + width, dim, bias=False) for width in below]
        for join in joins:
            nn.init.xavier_uniform_(join.weight)
        self.joins = nn.ModuleList(joins)

    def forward(
        self, number: int, below: Float[Tensor, "*rows I"], above: Float[Tensor, "*rows W"]
    ) -> Float[Tensor, "*rows W"]:
        """`below` is the input and `above` the output of layer `number`, counted from 0."""
        if self.joins:
            joined: Tensor = self.joins[number](torch.cat((above, below), -1))
            return joined
        return above + below if self.is_residual and number >= FIRST_RESIDUAL_LAYER else above


# ---- cells and layers


CellName = Literal["rnn", "gru", "lstm"]
# "both at first": only the lowest layer is bidirectional, with half of the width for each direction, or in "full at
# first" with the whole width for each; "in turn": every other layer runs from right to left
Directions = Literal["one", "both", "both at first", "full at first", "in turn"]
Hidden = tuple[Tensor, ...]  # the state of one layer: h (B, D), and for an LSTM also the cell state (B, C)


def rnn_step(inputs: Float[Tensor, "B D"], recurrent: Float[Tensor, "B D"], before: Hidden) -> Hidden:
    """h_t = tanh(W x_t + U h_{t-1}) (Elman 1990)"""
    return (torch.tanh(inputs + recurrent),)


def gru_step(inputs: Float[Tensor, "B D3"], recurrent: Float[Tensor, "B D3"], before: Hidden) -> Hidden:
    """h_t = (1 - z) n + z h_{t-1}, n = tanh(W x_t + r U h_{t-1}); gates r (reset), z (update) (Cho et al. 2014)"""
    reset_x, update_x, new_x = inputs.chunk(3, -1)
    reset_h, update_h, new_h = recurrent.chunk(3, -1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return (new + update * (before[0] - new),)


def lstm_step(inputs: Float[Tensor, "B D4"], recurrent: Float[Tensor, "B D4"], before: Hidden) -> Hidden:
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t) (Hochreiter and Schmidhuber 1997; Gers et al. 2000)"""
    input_gate, forget, new, output_gate = (inputs + recurrent).chunk(4, -1)
    cell = torch.sigmoid(forget) * before[1] + torch.sigmoid(input_gate) * torch.tanh(new)
    return torch.sigmoid(output_gate) * torch.tanh(cell), cell


class Cell(NamedTuple):
    module: Any  # torch's module
    step: Callable[[Tensor, Tensor, Hidden], Hidden]
    gates: int
    states: int  # tensors of the state


CELLS: dict[str, Cell] = {
    "rnn": Cell(nn.RNN, rnn_step, gates=1, states=1),
    "gru": Cell(nn.GRU, gru_step, gates=3, states=1),
    "lstm": Cell(nn.LSTM, lstm_step, gates=4, states=2),
}


# By the `mode` of torch's modules.
FUNCTIONAL_KERNELS: dict[str, Any] = {"RNN_TANH": torch.rnn_tanh, "GRU": torch.gru, "LSTM": torch.lstm}


def build_recurrent_layer(
    cell: CellName, input_dim: int, dim: int, *, cell_dim: int | None = None, bidirectional: bool = False
) -> Any:
    """One layer with orthogonal recurrent matrices and, in an LSTM, a forget-gate bias of 1.

    In an LSTM with another `cell_dim`, hidden states are projected from that width to `dim` (LSTMP, Sak et al. 2014).
    """
    units = cell_dim or dim
    projection = {"proj_size": dim} if units != dim else {}
    layer = CELLS[cell].module(input_dim, units, batch_first=True, bidirectional=bidirectional, **projection)
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
            if cell == "lstm" and "bias_ih" in name:
                nn.init.ones_(parameter.data[units : 2 * units])  # Jozefowicz et al. 2015
        elif "hr" in name:
            nn.init.xavier_uniform_(parameter)
        else:
            for gate in parameter.data.chunk(CELLS[cell].gates):
                (nn.init.orthogonal_ if "hh" in name else nn.init.xavier_uniform_)(gate)
    return layer


class LayerWeights(NamedTuple):
    """The parameters of a unidirectional layer in torch's order: compiled regions take tensors, not modules.

    `weight_hr_l0` projects the C units of an LSTM to hidden states of another width.
    """

    weight_ih_l0: Float[Tensor, "G I"]
    weight_hh_l0: Float[Tensor, "G D"]
    bias_ih_l0: Float[Tensor, " G"]
    bias_hh_l0: Float[Tensor, " G"]
    weight_hr_l0: Float[Tensor, "D C"] | None = None


def step_cell(cell: CellName, layer: LayerWeights, inputs: Float[Tensor, "B G"], before: Hidden) -> Hidden:
    """One step of a layer; `inputs` are W x_t + b for all gates."""
    after = CELLS[cell].step(inputs, F.linear(before[0], layer.weight_hh_l0, layer.bias_hh_l0), before)
    return after if layer.weight_hr_l0 is None else (F.linear(after[0], layer.weight_hr_l0), *after[1:])


def call_layer(layer: Any, *inputs: Any) -> Any:
    """Call torch's module, without its note that oneDNN has no projections and another implementation runs."""
    if not layer.proj_size:
        return layer(*inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        return layer(*inputs)


def run_layer(layer: Any, x: Float[Tensor, "B T I"], before: Hidden) -> tuple[Float[Tensor, "B T D"], Hidden]:
    """All steps of a unidirectional layer in one fused kernel, and its last state."""
    initial = tuple(part[None].contiguous() for part in before)
    y, last = call_layer(layer, x, initial if len(initial) > 1 else initial[0])
    return y, tuple(part[0] for part in (last if isinstance(last, tuple) else (last,)))


def reverse_sequences(x: Shaped[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> Shaped[Tensor, "B T D"]:
    """Reverse each row up to its length; padding stays in place."""
    positions = torch.arange(x.shape[1], device=x.device)
    reversed_positions = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return x.gather(1, reversed_positions[..., None].expand_as(x))


class RecurrentStack(nn.Module):
    """Recurrent layers over whole sequences, from left to right, from right to left (`reverse`), or bidirectional.

    Bidirectional layers have half of the width per direction. With directions "in turn", every other layer runs from
    right to left, so that from the second layer on a state depends on all tokens (Zhou et al. 2016, section 3.2;
    `TwoColumns` has both of their columns). States are returned in the order of the tokens, whatever the direction.

    With directions "full at first", the second layer gets both directions of the first one, of the whole width each (Wu
    et al. 2016, section 3.2).

    The returned state is the last state of each layer, for the writer's initial state. Padding is skipped by packing,
    which needs the lengths on the CPU. On a GPU, if the last cell states of an LSTM are not needed, layers run over the
    padding at the end too, whose outputs are unused: this avoids a synchronization.
    """

    operation = "recurrence"  # for counts of parameters by operation

    def __init__(
        self,
        dim: Widths,
        *,
        cell: CellName,
        layers: int,
        directions: Directions = "one",
        reverse: bool = False,
        connections: LayerConnection = "none",
        between: InterLayerExperts = NO_EXPERTS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_dim, self.dim, cell_dim = split_widths(dim)
        width, full = self.dim, directions == "full at first"
        both = {"both": layers, "both at first": 1, "full at first": 1}.get(directions, 0)
        inputs = [self.input_dim, 2 * width if full else width, *[width] * layers]
        shares = [2 if number < both and not full else 1 for number in range(layers)]  # of the width, for a direction
        self.layers: Any = nn.ModuleList(
            build_recurrent_layer(
                cell, inputs[number], width // share, cell_dim=cell_dim // share, bidirectional=number < both
            )
            for number, share in enumerate(shares)
        )
        self.reverse, self.alternate = reverse, directions == "in turn"
        self.connections, self.between = Connections(connections, dim, layers), between
        self.dropout = Dropout(dropout)
        self.reads_padding = cell != "lstm"  # layers may run over padding

    @property
    def capabilities(self) -> Capabilities:
        reasons = {} if self.reads_padding else {"static_shapes": "stack returns the last cell states of an LSTM"}
        return Capabilities(static_shapes=self.reads_padding, reasons=reasons)

    def discard_cell_states(self) -> "RecurrentStack":
        """Allow the stack to leave out the last cell states of an LSTM; returns the stack itself."""
        self.reads_padding = True
        return self

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, tuple[Hidden, ...], Aux]:
        rows, length = x.shape[:2]
        lengths = x.new_full((rows,), length, dtype=torch.long) if mask is None else mask.sum(1).clamp(min=1)
        with torch.autocast(x.device.type, enabled=False):  # torch's kernels would run in half precision
            x = x.to(self.layers[0].weight_hh_l0.dtype)
            x = reverse_sequences(x, lengths) if self.reverse else x
            read = self.run_padded if x.is_cuda and self.reads_padding else self.run_packed
            x, final, routing = read(x, lengths)
        return reverse_sequences(x, lengths) if self.reverse else x, mask, final, report_routing(routing)

    def run_packed(
        self, x: Float[Tensor, "B T I"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
        """Run all layers on packed sequences, without padding."""
        cpu_lengths, length = lengths.cpu(), x.shape[1]
        packed = pack_padded_sequence(x, cpu_lengths, batch_first=True, enforce_sorted=False)
        reversal, final, routing = get_packed_reversal(lengths, cpu_lengths, length) if self.alternate else None, [], []
        for number, layer in enumerate(self.layers):
            below, chosen = self.between(number, packed.data)
            routing += chosen
            packed = PackedSequence(below, *packed[1:])
            above, last = run_packed_layer(layer, packed, reversal if number % 2 else None)
            packed = PackedSequence(self.connections(number, below, self.dropout(above)), *packed[1:])
            final.append(concat_directions(last))
        return pad_packed_sequence(packed, batch_first=True, total_length=length)[0], tuple(final), routing

    def run_padded(
        self, x: Float[Tensor, "B T I"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
        """Run all layers on padded sequences; of the last states only h is returned."""
        real, final, routing = torch.arange(x.shape[1], device=x.device) < lengths[:, None], [], []
        for number, layer in enumerate(self.layers):
            below, chosen = self.between(number, x, real)
            routing += chosen
            backward = self.alternate and number % 2 == 1
            above, last = run_padded_layer(layer, reverse_sequences(below, lengths) if backward else below, lengths)
            x = self.connections(number, below, self.dropout(reverse_sequences(above, lengths) if backward else above))
            final.append((last,))
        return x, tuple(final), routing


class TwoColumns(nn.Module):
    """Two stacks side by side on the same input, layers of each in turn from left to right and from right to left.

    The first column begins from the left, the second from the right (Zhou et al. 2016, section 3.2). Each has half of
    the width; states are concatenated.
    """

    operation = "recurrence"  # for counts of parameters by operation

    def __init__(self, first: RecurrentStack, second: RecurrentStack) -> None:
        super().__init__()
        self.columns: Any = nn.ModuleList((first, second))
        self.dim, self.input_dim = first.dim + second.dim, first.input_dim

    @property
    def capabilities(self) -> Capabilities:
        capabilities: Capabilities = self.columns[0].capabilities
        return capabilities

    def discard_cell_states(self) -> "TwoColumns":
        """Allow both columns to leave out the last cell states of an LSTM; returns the stack itself."""
        for column in self.columns:
            column.discard_cell_states()
        return self

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, tuple[Hidden, ...], Aux]:
        (left, _, left_final, _), (right, _, right_final, _) = (column(x, mask) for column in self.columns)
        final = tuple(
            tuple(torch.cat(pair, -1) for pair in zip(*layers, strict=True))
            for layers in zip(left_final, right_final, strict=True)
        )
        return torch.cat((left, right), -1), mask, final, {}


def run_padded_layer(
    layer: Any, x: Float[Tensor, "B T I"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B D"]]:
    """The outputs of a layer for sequences padded at the end, and its state after the last token of each direction.

    The right-to-left direction runs over reversed sequences, so that padding comes last there too.
    """
    last, rows = lengths - 1, torch.arange(len(x), device=x.device)
    if not layer.bidirectional:
        y = call_layer(layer, x)[0]
        return y, y[rows, last]
    forward, backward = run_direction(layer, x, ""), run_direction(layer, reverse_sequences(x, lengths), "_reverse")
    final = torch.cat((forward[rows, last], backward[rows, last]), -1)
    return torch.cat((forward, reverse_sequences(backward, lengths)), -1), final


def run_direction(layer: Any, x: Float[Tensor, "B T I"], suffix: str) -> Float[Tensor, "B T D"]:
    """All steps of one direction of a bidirectional layer, whose parameter names have this `suffix`."""
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", *(["weight_hr"] if layer.proj_size else [])]
    weights = [getattr(layer, f"{name}_l0{suffix}") for name in names]
    cells = x.new_zeros(1, len(x), layer.hidden_size)
    zeros = x.new_zeros(1, len(x), layer.proj_size) if layer.proj_size else cells
    kernel, initial = FUNCTIONAL_KERNELS[layer.mode], (zeros, cells) if layer.mode == "LSTM" else zeros
    with warnings.catch_warnings():  # the weights of one direction are copied
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        return kernel(x, initial, weights, True, 1, 0.0, layer.training, False, True)[0]


def run_packed_layer(
    layer: Any, packed: PackedSequence, reversal: Int[Tensor, " N"] | None
) -> tuple[Float[Tensor, "N D"], Sequence[Tensor]]:
    """The outputs of a layer for packed sequences, and its last states; reversed before and after by `reversal`."""
    inputs = packed if reversal is None else PackedSequence(packed.data.index_select(0, reversal), *packed[1:])
    outputs, last = call_layer(layer, inputs)
    above = outputs.data if reversal is None else outputs.data.index_select(0, reversal)
    return above, last if isinstance(last, tuple) else (last,)


def get_packed_reversal(
    lengths: Int[Tensor, " B"], cpu_lengths: Int[Tensor, " B"], max_length: int
) -> Int[Tensor, " N"]:
    """The permutation of packed positions that reverses every sequence; it is its own inverse.

    `cpu_lengths` are the lengths on the CPU.
    """
    indices = torch.arange(len(lengths) * max_length, device=lengths.device).view(-1, max_length, 1)
    source, target = (
        pack_padded_sequence(part, cpu_lengths, batch_first=True, enforce_sorted=False).data[:, 0]
        for part in (indices, reverse_sequences(indices, lengths))
    )
    packed_index = torch.empty_like(indices.flatten())
    packed_index[source] = torch.arange(len(source), device=source.device)
    return packed_index[target]


def concat_directions(last: Sequence[Float[Tensor, "N B W"]]) -> Hidden:
    """The last states of a layer with its directions concatenated."""
    return tuple(part.transpose(0, 1).flatten(1) for part in last)
