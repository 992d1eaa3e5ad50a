"""Trace attention with the names and shapes of the lecture notes (Q, K, V, E, A, Y), on a small example or in a run."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.layers.attention import masks
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import AttentionLayer, attend, dot, scaled_dot
from saccade.predict.predictors.predictor import Predictor

Trace = dict[str, Tensor]
CELL_WIDTH = 8  # columns of the terminal for a number
DEFAULT_WIDTH = 80  # of lines where the output is no terminal
WEIGHT_NAMES = ("W_Q", "W_K", "W_V")
MATRICES = {  # in the order of computation: symbolic shape, and description
    "X": ("N_X x D_X", "input vectors, one row for each word"),
    "W_Q": ("D_X x D_Q", "query matrix"),
    "W_K": ("D_X x D_Q", "key matrix"),
    "W_V": ("D_X x D_V", "value matrix"),
    "Q": ("N_Q x D_Q", "queries, X W_Q"),
    "K": ("N_X x D_Q", "keys, X W_K"),
    "V": ("N_X x D_V", "values, X W_V"),
    "QK^T": ("N_Q x N_X", "dot products"),
    "R": ("N_Q x N_X", "bias from relative positions, added to E"),
    "E": ("N_Q x N_X", "similarities, QK^T / √D_Q"),
    "A": ("N_Q x N_X", "attention weights, softmax of each row of E"),
    "Y": ("N_Q x D_V", "outputs, A V"),
}


@torch.no_grad()
def trace_example() -> Trace:
    """Trace two words with D_Q = 64, 62 features of which are 0: scores 112 and 96 (The Illustrated Transformer)."""
    layer = AttentionLayer(2, key_dim=64, value_dim=2)
    for matrix, rows in (
        (layer.query, ((4, 8), (4, -4))),
        (layer.key, ((10, 4), (2, 0))),
        (layer.value, ((0, 10), (10, -10))),
    ):
        matrix.weight.zero_()
        matrix.weight[:2] = torch.tensor(rows, dtype=torch.float).T
    x = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    y, a = attend(q, k, v)
    matrices = {"W_Q": layer.query.weight.T, "W_K": layer.key.weight.T, "W_V": layer.value.weight.T}
    return {"X": x, **matrices, "Q": q, "K": k, "V": v, "QK^T": dot(q, k), "E": scaled_dot(q, k), "A": a, "Y": y}


def trace_run(predictor: Predictor, text: str, *, layer: int, head: int) -> tuple[Trace, list[str]]:
    """Trace one head of a trained reader; return the matrices and the tokens. `layer` and `head` count from 1."""
    attention = get_layer(predictor, layer)
    seen: list[tuple[Tensor, ...]] = []
    inputs: list[Tensor] = []

    def look(module: object, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> None:
        inputs.append(given[0])
        seen.append(made)

    hook = attention.project.register_forward_hook(look)
    try:
        maps = predictor.attention(text)  # its last pass is the recorded one
    finally:
        hook.remove()
    heads = attention.project.shape[0]
    if not 1 <= head <= heads:
        raise SaccadeError(f"--head must be from 1 to {heads}, got {head}")
    query, key, value = (part.float().transpose(1, 2) for part in seen[-1])  # (1, H, N, E)
    at = masks.make_positions(query.shape[2], query.device)
    if attention.rotary is not None:
        query, key = (attention.rotary(part, at) for part in (query, key))
    trace = {"X": inputs[-1][0].float()}
    trace |= {name: part[0, head - 1] for name, part in (("Q", query), ("K", key), ("V", value))}
    trace["QK^T"] = dot(trace["Q"], trace["K"])
    trace["E"] = trace["QK^T"] * attention.heads.scale
    if (term := attention.heads.term) is not None:
        added = term(query * attention.heads.scale, at, at).expand(1, heads, -1, -1)
        trace["R"] = added[0, head - 1]
        trace["E"] = trace["E"] + trace["R"]
    trace["A"] = maps.maps[get_module_name(predictor, attention)][head - 1].to(value.device)
    trace["Y"] = trace["A"] @ trace["V"]
    return {name: trace[name].detach().cpu() for name in MATRICES if name in trace}, maps.source_labels


def get_layer(predictor: Predictor, layer: int) -> SelfAttention:
    """Return the self-attention of one layer of the reader."""
    named = predictor.model.named_modules()
    found = [module for name, module in named if name.startswith("reader.") and isinstance(module, SelfAttention)]
    if not found:
        raise SaccadeError("this run's reader has no self-attention to trace; give a run of a Transformer")
    if not 1 <= layer <= len(found):
        raise SaccadeError(f"--layer must be from 1 to {len(found)}, got {layer}")
    chosen = found[layer - 1]
    if chosen.heads.score is not None:
        raise SaccadeError(
            "a trace shows dot products of queries and keys, but this run's reader.stack.score is another one; give a "
            'run with "scaled-dot" or "dot"'
        )
    return chosen


def get_module_name(predictor: Predictor, attention: SelfAttention) -> str:
    return next(name for name, module in predictor.model.named_modules() if module is attention)


def format_trace(trace: Trace, words: list[str] | None = None, *, width: int | None = None) -> str:
    """Format every matrix with its name, symbolic and actual shape, and all its values, in lines of at most `width`."""
    parts = []
    for name, matrix in trace.items():
        (letters, meaning), size = MATRICES[name], f"{matrix.shape[0]} x {matrix.shape[1]}"
        rows = None if name in WEIGHT_NAMES else words
        columns = words if letters.endswith("x N_X") else None
        values = _format_values(matrix, rows, columns, DEFAULT_WIDTH if width is None else width)
        parts.append(f"{name}  {meaning}  ({letters} = {size})\n{values}")
    return "\n\n".join(parts)


def _format_values(matrix: Tensor, rows: list[str] | None, columns: list[str] | None, width: int) -> str:
    """Format a matrix in blocks of as many columns as fit, each below the names or numbers of its columns."""
    full = matrix.shape[1]
    used = int((matrix.abs().sum(0) > 0).nonzero().max()) + 1 if bool(matrix.abs().sum() > 0) else full
    names = columns or [str(number) for number in range(1, full + 1)]
    cell = max(CELL_WIDTH, *map(len, names)) + 1
    margin = 2 + max(map(len, rows)) if rows else 1
    count = max(1, (width - margin) // cell)
    lines = []
    for first in range(0, used, count):
        last = min(first + count, used)
        if columns or used > count:
            lines.append(" " * margin + "".join(name.rjust(cell) for name in names[first:last]))
        for index, row in enumerate(matrix[:, first:last].tolist()):
            label = f"  {rows[index]}" if rows else ""
            lines.append(label.ljust(margin) + "".join(_format_number(value).rjust(cell) for value in row))
    return "\n".join([*lines, *([f"  columns {used + 1} to {full} are 0"] if used < full else [])])


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4f}"
