"""The row about questions: what both recipes build looks at a picture as the notes write, and finds what is planted."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.layers.vision.joining import Glimpses, Hops
from saccade.lectures.claims import Measured, check, measured, near, same
from saccade.lectures.small import VOCABULARY, apart, numbers
from saccade.model.build.model import build

WORDS, WIDTH, ASKED = 7, 11, 3  # words of a question, their width, and the word that names something
CELLS, PLANTED = 13, 5  # cells of a picture, and the one where that is


@check(
    29,
    "S3:397-400",
    "Ask, attend, and answer; show, ask, attend, and answer: a question and a picture's regions give an answer.",
    formula=r"a = \mathrm{softmax}_s \max_t w_t^\top A v_s, b = \mathrm{softmax}_s u^\top \mathrm{relu}(W v_s + U q)",
    code=(Hops, Glimpses),
)
@torch.no_grad()
def ask_attend_answer() -> Measured:
    by_words, by_glimpses = first_hop(), glimpses()
    return measured(
        near("first hop: weights against the softmax of each cell's best word", by_words[0], 0, within=1e-12),
        near("first hop: weight of the cell with what a word names", by_words[1], 1, within=0.01),
        same("and the word that it looks from, counted from 0", by_words[2], ASKED),
        near("glimpses: weights against the formula", by_glimpses[0], 0, within=1e-12),
        near("glimpses: what is seen against the weighted sum of cells", by_glimpses[1], 0, within=1e-12),
        *(
            same(f"{name}: regions over which each look sums to 1", looks(name), 36)
            for name in ("ask-attend-answer", "show-ask-attend-answer")
        ),
        note="`saccade train show-ask-attend-answer --tiny` learns to answer questions about shapes in a minute.",
    )


def first_hop() -> tuple[float, float, int]:
    """A word that fits one cell and no other: how far weights are from the paper's, what that cell gets, from whom."""
    join = Hops(WIDTH, WIDTH, WIDTH, dim=WIDTH, hops=2, dropout=0.0).double().eval()
    torch.nn.init.eye_(join.match.weight).mul_(30)
    torch.nn.init.zeros_(join.match.bias)
    words, cells = torch.eye(WIDTH).double()[:WORDS], torch.eye(WIDTH).double()[[WORDS] * CELLS]
    cells[PLANTED] = words[ASKED]
    with record(join) as maps:
        join(memory(cells), Memory(words[None], real(WORDS), inputs=words[None]))
    weights = next(iter(maps.values()))[0, 0]
    scores = words @ (30 * cells * WIDTH**0.5).T / WIDTH**0.5
    wanted = scores.max(0).values.softmax(0)
    return apart(weights.sum(0), wanted), float(weights.sum(0)[PLANTED]), int(weights[:, PLANTED].argmax())


def glimpses() -> tuple[float, float]:
    """How far weights are from the paper's, and what is seen from their sum."""
    join = Glimpses(WIDTH, WIDTH, hidden=17, glimpses=2).double().eval()
    cells, question = numbers(CELLS, WIDTH), numbers(WIDTH)
    with record(join) as maps:
        seen = join(memory(cells), Memory(question[None, None], real(1))).states[0, 0]
    weights = next(iter(maps.values()))[0, :, 0]
    even = WIDTH**0.5 * cells / cells.norm(dim=-1, keepdim=True)
    hidden = torch.relu(even @ join.cell.weight.T + join.question.weight @ question + join.question.bias)
    wanted = (hidden @ join.energy.weight.T).softmax(0).T
    return apart(weights, wanted), apart(seen, torch.cat(((wanted @ even).flatten(), question)))


def looks(name: str) -> int:
    """Regions of a picture over which every look of a recipe's model sums to 1; 0 where one does not."""
    model = build(load(name, tiny=True), source_size=VOCABULARY, target_size=VOCABULARY).double().eval()
    picture = Pictures(torch.randint(0, 256, (1, 3, 48, 48), dtype=torch.uint8), real(36))
    with record(model) as maps:
        model.read(Batch({"source": picture, "question": pad([[5, 6, 7, 2]])}))
    whole = all(abs(float(look.sum()) - 1) < 1e-12 for one in maps.values() for look in one[0])
    return next(iter(maps.values())).shape[-1] if whole else 0


def memory(cells: Tensor) -> Memory:
    return Memory(cells[None], real(len(cells)))


def real(count: int) -> Tensor:
    return torch.ones(1, count, dtype=torch.bool)
