"""Check on visual question answering: the attention of both recipes follows the papers and finds a planted object."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.layers.vision.joining import Glimpses, Hops
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, sample_normal
from saccade.model.build.model import build

# words of the question, features, and the index of the word that names the planted object
WORDS, WIDTH, PLANTED_WORD = (
    7,
    11,
    3,
)
CELLS, PLANTED_CELL = 13, 5  # cells of the picture, and the one that contains the planted object


@check(
    29,
    "S3:397-400",
    "Ask, attend and answer; show, ask, attend and answer: a question attends to regions of a picture for its answer.",
    formula=r"a = \mathrm{softmax}_s \max_t w_t^\top A v_s, b = \mathrm{softmax}_s u^\top \mathrm{relu}(W v_s + U q)",
    code=(Hops, Glimpses),
)
@torch.no_grad()
def ask_attend_answer() -> CheckResult:
    by_words, by_glimpses = measure_first_hop(), measure_glimpses()
    return build_result(
        expect_near("first hop: difference from the softmax of each cell's best word", by_words[0], 0, within=1e-12),
        expect_near("first hop: weight of the cell that contains the named object", by_words[1], 1, within=0.01),
        expect_equal("first hop: index of the word that matches this cell", by_words[2], PLANTED_WORD),
        expect_near("glimpses: difference of the weights from the formula", by_glimpses[0], 0, within=1e-12),
        expect_near(
            "glimpses: difference of the output from the weighted sum of cells", by_glimpses[1], 0, within=1e-12
        ),
        *(
            expect_equal(f"{name}: regions over which attention weights sum to 1", count_regions(name), 36)
            for name in ("ask-attend-answer", "show-ask-attend-answer")
        ),
        note="`saccade train show-ask-attend-answer --tiny` trains on questions about shapes in a minute.",
    )


def measure_first_hop() -> tuple[float, float, int]:
    """Run the first hop on a word that matches exactly one cell.

    Returns the difference of the weights from the paper's formula, the weight of this cell, and the index of the word
    that contributes it.
    """
    join = Hops(WIDTH, WIDTH, WIDTH, dim=WIDTH, hops=2, dropout=0.0).double().eval()
    torch.nn.init.eye_(join.match.weight).mul_(30)
    torch.nn.init.zeros_(join.match.bias)
    words, cells = torch.eye(WIDTH).double()[:WORDS], torch.eye(WIDTH).double()[[WORDS] * CELLS]
    cells[PLANTED_CELL] = words[PLANTED_WORD]
    with record(join) as maps:
        join(build_memory(cells), Memory(words[None], build_mask(WORDS), inputs=words[None]))
    weights = next(iter(maps.values()))[0, 0]
    scores = words @ (30 * cells * WIDTH**0.5).T / WIDTH**0.5
    expected = scores.max(0).values.softmax(0)
    return (
        max_difference(weights.sum(0), expected),
        float(weights.sum(0)[PLANTED_CELL]),
        int(weights[:, PLANTED_CELL].argmax()),
    )


def measure_glimpses() -> tuple[float, float]:
    """Return the differences of weights and output of two glimpses from the paper's formulas."""
    join = Glimpses(WIDTH, WIDTH, hidden_dim=17, glimpses=2).double().eval()
    cells, question = sample_normal(CELLS, WIDTH), sample_normal(WIDTH)
    with record(join) as maps:
        seen = join(build_memory(cells), Memory(question[None, None], build_mask(1))).states[0, 0]
    weights = next(iter(maps.values()))[0, :, 0]
    normalized = WIDTH**0.5 * cells / cells.norm(dim=-1, keepdim=True)
    hidden = torch.relu(normalized @ join.cell.weight.T + join.question.weight @ question + join.question.bias)
    expected = (hidden @ join.energy.weight.T).softmax(0).T
    output = torch.cat(((expected @ normalized).flatten(), question))
    return max_difference(weights, expected), max_difference(seen, output)


def count_regions(name: str) -> int:
    """Return the regions of a picture over which all attention weights of a recipe sum to 1; 0 if some do not."""
    model = build(load(name, tiny=True), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
    picture = Pictures(torch.randint(0, 256, (1, 3, 48, 48), dtype=torch.uint8), build_mask(36))
    with record(model) as maps:
        model.read(Batch({"source": picture, "question": pad([[5, 6, 7, 2]])}))
    whole = all(abs(float(look.sum()) - 1) < 1e-12 for one in maps.values() for look in one[0])
    return next(iter(maps.values())).shape[-1] if whole else 0


def build_memory(cells: Tensor) -> Memory:
    return Memory(cells[None], build_mask(len(cells)))


def build_mask(count: int) -> Tensor:
    return torch.ones(1, count, dtype=torch.bool)
