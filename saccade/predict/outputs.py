"""What a predictor gives: outputs with their scores, and what was attended to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from saccade.view.maps import AttentionMap, Part
from saccade.view.words import Groups

SIDES = {"cross": ("target", "source"), "writer": ("target", "seen"), "reader": ("source", "source")}
ASKING = {"reader.join": ("question", "source"), "reader.ask.": ("question", "question")}  # where questions are read


@dataclass(frozen=True)
class Hypothesis:
    """One output: its score is its log-probability divided by the length penalty."""

    ids: list[int]  # without END
    text: str
    score: float
    log_prob: float
    alignment: list[list[float]] | None = None  # for each id, the weights over the source tokens, END included
    log_probs: list[float] | None = None  # of each id after a prompt, where scores are asked for; of each class
    engine: str = field(default="", compare=False)  # by which it was decoded
    finish: str = ""  # cut at the most tokens that it may have (length); after a prompt also: by itself (end), a stop

    def with_log_probs(self, values: list[float]) -> "Hypothesis":
        """The same with what the model gives to each id, and to all of them."""
        return replace(self, log_prob=sum(values), log_probs=values)

    def limited(self, limit: int, engine: str, *, least: int) -> "Hypothesis":
        """The same as `engine` gave it, marked where it was cut at `limit` tokens, unless so many were asked for."""
        return replace(self, engine=engine, finish="length" if least < limit <= len(self.ids) else self.finish)


def cut_lengths(outputs: Iterable[Hypothesis]) -> tuple[int, ...]:
    """The tokens of each output that was cut at the most that it may have."""
    return tuple(len(output.ids) for output in outputs if output.finish == "length")


def told_of_cut(lengths: Sequence[int], outputs: int, *, longest: int) -> str:
    """What is told of outputs that were cut at these lengths, where `longest` is the data.max_length of the model."""
    low, high = min(lengths), max(lengths)
    many = f"{len(lengths):,} of {outputs:,} outputs {'was' if len(lengths) == 1 else 'were'} cut"
    where = f"{many} at {low if low == high else f'{low} to {high}'} token{'s' if high > 1 else ''}"
    if high < longest - 1:
        return f"{where}; with max_length={longest - 1} (predict.max_length) they may be longer"
    return f"{where}, the most that the model was made for (data.max_length = {longest})"


@dataclass(frozen=True, eq=False)
class AttentionMaps(Mapping[str, AttentionMap]):
    """Who looked where: address -> an array (head, row, column) with labels, in the order of the model."""

    maps: dict[str, Float[Tensor, "H T S"]]
    source_labels: list[str]
    target_labels: list[str]
    text: str
    seen_labels: list[str]  # what the writer sees at each place while it writes
    words: Mapping[str, Groups] = field(default_factory=dict)  # which tokens make up a word, for each of the labels
    question_labels: Sequence[str] = ()  # of a question about what was read

    @property
    def tokens(self) -> dict[str, Sequence[str]]:
        known: dict[str, Sequence[str]] = {"source": self.source_labels, "target": self.target_labels}
        asked = {"question": self.question_labels} if self.question_labels else {}
        return {**known, "seen": self.seen_labels, **asked}

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Of all axes of all maps."""
        return self.tokens | {name: labels for entry in self.values() for name, labels in entry.labels.items()}

    def __getitem__(self, address: str) -> AttentionMap:
        part, weights = part_of(address), self.maps[address].numpy()
        layer = 1 + [other for other in self.maps if part_of(other) == part].index(address)
        known, sides = self.tokens, dict[str, Sequence[str]]()
        for name, size in zip(sides_of(address), weights.shape[1:], strict=True):
            if len(known.get(name, ())) == size:
                sides[name] = known[name]
            else:  # a reader that makes more or fewer states than it is given tokens
                sides[f"{name} states"] = ["all"] if size == 1 else [str(i + 1) for i in range(size)]
        return AttentionMap(address, part, layer, weights, next(iter(sides)), [*sides][-1], sides)

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)


def part_of(address: str) -> Part:
    """Which attention a layer is for, from where it stands in its model."""
    if address.startswith("reader.") and not address.startswith("reader.again."):
        return "cross" if address.startswith("reader.join") else "reader"
    return "cross" if "cross" in address.rpartition(".")[2] else "writer"


def sides_of(address: str) -> tuple[str, str]:
    """What looks, and at what."""
    return next((sides for start, sides in ASKING.items() if address.startswith(start)), SIDES[part_of(address)])
