"""Rows about pictures that are told and read: what the recipes build does what the notes and the papers write."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.attention.alignment import HardLook, LookAround
from saccade.layers.blocks.recurrence import LookFirst
from saccade.lectures.claims import Measured, at_least, check, measured, near, same
from saccade.lectures.small import VOCABULARY, apart
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.train.objectives.objectives import next_token
from saccade.view.background import Background
from saccade.view.maps import AttentionMap
from saccade.view.spotlight import lit
from saccade.view.viewing import View

SMALL = ["reader.size=24", "reader.channels=[8, 12]", "writer.stack.dim=10"]
READING = ["reader.size=16", "reader.width=48", "reader.channels=[4, 8, 12]", "reader.depth=1", "writer.stack.dim=10"]
WORDS = ["a", "dog", "runs"]
PLACES = (8, 0, 14)  # cells of a grid of 3 x 5 that these words look at


def small(name: str, changes: list[str]) -> Model:
    return build(load(name, overrides=changes), source_size=VOCABULARY, target_size=VOCABULARY).double().eval()


def seen(model: Model, *, high: int, wide: int) -> Batch:
    """Two pictures of noise, and two texts."""
    values = torch.randint(0, 256, (2, 3, high, wide), dtype=torch.uint8)
    states = int(np.prod(model.reader.grid))
    source = Pictures(values, torch.ones(2, states, dtype=torch.bool))
    return Batch({"source": source, "target": pad([[5, 6, 7], [8, 9, 2]])})


def shown() -> View:
    """Three words, each of which looks at one cell."""
    weights = np.zeros((1, 3, 15), dtype=np.float32)
    weights[0, [0, 1, 2], PLACES] = 1.0
    labels = {"source": [str(cell) for cell in range(15)], "target": WORDS}
    cross = AttentionMap("writer.stack.cross", "cross", 1, weights, "target", "source", labels)
    background = Background.of(np.full((30, 50, 3), 200, dtype=np.uint8), (3, 5))
    return View("words", None, " ".join(WORDS), labels, [cross], background=background)


@check(
    25,
    "S3:322",
    "Show, Attend and Tell (Xu et al. 2015): a caption, one look at the picture for each word.",
    formula=r"c_t = \beta_t \sum_i a_{t,i} h_i, \quad \lambda \sum_i (1 - \sum_t a_{t,i})^2",
    code=(LookFirst, HardLook, next_token),
)
@torch.no_grad()
def show_attend_tell() -> Measured:
    model = small("show-attend-tell", SMALL)
    batch = seen(model, high=24, wide=24)
    memory, writer = model.read(batch), model.writer.stack
    state = writer.start(memory, rows=2, capacity=3)
    first = torch.tanh(writer.first.predict(memory.states.mean(1))).view(2, 2, 10)
    step = model.writer.step(torch.ones(2, 1, dtype=torch.long), writer.start(memory, rows=2, capacity=3), align=True)
    words = model.writer.embedding(torch.ones(2, 1, dtype=torch.long))[:, 0]
    gate = torch.sigmoid(writer.recurrence.gate(first[:, 0]))
    context = gate * torch.einsum("bs,bsd->bd", step.weights, memory.states)
    lstm = writer.recurrence.layers[0]
    h, _ = torch.lstm_cell(torch.cat((words, context), 1), (first[:, 0], first[:, 1]), *lstm.parameters())
    told = torch.tanh(writer.recurrence.readout(torch.cat((h, context, words), 1)))
    terms = next_token(model, batch, torch.Generator(), coverage=1.0)
    missed = (1 - heard_weights(model, batch).sum(1)).pow(2).sum()
    hard = small("show-attend-tell", [*SMALL, "writer.stack.hard=true", "objectives=[{kind='reinforce'}]"])
    look = next(part for part in hard.modules() if isinstance(part, HardLook))
    sharp, weights, _ = look(torch.randn(2, 1, 10).double(), look.source(memory))
    return measured(
        near("h_0 and c_0 against tanh of W times the mean of all cells", apart(torch.stack(state.hidden[0], 1), first),
             0, within=1e-12),
        near("logits of a word against the gate, the look and the LSTM of the paper",
             apart(step.logits, model.writer.head(told)), 0, within=1e-12),
        near("the penalty against sum (1 - sum of looks)^2", float(terms["coverage"].sum), float(missed), within=1e-9),
        near("hard attention: c_t against the cell of the largest weight",
             apart(sharp[:, 0], memory.states[torch.arange(2), weights[:, 0].argmax(-1)]), 0, within=0.0),
        note="`saccade train show-attend-tell --tiny`, with `writer.stack.hard=true objectives=[{kind='reinforce'}]` "
        "for the attention that draws.",
    )  # fmt: skip


def heard_weights(model: Model, batch: Batch) -> Tensor:
    """What every word of a batch looks at, step by step."""
    target, state = batch["target"], model.writer.start(model.read(batch), capacity=3)
    weights, before = [], torch.ones_like(target.ids[:, :1])
    for at in range(target.ids.shape[1]):
        step = model.writer.step(before, state, align=True)
        state, before = step.state, target.ids[:, at : at + 1]
        assert step.weights is not None, "it was asked for"
        weights.append(step.weights)
    return torch.stack(weights, 1)


@check(
    26,
    "S3:332-345,1944",
    "Sample captions with one map of attention for each word.",
    formula=r"a_t \in R^{H \times W} \to \mathrm{picture}",
    code=(lit, Background),
)
def one_map_for_each_word() -> Measured:
    view = shown()
    assert view.background is not None, "it is a picture"
    cells, pixels = view.background.cells(view.maps[0].weights[0]), view.background.pixels() / 255
    lights = [lit(pixels, map_of_word) for map_of_word in cells]
    found = [np.unravel_index(int(light.sum(-1).argmax()), light.shape[:2]) for light in lights]
    return measured(
        same("maps for three words", len(lights), len(WORDS)),
        same("pixels of a map, from 3 x 5 cells", " x ".join(map(str, lights[0].shape[:2])), "30 x 50"),
        same("cells that are brightest", str([int(y) // 10 * 5 + int(x) // 10 for y, x in found]), str([*PLACES])),
        at_least("light there over light elsewhere", float(lights[0].max() / np.median(lights[0])), 3.0),
        note="`saccade view RUN PICTURE --png maps.png` draws the picture once for each word.",
    )


@check(
    27,
    "S3:347-388",
    "Attention weights at each step are like saccades: the fovea jumps to the next point of interest.",
    formula=r"a_1 \to a_2 \to a_3",
    code=(View,),
)
def saccades() -> Measured:
    page, document = shown().html(), shown().document()
    [entry], wide = document["maps"], 5
    looked = [int(np.argmax(row)) for row in np.asarray(entry["weights"], dtype=float).reshape(3, 15)]
    jumps = [abs(a // wide - b // wide) + abs(a % wide - b % wide) for a, b in pairwise(looked)]
    return measured(
        same("cells that are looked at, step by step", str(looked), str([*PLACES])),
        same("rows and columns from one look to the next", str(jumps), "[4, 6]"),
        same("cells of the picture in the page", str(document["background"]["grid"]), "[3, 5]"),
        at_least("players of steps in the page", page.count('"aria-label": "Player"'), 1),
        note="`saccade view RUN PICTURE --html page.html`: Play goes from word to word.",
    )


@check(
    28,
    "S3:394",
    "Show, attend, and tell: from a picture to text.",
    formula=r"X = \mathrm{picture}, \quad Y = \mathrm{text}",
    code=(PictureReader,),
)
@torch.no_grad()
def from_a_picture_to_text() -> Measured:
    compared = []
    for name, changes in (("show-attend-tell", SMALL), ("show-attend-tell-transformer", TRANSFORMER)):
        model = small(name, changes)
        batch = seen(model, high=24, wide=24)
        memory, ids = model.read(batch), batch["target"].ids
        whole = model.writer.head(model.writer(ids, None, memory))
        state, steps = model.writer.start(memory, capacity=3), []
        for at in range(3):
            step = model.writer.step(ids[:, at : at + 1], state)
            state = step.state
            steps.append(step.logits)
        compared += [
            same(f"{name}: states of a picture of 24 pixels, in cells of 4", memory.states.shape[1], 36),
            near(f"{name}: word by word against all at once", apart(torch.stack(steps, 1), whole), 0, within=1e-10),
        ]
    return measured(*compared, note="`saccade predict RUN picture.jpg` writes the sentence.")


TRANSFORMER = [
    "reader.size=24", "reader.channels=[8, 12]", "reader.stack={layers=1, dim=12, heads=3, ff=17}",
    "writer.stack={layers=2, dim=12, heads=3, ff=17}",
]  # fmt: skip


@check(
    33,
    "S3:412",
    "Show, attend, and read (Li et al. 2019): from a picture to the text in it.",
    formula=r"e_{ij} = w^T \tanh(W_v v_{ij} + \sum_{p,q \in N_{ij}} W_{p,q} v_{pq} + W_h h_t)",
    code=(LookAround,),
)
@torch.no_grad()
def show_attend_read() -> Measured:
    model = small("show-attend-read", READING)
    memory = model.read(seen(model, high=16, wide=48))
    look = model.writer.stack.recurrence.cross
    cells, query = memory.states.view(2, 2, 12, 12), torch.randn(2, 1, 10).double()
    around = torch.zeros(2, 2, 12, 10).double()
    for y in range(2):
        for x in range(12):
            near_by = [(p, q) for p in (y - 1, y, y + 1) for q in (x - 1, x, x + 1) if 0 <= p < 2 and 0 <= q < 12]
            for p, q in near_by:
                kernel = look.around.weight[:, :, 1 + p - y, 1 + q - x]
                around[:, y, x] += cells[:, p, q] @ (look.score.key.weight if (p, q) == (y, x) else kernel).T
    wanted = look.score.energy(torch.tanh(look.score.query(query)[:, :, None] + around.flatten(1, 2)[:, None]))[..., 0]
    seen_at, weights = look(query, look.source(memory))
    return measured(
        same("rows and columns of a picture of 16 x 48 pixels", str(memory.grid), "(2, 12)"),
        near("weights against the formula with all eight neighbours", apart(weights, wanted.softmax(-1)), 0,
             within=1e-12),
        near("sum of the weights over rows and columns", apart(weights.sum(-1), torch.ones(2, 1).double()), 0,
             within=1e-12),
        near("what is seen against the sum over the grid",
             apart(seen_at[:, 0], torch.einsum("bs,bsd->bd", weights[:, 0], memory.states)), 0, within=1e-12),
        note="`saccade train show-attend-read --tiny` learns to read drawn words.",
    )  # fmt: skip
