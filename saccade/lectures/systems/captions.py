"""Checks on captioning and reading pictures: the models of the recipes compute what notes and papers describe."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.attention.alignment import HardAttention, NeighborhoodAttention
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.small import VOCABULARY_SIZE, max_difference
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.train.objectives.objectives import next_token_loss
from saccade.view.background import Background
from saccade.view.maps import AttentionMap
from saccade.view.spotlight import darken_unattended
from saccade.view.viewing import View

SMALL = ["reader.size=24", "reader.channels=[8, 12]", "writer.stack.dim=10"]
SMALL_READING = [
    "reader.size=16",
    "reader.width=48",
    "reader.channels=[4, 8, 12]",
    "reader.depth=1",
    "writer.stack.dim=10",
]
WORDS = ["a", "dog", "runs"]
ATTENDED_CELLS = (8, 0, 14)  # cells of a 3 x 5 grid that these words attend to


def build_small(name: str, changes: list[str]) -> Model:
    return (
        build(load(name, overrides=changes), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
    )


def sample_batch(model: Model, *, high: int, wide: int) -> Batch:
    """Build a batch of two random pictures and two target sequences."""
    values = torch.randint(0, 256, (2, 3, high, wide), dtype=torch.uint8)
    states = int(np.prod(model.reader.grid))
    source = Pictures(values, torch.ones(2, states, dtype=torch.bool))
    return Batch({"source": source, "target": pad([[5, 6, 7], [8, 9, 2]])})


def build_view() -> View:
    """Build the view of a caption of three words, each of which attends to one cell."""
    weights = np.zeros((1, 3, 15), dtype=np.float32)
    weights[0, [0, 1, 2], ATTENDED_CELLS] = 1.0
    labels = {"source": [str(cell) for cell in range(15)], "target": WORDS}
    cross = AttentionMap("writer.stack.cross", "cross", 1, weights, "target", "source", labels)
    background = Background.of(np.full((30, 50, 3), 200, dtype=np.uint8), (3, 5))
    return View("words", None, " ".join(WORDS), labels, [cross], background=background)


@check(
    25,
    "S3:322",
    "Show, Attend and Tell (Xu et al. 2015): a captioning model attends to the picture anew for each word.",
    formula=r"c_t = \beta_t \sum_i a_{t,i} h_i, \quad \lambda \sum_i (1 - \sum_t a_{t,i})^2",
    code=(BahdanauRecurrence, HardAttention, next_token_loss),
)
@torch.no_grad()
def show_attend_tell() -> CheckResult:
    model = build_small("show-attend-tell", SMALL)
    batch = sample_batch(model, high=24, wide=24)
    memory, writer = model.read(batch), model.writer.stack
    state = writer.start(memory, rows=2, capacity=3)
    first = torch.tanh(writer.first.predict(memory.states.mean(1))).view(2, 2, 10)
    step = model.writer.step(torch.ones(2, 1, dtype=torch.long), writer.start(memory, rows=2, capacity=3), align=True)
    words = model.writer.embedding(torch.ones(2, 1, dtype=torch.long))[:, 0]
    gate = torch.sigmoid(writer.recurrence.gate(first[:, 0]))
    context = gate * torch.einsum("bs,bsd->bd", step.weights, memory.states)
    lstm = writer.recurrence.layers[0]
    h, _ = torch.lstm_cell(torch.cat((words, context), 1), (first[:, 0], first[:, 1]), *lstm.parameters())
    readout = torch.tanh(writer.recurrence.readout(torch.cat((h, context, words), 1)))
    terms = next_token_loss(model, batch, torch.Generator(), coverage=1.0)
    missed = (1 - collect_weights(model, batch).sum(1)).pow(2).sum()
    hard = build_small(
        "show-attend-tell", [*SMALL, "writer.stack.hard_attention=true", "objectives=[{kind='reinforce'}]"]
    )
    look = next(part for part in hard.modules() if isinstance(part, HardAttention))
    sharp, weights, _ = look(torch.randn(2, 1, 10).double(), look.project_memory(memory))
    return build_result(
        expect_near(
            "h_0 and c_0: difference from tanh of W times the mean of all cells",
            max_difference(torch.stack(state.hidden[0], 1), first),
            0,
            within=1e-12,
        ),
        expect_near(
            "logits of a word: difference from the gate, attention and LSTM of the paper",
            max_difference(step.logits, model.writer.head(readout)),
            0,
            within=1e-12,
        ),
        expect_near(
            "the coverage penalty, expected sum_i (1 - sum_t a_ti)^2",
            float(terms["coverage"].sum),
            float(missed),
            within=1e-9,
        ),
        expect_near(
            "hard attention: difference of c_t from the cell with the largest weight",
            max_difference(sharp[:, 0], memory.states[torch.arange(2), weights[:, 0].argmax(-1)]),
            0,
            within=0.0,
        ),
        note="`saccade train show-attend-tell --tiny`, with `writer.stack.hard_attention=true "
        "objectives=[{kind='reinforce'}]` for hard attention, which samples one cell.",
    )


def collect_weights(model: Model, batch: Batch) -> Tensor:
    """Return the attention weights of every target word, computed step by step."""
    target, state = batch["target"], model.writer.start(model.read(batch), capacity=3)
    weights, before = [], torch.ones_like(target.ids[:, :1])
    for at in range(target.ids.shape[1]):
        step = model.writer.step(before, state, align=True)
        state, before = step.state, target.ids[:, at : at + 1]
        assert step.weights is not None, "align=True returns weights"
        weights.append(step.weights)
    return torch.stack(weights, 1)


@check(
    26,
    "S3:332-345,1944",
    "Sample captions are shown with one attention map for each word.",
    formula=r"a_t \in R^{H \times W} \to \mathrm{picture}",
    code=(darken_unattended, Background),
)
def one_map_for_each_word() -> CheckResult:
    view = build_view()
    assert view.background is not None, "the view has a picture"
    cells, pixels = view.background.to_grid(view.maps[0].weights[0]), view.background.decode_pixels() / 255
    lights = [darken_unattended(pixels, map_of_word) for map_of_word in cells]
    found = [np.unravel_index(int(light.sum(-1).argmax()), light.shape[:2]) for light in lights]
    return build_result(
        expect_equal("attention maps for three words", len(lights), len(WORDS)),
        expect_equal(
            "pixels of a map that is enlarged from 3 x 5 cells", " x ".join(map(str, lights[0].shape[:2])), "30 x 50"
        ),
        expect_equal(
            "brightest cell of each map",
            str([int(y) // 10 * 5 + int(x) // 10 for y, x in found]),
            str([*ATTENDED_CELLS]),
        ),
        expect_at_least(
            "brightness of this cell over the median brightness", float(lights[0].max() / np.median(lights[0])), 3.0
        ),
        note="`saccade view RUN PICTURE --png maps.png` draws the attention map of each word over the picture.",
    )


@check(
    27,
    "S3:347-388",
    "Attention weights are like saccades: at each step the focus jumps to the next point of interest.",
    formula=r"a_1 \to a_2 \to a_3",
    code=(View,),
)
def saccades() -> CheckResult:
    page, document = build_view().html(), build_view().document()
    [entry], wide = document["maps"], 5
    attended = [int(np.argmax(row)) for row in np.asarray(entry["weights"], dtype=float).reshape(3, 15)]
    jumps = [abs(a // wide - b // wide) + abs(a % wide - b % wide) for a, b in pairwise(attended)]
    return build_result(
        expect_equal("cell with the largest weight at each step", str(attended), str([*ATTENDED_CELLS])),
        expect_equal("distance in rows + columns from one step to the next", str(jumps), "[4, 6]"),
        expect_equal("grid of the picture in the HTML page", str(document["background"]["grid"]), "[3, 5]"),
        expect_at_least("playback controls in the HTML page", page.count('"aria-label": "Player"'), 1),
        note="`saccade view RUN PICTURE --html page.html`: the Play button steps from word to word.",
    )


@check(
    28,
    "S3:394",
    "Show, attend and tell maps a picture to text.",
    formula=r"X = \mathrm{picture}, \quad Y = \mathrm{text}",
    code=(PictureReader,),
)
@torch.no_grad()
def from_a_picture_to_text() -> CheckResult:
    compared = []
    for name, changes in (("show-attend-tell", SMALL), ("show-attend-tell-transformer", SMALL_TRANSFORMER)):
        model = build_small(name, changes)
        batch = sample_batch(model, high=24, wide=24)
        memory, ids = model.read(batch), batch["target"].ids
        whole = model.writer.head(model.writer(ids, None, memory))
        state, steps = model.writer.start(memory, capacity=3), []
        for at in range(3):
            step = model.writer.step(ids[:, at : at + 1], state)
            state = step.state
            steps.append(step.logits)
        compared += [
            expect_equal(f"{name}: states of a 24 x 24 picture with cells of 4 x 4 pixels", memory.states.shape[1], 36),
            expect_near(
                f"{name}: difference of word-by-word and parallel computation",
                max_difference(torch.stack(steps, 1), whole),
                0,
                within=1e-10,
            ),
        ]
    return build_result(*compared, note="`saccade predict RUN picture.jpg` prints the caption.")


SMALL_TRANSFORMER = [
    "reader.size=24", "reader.channels=[8, 12]", "reader.stack={layers=1, dim=12, heads=3, ff=17}",
    "writer.stack={layers=2, dim=12, heads=3, ff=17}",
]  # fmt: skip


@check(
    33,
    "S3:412",
    "Show, attend and read (Li et al. 2019) recognizes the text in a picture.",
    formula=r"e_{ij} = w^T \tanh(W_v v_{ij} + \sum_{p,q \in N_{ij}} W_{p,q} v_{pq} + W_h h_t)",
    code=(NeighborhoodAttention,),
)
@torch.no_grad()
def show_attend_read() -> CheckResult:
    model = build_small("show-attend-read", SMALL_READING)
    memory = model.read(sample_batch(model, high=16, wide=48))
    look = model.writer.stack.recurrence.cross
    cells, query = memory.states.view(2, 2, 12, 12), torch.randn(2, 1, 10).double()
    context = torch.zeros(2, 2, 12, 10).double()
    for y in range(2):
        for x in range(12):
            near_by = [(p, q) for p in (y - 1, y, y + 1) for q in (x - 1, x, x + 1) if 0 <= p < 2 and 0 <= q < 12]
            for p, q in near_by:
                kernel = look.around.weight[:, :, 1 + p - y, 1 + q - x]
                context[:, y, x] += cells[:, p, q] @ (look.score.key.weight if (p, q) == (y, x) else kernel).T
    expected = look.score.energy(torch.tanh(look.score.query(query)[:, :, None] + context.flatten(1, 2)[:, None]))[
        ..., 0
    ]
    seen_at, weights = look(query, look.project_memory(memory))
    return build_result(
        expect_equal("rows and columns of the feature map of 16 x 48 pixels", str(memory.grid), "(2, 12)"),
        expect_near(
            "weights: difference from the formula with all eight neighbours",
            max_difference(weights, expected.softmax(-1)),
            0,
            within=1e-12,
        ),
        expect_near(
            "sum of the weights over rows and columns",
            max_difference(weights.sum(-1), torch.ones(2, 1).double()),
            0,
            within=1e-12,
        ),
        expect_near(
            "output: difference from the weighted sum over the grid",
            max_difference(seen_at[:, 0], torch.einsum("bs,bsd->bd", weights[:, 0], memory.states)),
            0,
            within=1e-12,
        ),
        note="`saccade train show-attend-read --tiny` trains on rendered words.",
    )
