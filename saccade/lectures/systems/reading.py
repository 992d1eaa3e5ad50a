"""Check on reading text in pictures: the model of the recipe show-attend-read computes what its paper describes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.layers.attention.alignment import NeighborhoodAttention
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, shift_targets
from saccade.lectures.references.recurrent import (
    compute_additive_weights,
    predict_initial,
    run_recurrent_layer,
    step_cell,
)
from saccade.lectures.references.vision import list_cells, run_residual_network
from saccade.lectures.small import max_difference
from saccade.lectures.systems.captions import build_small, embed_words, sample_batch
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader

HIGH, WIDE = 16, 48  # pixels
GRID = (2, 12)  # three levels halve the height, two of them the width
SMALL = [
    f"reader.size={HIGH}", f"reader.width={WIDE}", "reader.channels=[4, 8, 12]", "reader.depth=1", "writer.dropout=0",
    "writer.stack.dim=10", "writer.stack.dropout=0",
]  # fmt: skip


@check(
    33,
    "S3:412",
    "Show, attend and read (Li et al. 2019) recognizes the text in a picture.",
    formula=r"e_{ij} = w^T \tanh(W_v v_{ij} + \sum_{p,q \in N_{ij}} W_{p,q} v_{pq} + W_h h_t)",
    code=(NeighborhoodAttention, PictureReader),
    recipes=("show-attend-read",),
    breaks=(
        "uniform-attention",
        "attention-without-neighbours",
        "neighbours-with-the-center",
        "columns-left-out",
        "grid-in-column-order",
    ),
)
@torch.no_grad()
def show_attend_read() -> CheckResult:
    model = build_small("show-attend-read", SMALL)
    batch = sample_batch(model, high=HIGH, wide=WIDE)
    memory, target = model.read(batch), batch["target"]
    features = run_residual_network(model.reader.cells.blocks, batch["source"].values)
    cells = list_cells(features)
    cells = cells if model.reader.positions is None else cells + model.reader.positions.table.weight
    holistic = summarize_columns(model.reader, cells)
    ids = shift_targets(target.ids)
    weights: list[Tensor] = []
    watch = model.writer.stack.recurrence.cross.register_forward_hook(lambda *found: weights.append(found[2][1]))
    with watch:
        hidden = model.write(ids, target.mask, memory)[0]
    logits, expected = read_by_hand(model, ids, cells, holistic)
    return build_result(
        expect_equal("rows and columns of the feature map of 16 x 48 pixels", str(memory.grid), str(GRID)),
        expect_near("cells: difference from the convolutions", max_difference(memory.states, cells), 0, within=1e-11),
        expect_near(
            "feature of the whole picture: difference from an LSTM over the maxima of the columns",
            max_difference(memory.final[-1][0], holistic),
            0,
            within=1e-11,
        ),
        expect_near(
            "weights: difference from the formula with all eight neighbours",
            max_difference(torch.cat(weights, 1), expected),
            0,
            within=1e-11,
        ),
        expect_near(
            "logits of characters: difference from the formulas",
            max_difference(model.writer.head(hidden), logits),
            0,
            within=1e-10,
        ),
        expect_at_least(
            "share of the attention that moves from one character to the next",
            float((expected[:, 1:] - expected[:, :-1]).abs().sum(-1).min()) / 2,
            1e-4,
        ),
        note="`saccade train show-attend-read --tiny` trains on rendered words.",
    )


def summarize_columns(encoder: Any, cells: Tensor) -> Tensor:
    """The last state of an LSTM over the columns of the grid, each the maxima of its cells (B, C)."""
    columns = torch.stack([cells[:, x :: GRID[1]].amax(1) for x in range(GRID[1])], 1)
    [layer] = encoder.columns.layers
    return torch.stack([run_recurrent_layer("lstm", layer, row)[1][0] for row in columns])


def project_neighbours(look: Any, cells: Tensor) -> Tensor:
    """W_v v_ij + Σ_pq W_pq v_pq over the eight neighbours of each cell; there are none outside of the picture."""
    grid, (high, wide) = cells.unflatten(1, GRID), GRID
    keys = []
    for y in range(high):
        for x in range(wide):
            key = grid[:, y, x] @ look.score.key.weight.T
            for p in range(max(0, y - 1), min(high, y + 2)):
                for q in range(max(0, x - 1), min(wide, x + 2)):
                    if (p, q) != (y, x):
                        key = key + grid[:, p, q] @ look.around.weight[:, :, 1 + p - y, 1 + q - x].T
            keys.append(key)
    return torch.stack(keys, 1)


def read_by_hand(model: Model, ids: Tensor, cells: Tensor, holistic: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and weights: h_t of an LSTM that starts from the whole picture attends, then tanh(W [c_t; h_t])."""
    stack, x = model.writer.stack, embed_words(model, ids)
    state, look = predict_initial("lstm", stack, holistic), stack.recurrence.cross
    keys = project_neighbours(look, cells)
    logits, weights = [], []
    for t in range(ids.shape[1]):
        below = x[:, t]
        for number, layer in enumerate(stack.recurrence.layers):
            state[number] = step_cell("lstm", layer, below, state[number])
            below = state[number][0]
        weights.append(compute_additive_weights(look.score, below, keys))
        context = torch.einsum("bs,bsd->bd", weights[-1], cells)
        output = torch.tanh(apply_linear(stack.recurrence.readout, torch.cat((context, below), -1)))
        logits.append(apply_linear(model.writer.output, output))
    return torch.stack(logits, 1), torch.stack(weights, 1)
