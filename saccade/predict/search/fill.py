"""Whole outputs at once: a length, a canvas for it, and as many passes over it as are wanted.

The first pass writes all tokens. Each later one hides those that the model was least sure of and writes them again,
given the others (mask-predict, Ghazvininejad et al. 2019). Several lengths are filled side by side, and the output with
the best mean log-probability wins. B sentences, L lengths of each, R = B L canvases of T places, END at the last place
of each.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.layers.blocks import filling
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.model import Model
from saccade.model.writers.fill import MASK, Lengths, Pass, blank
from saccade.predict.search.greedy import Found, best_tokens, sort_outputs

FIRST = 1 + max(PAD, START, END, UNKNOWN)  # the first token that is written; those before it mean something else
NUMBERS = 3  # about each canvas, behind its tokens: its length, its log-probability, whether it counts


class Wanted(NamedTuple):
    """What is asked of a batch, beside its limits."""

    iterations: int
    lengths: int
    least: int  # tokens of an output, END not counted
    first: int = FIRST  # the first token that may be written

    @classmethod
    def of(cls, decoding: Decoding) -> "Wanted":
        """As many lengths as outputs are wanted, at least; unknown words only where they are replaced afterwards."""
        first = UNKNOWN if decoding.replace_unknown else FIRST
        return cls(decoding.iterations, max(decoding.lengths, decoding.n_best), decoding.min_length, first)


class Filler(Protocol):
    """A writer of all tokens at once, as far as passes over a canvas know it."""

    def fill(self, memory: Memory, mask: Bool[Tensor, "R T"] | None, shape: Sequence[int]) -> Pass: ...


def fills(writer: object) -> bool:
    """Whether a writer writes all tokens at once, not step by step."""
    return hasattr(writer, "fill")


def check_filling(decoding: Decoding, *, prefix: Sequence[int]) -> None:
    """Refuses what only a search step by step can do."""
    asked = {
        "sample": decoding.sample, "no_repeat": decoding.no_repeat, "coverage": decoding.coverage, "prefix": prefix,
    }  # fmt: skip
    for name, given in asked.items():
        if given:
            raise SaccadeError(
                f"this model writes all tokens at once, which knows no {name}, got {name} = "
                f"{getattr(decoding, name)!r}; leave it out, or take iterations and lengths"
            )


def check_stepwise(decoding: Decoding) -> None:
    """Refuses what only a writer that fills can do."""
    plain = Decoding()
    for name in ("iterations", "lengths", "collapse"):
        if (given := getattr(decoding, name)) != getattr(plain, name):
            raise SaccadeError(
                f"this model writes one token after the other, which knows no {name}, got {name} = {given!r}; "
                'leave it out, or train one with writer.kind = "fill"'
            )


def decode_plainly(
    model: Model, source: Tokens, *, limits: Sequence[int], wanted: Wanted, align: bool
) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R T S"] | None]:
    """What `filled` gives for a batch, and with `align` what each place looks at once all tokens are there."""
    most = torch.tensor(limits, device=source.ids.device)
    made = filled(model, source, most, wanted)
    if not align:
        return made, None
    tokens, lengths = made[:, :-NUMBERS].long(), made[:, -NUMBERS].long()
    return made, looked(model.writer, read(model, source), tokens, inside(lengths, tokens.shape[1]))


def filled(
    model: Model, source: Tokens, limits: Int[Tensor, " B"], wanted: Wanted, width: int | None = None
) -> Float[Tensor, "R n"]:
    """The canvases of a batch, and behind each its numbers; all in float32, which holds whole numbers up to 2^24.

    With a width, which no canvas may exceed, nothing in it asks the device: what a CUDA graph can hold.
    """
    memory = read(model, source)
    lengths, log_probs, counts = likely_lengths(model.writer.lengths(memory), limits, wanted)
    lengths = lengths.flatten()
    canvas, sure = written(model.writer, memory, lengths, width or int(lengths.max()), wanted)
    total = sure.sum(1) + log_probs.flatten()
    return torch.cat((canvas.float(), torch.stack((lengths.float(), total, counts.flatten().float()), 1)), 1)


def read(model: Model, source: Tokens) -> Memory:
    """What the model's reader gives."""
    reader = model.reader
    if reader is None or not filling.covers(reader):
        # A batch counts its tokens unless it is told their number, and a device would have to be waited for.
        return model.read(Batch({"source": source}, {"source": 0}))
    x = reader.embedding(source.ids)
    return Memory(filling.over_texts(reader.stack, x, filling.bias_of(source.mask, x)), source.mask, tokens=source.ids)


