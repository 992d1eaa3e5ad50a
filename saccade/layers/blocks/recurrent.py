"""Recurrent networks, h_t = f(x_t, h_{t-1}): torch's fused kernels over whole texts, and one step at a time.

The stack here is that of a reader; `recurrent_writer.py` has the one that attends to memory while it writes.
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
from saccade.layers.blocks.experts import NOTHING_BETWEEN, Between, Routing
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

# ---- What goes past a recurrent layer to the one above it: nothing, a sum, or a linear map.

Way = Literal["none", "residual", "fast-forward"]
PLAIN = 2  # layers at the bottom without a sum with their input (Wu et al. 2016, section 3.1)


class Connections(nn.Module):
    """What the layer above is given, of what a layer was given and what it gave.

    none: what it gave. residual: the sum of both, from the third layer on (Wu et al. 2016, equation 6).

    fast-forward: f^{k+1} = W [h^k; f^k], where layer k makes h^k of f^k, so that linear maps lead past all recurrences
    (Zhou et al. 2016, section 3.1). There f^k are the inputs of the four gates, of which the half is carried on; here
    f^k is as wide as h^k, and the inputs of the gates are W_ih f^k, so that torch's kernels take it. f^1 is the vector
    of the word. What the stack gives is one map more, of the last h and f.
    """

    def __init__(self, way: Way, dim: int, layers: int) -> None:
        super().__init__()
        self.sums = way == "residual"
        joins = [nn.Linear(2 * dim, dim, bias=False) for _ in range(layers)] if way == "fast-forward" else []
        for join in joins:
            nn.init.xavier_uniform_(join.weight)
        self.joins = nn.ModuleList(joins)

    def forward(
        self, number: int, below: Float[Tensor, "*rows D"], above: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows D"]:
        """`below` is what layer `number`, counted from 0, was given, and `above` what it gave."""
        if self.joins:
            joined: Tensor = self.joins[number](torch.cat((above, below), -1))
            return joined
        return above + below if self.sums and number >= PLAIN else above


# ----


Name = Literal["rnn", "gru", "lstm"]
# both at first: in the lowest layer only; in turn: the second, the fourth ... layer from right to left
Directions = Literal["one", "both", "both at first", "in turn"]
Hidden = tuple[Tensor, ...]  # of one layer: h (B, D), and the cell state of an LSTM beside it


def vanilla(inputs: Float[Tensor, "B D"], recurrent: Float[Tensor, "B D"], before: Hidden) -> Hidden:
    """h_t = tanh(W x_t + U h_{t-1}) (Elman 1990)"""
    return (torch.tanh(inputs + recurrent),)


def gru(inputs: Float[Tensor, "B D3"], recurrent: Float[Tensor, "B D3"], before: Hidden) -> Hidden:
    """h_t = (1 - z) n + z h_{t-1}, where r decides what n sees of h_{t-1} (Cho et al. 2014)"""
    reset_x, update_x, new_x = inputs.chunk(3, -1)
    reset_h, update_h, new_h = recurrent.chunk(3, -1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return (new + update * (before[0] - new),)


def lstm(inputs: Float[Tensor, "B D4"], recurrent: Float[Tensor, "B D4"], before: Hidden) -> Hidden:
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t) (Hochreiter and Schmidhuber 1997; Gers et al. 2000)"""
    enter, forget, new, leave = (inputs + recurrent).chunk(4, -1)
    cell = torch.sigmoid(forget) * before[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


class Cell(NamedTuple):
    fused: Any  # the module of torch
    step: Callable[[Tensor, Tensor, Hidden], Hidden]
    gates: int
    states: int  # tensors that are carried from step to step


CELLS: dict[str, Cell] = {
    "rnn": Cell(nn.RNN, vanilla, gates=1, states=1),
    "gru": Cell(nn.GRU, gru, gates=3, states=1),
    "lstm": Cell(nn.LSTM, lstm, gates=4, states=2),
}


FUSED: dict[str, Any] = {"RNN_TANH": torch.rnn_tanh, "GRU": torch.gru, "LSTM": torch.lstm}  # by torch's own names


def recurrent_layer(cell: Name, input_dim: int, dim: int, *, bidirectional: bool = False) -> Any:
    """One layer: recurrent matrices begin orthogonal, and the gate of an LSTM that forgets begins open."""
    layer = CELLS[cell].fused(input_dim, dim, batch_first=True, bidirectional=bidirectional)
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
            if cell == "lstm" and "bias_ih" in name:
                nn.init.ones_(parameter.data[dim : 2 * dim])  # Jozefowicz et al. 2015
        else:
            for gate in parameter.data.chunk(CELLS[cell].gates):
                (nn.init.orthogonal_ if "hh" in name else nn.init.xavier_uniform_)(gate)
    return layer


class Weights(NamedTuple):
    """Those of a layer of one direction, by torch's names and in torch's order: a graph takes them, and no module."""

    weight_ih_l0: Float[Tensor, "G I"]
    weight_hh_l0: Float[Tensor, "G D"]
    bias_ih_l0: Float[Tensor, " G"]
    bias_hh_l0: Float[Tensor, " G"]


def next_hidden(cell: Name, layer: Weights, inputs: Float[Tensor, "B G"], before: Hidden) -> Hidden:
    """One step of a layer, given W x_t + b for all of its gates."""
    return CELLS[cell].step(inputs, F.linear(before[0], layer.weight_hh_l0, layer.bias_hh_l0), before)


def over_text(layer: Any, x: Float[Tensor, "B T I"], before: Hidden) -> tuple[Float[Tensor, "B T D"], Hidden]:
    """All steps of a layer of one direction in one kernel, and its last state."""
    first = tuple(part[None].contiguous() for part in before)
    y, last = layer(x, first if len(first) > 1 else first[0])
    return y, tuple(part[0] for part in (last if isinstance(last, tuple) else (last,)))


def turned(x: Shaped[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> Shaped[Tensor, "B T D"]:
    """Each row from its last real position to its first; what stands behind it stays where it is."""
    at = torch.arange(x.shape[1], device=x.device)
    places = torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)
    return x.gather(1, places[..., None].expand_as(x))


class RecurrentStack(nn.Module):
    """Layers that read a text from left to right, from right to left, or in both directions, half of the width each.

    Or in turn, one layer from left to right and the next from right to left, so that from the second one on a state
    knows of all words (Zhou et al. 2016, section 3.2, of whose two columns of layers this is one). States stand at the
    positions of their words, in whatever order these were read. Rows end where their text ends: padding is never read.
    What is returned as state is the last one of each layer, for the writer to begin with. On a GPU, where nobody wants
    the last cells of an LSTM, padding is read behind the text instead, and what comes of it is never looked at: no
    length has to be known outside of the device then.
    """

    operation = "recurrence"  # for counts of parameters by operation

    def __init__(
        self,
        dim: int,
        *,
        cell: Name,
        layers: int,
        directions: Directions = "one",
        reverse: bool = False,
        connections: Way = "none",
        between: Between = NOTHING_BETWEEN,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        both = {"both": layers, "both at first": 1}.get(directions, 0)
        self.layers: Any = nn.ModuleList(
            recurrent_layer(cell, dim, dim // 2 if number < both else dim, bidirectional=number < both)
            for number in range(layers)
        )
        self.dim, self.reverse, self.alternate = dim, reverse, directions == "in turn"
        self.connections, self.between = Connections(connections, dim, layers), between
        self.dropout = Dropout(dropout)
        self.in_rectangles = cell != "lstm"  # whether padding may be read

    @property
    def capabilities(self) -> Capabilities:
        reasons = {} if self.in_rectangles else {"static_shapes": "stack hands over the last cells of an LSTM"}
        return Capabilities(static_shapes=self.in_rectangles, reasons=reasons)

    def without_cells(self) -> "RecurrentStack":
        """The same stack, of which nobody wants the last cells."""
        self.in_rectangles = True
        return self

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, tuple[Hidden, ...], Aux]:
        rows, length = x.shape[:2]
        lengths = x.new_full((rows,), length, dtype=torch.long) if mask is None else mask.sum(1).clamp(min=1)
        with torch.autocast(x.device.type, enabled=False):  # under which torch's kernels would run in float16
            x = x.to(self.layers[0].weight_hh_l0.dtype)
            x = turned(x, lengths) if self.reverse else x
            read = self.read_rectangle if x.is_cuda and self.in_rectangles else self.read_packed
            x, final, routing = read(x, lengths)
        return turned(x, lengths) if self.reverse else x, mask, final, report_routing(routing)

    def read_packed(
        self, x: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
        """All layers, without padding."""
        counts, length = lengths.cpu(), x.shape[1]
        packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        back, final, routing = turning(lengths, counts, length) if self.alternate else None, [], []
        for number, layer in enumerate(self.layers):
            below, chosen = self.between(number, packed.data)
            routing += chosen
            packed = PackedSequence(below, *packed[1:])
            above, last = over_packed(layer, packed, back if number % 2 else None)
            packed = PackedSequence(self.connections(number, below, self.dropout(above)), *packed[1:])
            final.append(joined(last))
        return pad_packed_sequence(packed, batch_first=True, total_length=length)[0], tuple(final), routing

    def read_rectangle(
        self, x: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B T D"], tuple[Hidden, ...], list[Routing]]:
        """All layers, padding included; of the last states, h alone."""
        real, final, routing = torch.arange(x.shape[1], device=x.device) < lengths[:, None], [], []
        for number, layer in enumerate(self.layers):
            below, chosen = self.between(number, x, real)
            routing += chosen
            back = self.alternate and number % 2 == 1
            above, last = over_rectangle(layer, turned(below, lengths) if back else below, lengths)
            x = self.connections(number, below, self.dropout(turned(above, lengths) if back else above))
            final.append((last,))
        return x, tuple(final), routing


def over_rectangle(
    layer: Any, x: Float[Tensor, "B T I"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B D"]]:
    """What a layer gives for rows with padding behind them, and its state after the last word that each direction read.

    From right to left is from left to right over turned rows, so that padding comes last there too.
    """
    last, rows = lengths - 1, torch.arange(len(x), device=x.device)
    if not layer.bidirectional:
        y = layer(x)[0]
        return y, y[rows, last]
    forth, back = (one_direction(layer, part, end) for part, end in ((x, ""), (turned(x, lengths), "_reverse")))
    return torch.cat((forth, turned(back, lengths)), -1), torch.cat((forth[rows, last], back[rows, last]), -1)


def one_direction(layer: Any, x: Float[Tensor, "B T I"], end: str) -> Float[Tensor, "B T D"]:
    """All steps of one direction of a layer of two, whose weights have names with this `end`."""
    weights = [getattr(layer, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    first = x.new_zeros(1, len(x), layer.hidden_size)
    kernel, begin = FUSED[layer.mode], (first, first) if layer.mode == "LSTM" else first
    with warnings.catch_warnings():  # weights of one direction lie apart from each other, which costs a copy of them
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        return kernel(x, begin, weights, True, 1, 0.0, layer.training, False, True)[0]


def over_packed(
    layer: Any, packed: PackedSequence, order: Int[Tensor, " N"] | None
) -> tuple[Float[Tensor, "N D"], Sequence[Tensor]]:
    """What a layer gives for packed rows, and its last states; with an order, rows are turned for it and back."""
    given = packed if order is None else PackedSequence(packed.data.index_select(0, order), *packed[1:])
    told, last = layer(given)
    above = told.data if order is None else told.data.index_select(0, order)
    return above, last if isinstance(last, tuple) else (last,)


def turning(lengths: Int[Tensor, " B"], counts: Int[Tensor, " B"], longest: int) -> Int[Tensor, " N"]:
    """The order in which packed positions stand when each row goes from its last word to its first, and back again.

    `counts` are the lengths, on the CPU.
    """
    cells = torch.arange(len(lengths) * longest, device=lengths.device).view(-1, longest, 1)
    here, there = (
        pack_padded_sequence(part, counts, batch_first=True, enforce_sorted=False).data[:, 0]
        for part in (cells, turned(cells, lengths))
    )
    place = torch.empty_like(cells.flatten())
    place[here] = torch.arange(len(here), device=here.device)
    return place[there]


def joined(last: Sequence[Float[Tensor, "N B W"]]) -> Hidden:
    """The last states of all directions of a layer side by side."""
    return tuple(part.transpose(0, 1).flatten(1) for part in last)
