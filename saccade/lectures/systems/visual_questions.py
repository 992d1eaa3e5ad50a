"""Check on visual question answering: the models of both recipes compute what their papers describe."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.layers.vision.joining import Glimpses, Hops
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, compute_softmax, embed_tokens
from saccade.lectures.references.recurrent import run_recurrent_layer
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, randomize_parameters
from saccade.lectures.systems.captions import encode_picture
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import JoinedReader

SIDE, CELLS = 16, 16  # pixels, and 4 x 4 cells
QUESTIONS, OTHER_QUESTIONS = [[5, 6, 7, 8, 2], [9, 10, 2]], [[5, 6, 11, 8, 2], [12, 10, 2]]
SMALL = [
    f"reader.image.size={SIDE}", "reader.image.channels=[8, 11]", "reader.question.stack.dim=13",
    "reader.question.dropout=0", "reader.join.dropout=0", "writer.dropout=0",
]  # fmt: skip
SIZES = {
    "ask-attend-answer": ["reader.join.dim=10"],
    "show-ask-attend-answer": ["reader.join.hidden_dim=10", "writer.hidden_dim=17"],
}
# the planted object: words and features, the word that names it, and the cell that contains it
WORDS, WIDTH, PLANTED_WORD, PLANTED_CELL = (7, 11, 3, 5)


@check(
    29,
    "S3:397-400",
    "Ask, attend and answer; show, ask, attend and answer: a question attends to regions of a picture for its answer.",
    formula=r"a = \mathrm{softmax}_s \max_t w_t^\top A v_s, b = \mathrm{softmax}_s u^\top \mathrm{relu}(W v_s + U q)",
    code=(Hops, Glimpses, JoinedReader),
    recipes=("ask-attend-answer", "show-ask-attend-answer"),
    breaks=(
        "uniform-attention",
        "second-hop-left-out",
        "words-averaged",
        "one-glimpse",
        "question-ignored",
        "cells-not-normalized",
        "picture-ignored",
    ),
)
@torch.no_grad()
def ask_attend_answer() -> CheckResult:
    weight, word = attend_to_planted_object()
    return build_result(
        *compare_with_formulas("ask-attend-answer", answer_by_hops),
        *compare_with_formulas("show-ask-attend-answer", answer_by_glimpses),
        expect_near("first hop: weight of the cell that contains the named object", weight, 1, within=0.01),
        expect_equal("first hop: index of the word that matches this cell", word, PLANTED_WORD),
        note="`saccade train show-ask-attend-answer --tiny` trains on questions about shapes in a minute.",
    )


def compare_with_formulas(name: str, answer: Any) -> list[Comparison]:
    """Compare attention weights and answers for two pictures, with questions of different lengths."""
    recipe = load(name, overrides=[*SMALL, *SIZES[name]])
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    model = randomize_parameters(model.double().eval(), scale=0.5)
    pictures = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    logits, maps = run_model(model, pictures, QUESTIONS)
    expected = [answer(model, picture[None], question) for picture, question in zip(pictures, QUESTIONS, strict=True)]
    by_hand = [torch.cat(part) for part in zip(*expected, strict=True)]
    others = (
        run_model(model, pictures.flip(0), QUESTIONS)[0],
        run_model(model, pictures, [[5, 6, 11, 8, 2], [12, 2]])[0],
    )
    return [
        expect_near(
            f"{name}: weights, difference from the formulas", max_difference(maps, by_hand[1]), 0, within=1e-11
        ),
        expect_near(
            f"{name}: answers, difference from the formulas", max_difference(logits, by_hand[0]), 0, within=1e-10
        ),
        *(
            expect_at_least(f"{name}: change of the answers by other {what}", max_difference(logits, other), 1e-3)
            for what, other in zip(("pictures", "questions"), others, strict=True)
        ),
    ]


def run_model(model: Model, pictures: Tensor, questions: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Logits of the answers, and for each hop or glimpse the weights of the cells (B, hops, S)."""
    source = Pictures(pictures, torch.ones(len(pictures), CELLS, dtype=torch.bool))
    with record(model) as maps:
        logits = model.writer(model.read(Batch({"source": source, "question": pad(questions)})))
    found = [weights.sum(2) for weights in maps.values()]  # over words, of which each cell has one
    return logits, torch.cat(found, 1)


def read_question(model: Model, question: list[int]) -> tuple[Tensor, Tensor]:
    """The embedded words (T, E), and the last state of an LSTM over them."""
    ask = model.reader.ask
    words = embed_tokens(ask.embedding, torch.tensor(question))
    [layer] = ask.stack.layers
    return words, run_recurrent_layer("lstm", layer, words)[1][0]


def scale_cells(model: Model, picture: Tensor) -> Tensor:
    """The cells of the picture, each of norm sqrt(D)."""
    [cells] = encode_picture(model.reader.look, picture)
    return cells / cells.pow(2).sum(-1, keepdim=True).sqrt() * cells.shape[-1] ** 0.5


def answer_by_hops(model: Model, picture: Tensor, question: list[int]) -> tuple[Tensor, Tensor]:
    """Xu and Saenko 2016, equations 1 to 6: scores of answers, and the weights of both hops."""
    join, cells = model.reader.join, scale_cells(model, picture)
    words, state = read_question(model, question)
    evidence = [apply_linear(layer, cells) for layer in join.evidence]
    scores = words @ apply_linear(join.match, cells).T / words.shape[-1] ** 0.5
    first = compute_softmax(scores.amax(0))
    o = apply_linear(join.question, state) + first @ evidence[0]
    second = compute_softmax(evidence[0] @ o / len(o) ** 0.5)
    o = o + second @ evidence[1]
    logits = apply_linear(model.writer.output, o.clamp(min=0))
    return logits[None], torch.stack((first, second))[None]


def answer_by_glimpses(model: Model, picture: Tensor, question: list[int]) -> tuple[Tensor, Tensor]:
    """Kazemi and Elqursh 2017, section 3: scores of answers, and the weights of both glimpses."""
    join, cells = model.reader.join, scale_cells(model, picture)
    _, q = read_question(model, question)
    hidden = (apply_linear(join.cell, cells) + apply_linear(join.question, q)).clamp(min=0)
    weights = compute_softmax((hidden @ join.energy.weight.T).T)
    joined = torch.cat((*(row @ cells for row in weights), q))
    hidden = apply_linear(model.writer.hidden, joined).clamp(min=0)
    return apply_linear(model.writer.output, hidden)[None], weights[None]


def attend_to_planted_object() -> tuple[float, int]:
    """The first hop where one word matches one cell: the weight of this cell, and the word that contributes it."""
    join = Hops(WIDTH, WIDTH, WIDTH, dim=WIDTH, hops=2, dropout=0.0).double().eval()
    torch.nn.init.eye_(join.match.weight).mul_(30)
    torch.nn.init.zeros_(join.match.bias)
    words, cells = torch.eye(WIDTH).double()[:WORDS], torch.eye(WIDTH).double()[[WORDS] * CELLS]
    cells[PLANTED_CELL] = words[PLANTED_WORD]
    real = torch.ones(1, CELLS, dtype=torch.bool)
    with record(join) as maps:
        join(Memory(cells[None], real), Memory(words[None], real[:, :WORDS], inputs=words[None]))
    weights = next(iter(maps.values()))[0, 0]
    return float(weights[:, PLANTED_CELL].sum()), int(weights[:, PLANTED_CELL].argmax())