def likely_lengths(
    lengths: Lengths, limits: Int[Tensor, " B"], wanted: Wanted
) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """The likeliest lengths, END included, their log-probabilities, and whether they count.

    Where fewer lengths are allowed than are wanted, the rest does not count. The first always does: where none is
    allowed, it is brought to the nearest allowed one.
    """
    logits, shortest = lengths
    log_probs = logits.float().log_softmax(-1)
    each = shortest[:, None] + torch.arange(logits.shape[1], device=logits.device)
    allowed = (each > wanted.least) & (each <= limits[:, None] + 1)
    chosen = log_probs.masked_fill(~allowed, -torch.inf).topk(min(wanted.lengths, logits.shape[1])).indices
    near = torch.minimum(each.gather(1, chosen).clamp(min=wanted.least + 1), limits[:, None] + 1)
    counts = allowed.gather(1, chosen) | (torch.arange(chosen.shape[1], device=chosen.device) == 0)
    return near, log_probs.gather(1, chosen), counts


def written(
    writer: Filler, memory: Memory, lengths: Int[Tensor, " R"], width: int, wanted: Wanted
) -> tuple[Int[Tensor, "R T"], Float[Tensor, "R T"]]:
    """Canvases with all tokens, and the log-probability of each when it was written; 0 for END and behind it."""
    canvas, mask = blank(lengths, width), inside(lengths, width)
    sure, over = torch.zeros(canvas.shape, device=canvas.device), writer.fill(memory, mask, canvas.shape)
    for left in reversed(range(wanted.iterations)):
        hidden = canvas == MASK
        values, tokens = likeliest(over(canvas), wanted.first)
        canvas, sure = torch.where(hidden, tokens, canvas), torch.where(hidden, values, sure)
        if left:
            again = least_sure(sure, lengths - 1, (lengths - 1) * left // wanted.iterations)
            canvas = canvas.masked_fill(again, MASK)
    return canvas, sure


def inside(lengths: Int[Tensor, " R"], width: int) -> Bool[Tensor, "R T"] | None:
    """Which places of each canvas are real; none where all of them are and asking costs nothing."""
    if lengths.device.type == "cpu" and int(lengths.min()) == width:
        return None
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def likeliest(logits: Float[Tensor, "R T V"], first: int) -> tuple[Float[Tensor, "R T"], Int[Tensor, "R T"]]:
    """The best token of each place, from the first that may be written on, and its log-probability."""
    rows = logits.flatten(0, 1).float()
    values, tokens = best_tokens(rows[:, first:], 1)
    return (values[:, 0] - rows.logsumexp(-1)).view(logits.shape[:2]), (tokens[:, 0] + first).view(logits.shape[:2])


def least_sure(sure: Float[Tensor, "R T"], words: Int[Tensor, " R"], counts: Int[Tensor, " R"]) -> Bool[Tensor, "R T"]:
    """The `counts` places with the lowest log-probability among the first `words` of each canvas."""
    outside = torch.arange(sure.shape[1], device=sure.device) >= words[:, None]
    ranks = sure.masked_fill(outside, torch.inf).argsort(dim=1, stable=True).argsort(1)
    return ranks < counts[:, None]


def looked(
    writer: nn.Module, memory: Memory, canvas: Int[Tensor, "R T"], mask: Bool[Tensor, "R T"] | None
) -> Float[Tensor, "R T S"]:
    """What each place looks at in memory: the mean over the heads of the last layer."""
    with record(writer) as maps:
        writer(canvas, mask, memory)
    cross = [weights for address, weights in maps.items() if "cross" in address]
    if not cross:
        raise SaccadeError("this model does not attend to what it reads, so nothing can be aligned; ask without align")
    return cross[-1].mean(1)


def outputs(
    made: Float[Tensor, "R n"], looks: Float[Tensor, "R T S"] | None, *, sentences: int, decoding: Decoding
) -> list[list[Found]]:
    """The n_best outputs of each sentence, best first; asks the device once, or twice where it looked."""
    rows, maps = made.tolist(), None if looks is None else looks.tolist()
    each, best = len(rows) // sentences, []
    for first in range(0, len(rows), each):
        found = [
            as_found(rows[i], None if maps is None else maps[i], collapse=decoding.collapse)
            for i in range(first, first + each)
            if rows[i][-1]
        ]
        best.append(sort_outputs(found)[: decoding.n_best])
    return best


def as_found(row: Sequence[float], looks: list[list[float]] | None, *, collapse: bool) -> Found:
    """One output: its score is the mean log-probability of its tokens, with the length's in the place of END's."""
    *tokens, length, log_prob, _ = row
    ids = [int(token) for token in tokens[: int(length) - 1]]
    kept = [i for i, token in enumerate(ids) if not (collapse and i and token == ids[i - 1])]
    alignment = None if looks is None else [looks[i] for i in kept]
    return Found([ids[i] for i in kept], log_prob, log_prob / length, alignment)
