"""Outputs of a predictor: hypotheses with their scores, and attention maps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from saccade.display import Tabular
from saccade.view.maps import AttentionMap, AttentionPart
from saccade.view.words import Groups

# Query and key axis of attention layers.
SIDES = {"cross": ("target", "source"), "writer": ("target", "seen"), "reader": ("source", "source")}
# Axes of layers that read a question, by the beginning of their address.
QUESTION_SIDES = {"reader.join": ("question", "source"), "reader.ask.": ("question", "question")}


class Outputs(list[Any], Tabular):
    """The outputs for some inputs: a list of texts, or of lists of texts with `n_best` > 1, that knows its inputs."""

    def __init__(self, outputs: Iterable[Any], inputs: Sequence[str]) -> None:
        super().__init__(outputs)
        self.inputs = list(inputs)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a row for each output, those of one input one after the other, best first."""
        records = []
        for text, output in zip(self.inputs, self, strict=True):
            many = isinstance(output, list)
            for rank, one in enumerate(output if many else [output], start=1):
                records.append({"input": text, **({"rank": rank} if many else {}), "output": one})
        return records


@dataclass(frozen=True)
class Hypothesis:
    """One output. Its score is its log-probability divided by the length penalty."""

    ids: list[int]  # without END
    text: str
    score: float
    log_prob: float
    alignment: list[list[float]] | None = None  # attention weights of each id over the source tokens, END included
    log_probs: list[float] | None = None  # of each generated id (language models, if scored), or of each class
    engine: str = field(default="", compare=False)  # name of the engine that decoded it
    finish: str = ""  # why it ends: "length" if truncated; of language models also "end" or "stop"
    missing_terms: tuple[str, ...] = ()  # phrases that it must contain, but for which its length limit has no space

    def with_log_probs(self, values: list[float]) -> "Hypothesis":
        """Return a copy with the log-probability of each id, and their sum as `log_prob`."""
        return replace(self, log_prob=sum(values), log_probs=values)

    def with_engine(self, limit: int, engine: str, *, min_length: int) -> "Hypothesis":
        """Return a copy that names its engine, with finish = "length" if it reached `limit` tokens.

        An output of exactly `min_length` = `limit` tokens was requested and does not count as truncated.
        """
        return replace(self, engine=engine, finish="length" if min_length < limit <= len(self.ids) else self.finish)


def join_lines(text: str) -> str:
    """Replace line breaks by spaces, so that line n of the outputs belongs to line n of the inputs."""
    return " ".join(text.splitlines())


def get_truncated_lengths(outputs: Iterable[Hypothesis]) -> tuple[int, ...]:
    """Return the number of tokens of each output that was truncated at its length limit."""
    return tuple(len(output.ids) for output in outputs if output.finish == "length")


def format_truncation_message(lengths: Sequence[int], outputs: int, *, max_length: int) -> str:
    """Say how many outputs were truncated, at which lengths; `max_length` is the model's data.max_length."""
    low, high = min(lengths), max(lengths)
    many = f"{len(lengths):,} of {outputs:,} outputs {'was' if len(lengths) == 1 else 'were'} cut"
    where = f"{many} at {low if low == high else f'{low} to {high}'} token{'s' if high > 1 else ''}"
    if high < max_length - 1:
        return f"{where}; with max_length={max_length - 1} (predict.max_length) they may be longer"
    return f"{where}, the most that the model was made for (data.max_length = {max_length})"


def format_missing_terms_message(missing: Sequence[Sequence[str]], outputs: int) -> str:
    """Say how many outputs lack phrases that they must contain, and name the first of these."""
    names = list(dict.fromkeys(phrase for phrases in missing for phrase in phrases))
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    many = f"{len(missing):,} of {outputs:,} outputs {'lacks' if len(missing) == 1 else 'lack'} terms"
    phrases = f"{', '.join(repr(name[:40]) for name in names[:3])}{more}"
    return f"{many}, for which the length limit has no space: {phrases}; raise max_length (predict.max_length)"


@dataclass(frozen=True, eq=False)
class AttentionMaps(Mapping[str, AttentionMap]):
    """Attention weights by the address of their layer: arrays (head, query, key) with labels, in model order."""

    maps: dict[str, Float[Tensor, "H T S"]]
    source_labels: list[str]
    target_labels: list[str]
    text: str
    seen_labels: list[str]  # inputs of the writer at each position: the previous tokens
    words: Mapping[str, Groups] = field(default_factory=dict)  # indices of the tokens of each word, by axis name
    question_labels: Sequence[str] = ()  # tokens of a question about a picture

    @property
    def tokens(self) -> dict[str, Sequence[str]]:
        """Token labels by axis name."""
        known: dict[str, Sequence[str]] = {"source": self.source_labels, "target": self.target_labels}
        question = {"question": self.question_labels} if self.question_labels else {}
        return {**known, "seen": self.seen_labels, **question}

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Labels of all axes of all maps, by axis name."""
        return self.tokens | {name: labels for entry in self.values() for name, labels in entry.labels.items()}

    def __getitem__(self, address: str) -> AttentionMap:
        part, weights = get_attention_part(address), self.maps[address].numpy()
        layer = 1 + [other for other in self.maps if get_attention_part(other) == part].index(address)
        known, sides = self.tokens, dict[str, Sequence[str]]()
        for name, size in zip(get_axis_names(address), weights.shape[1:], strict=True):
            if len(known.get(name, ())) == size:
                sides[name] = known[name]
            else:  # the reader returns more or fewer states than tokens
                sides[f"{name} states"] = ["all"] if size == 1 else [str(i + 1) for i in range(size)]
        return AttentionMap(address, part, layer, weights, next(iter(sides)), [*sides][-1], sides)

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)


def get_attention_part(address: str) -> AttentionPart:
    """Return whether a layer is self-attention of the reader or writer, or cross-attention, by its address."""
    if address.startswith("reader.") and not address.startswith("reader.again."):
        return "cross" if address.startswith("reader.join") else "reader"
    return "cross" if "cross" in address.rpartition(".")[2] else "writer"


def get_axis_names(address: str) -> tuple[str, str]:
    """Return the names of the query axis and the key axis of a layer."""
    return next(
        (sides for start, sides in QUESTION_SIDES.items() if address.startswith(start)),
        SIDES[get_attention_part(address)],
    )
