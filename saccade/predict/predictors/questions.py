"""A trained run that answers questions about pictures."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from saccade.config.schema import Decoding, JoinedReader
from saccade.data.batching.batch import pad
from saccade.data.sources.lines import did_you_mean
from saccade.data.sources.media import named_files
from saccade.data.tokenization.text_pairs import SEPARATOR, joined
from saccade.errors import SaccadeError
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.labels import LabelDecoder, Labeller, LabelPresenter
from saccade.predict.predictors.media import Medium, PictureCodec
from saccade.predict.predictors.parts import Decoder, Parts, Presenter, Report, encode_tokens
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextPresenter
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View
from saccade.view.words import Groups


class Question(NamedTuple):
    """A picture and what is asked about it; as a line, with a tab between them."""

    image: str
    question: str

    @property
    def line(self) -> str:
        return joined(self)

    @classmethod
    def of(cls, line: str) -> "Question":
        """From such a line, or from a JSON object with both."""
        if line.lstrip().startswith("{"):
            return cls.of_fields(_object(line))
        image, tab, question = line.partition(SEPARATOR)
        if not (tab and image.strip() and question.strip()):
            raise SaccadeError(
                'a picture and a question are needed: {"image": "FILE", "question": "TEXT"}, or FILE, a tab and TEXT; '
                f"got {line[:60]!r}"
            )
        return cls(image, question)

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> "Question":
        for name in fields:
            if name not in cls._fields:
                hint = did_you_mean(name, cls._fields)
                raise SaccadeError(f"unknown field {name!r}{hint}; expected {' and '.join(cls._fields)}")
        for name in cls._fields:
            if not isinstance(fields.get(name), str) or not fields[name].strip():
                got = f"got {fields[name]!r}" if name in fields else "it is missing"
                raise SaccadeError(f"the field {name} must be a text, but {got}; expected {' and '.join(cls._fields)}")
        return cls(**fields)


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line that begins with a brace."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise SaccadeError(f"not valid JSON: {error}; got {line[:60]!r}") from None
    return found


@dataclass(frozen=True, eq=False)
class AskedMedium(Medium):
    """A decoded picture, and the token ids of a question about it."""

    question: list[int] = field(default_factory=list)


class QuestionCodec(PictureCodec):
    """Reads pictures with questions, as `Question.line`."""

    fields = Question._fields
    media: JoinedReader

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        """Each question that is given; an empty line stays empty."""
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\r\n")
            if not text.strip():
                yield text
                continue
            try:
                asked = Question.of(text)
            except SaccadeError as error:
                raise SaccadeError(f"line {number}: {error}") from None
            found = named_files(asked.image, medium=self.medium)
            if len(found) != 1:
                raise SaccadeError(f"line {number}: a question is about one picture, got the folder {asked.image}")
            yield asked._replace(image=found[0]).line

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        asked = [Question.of(text) if text.strip() else Question("", "") for text in texts]
        pictures = super().encode([one.image for one in asked], what, numbers=numbers)
        limit, questions = self.recipe.data.max_length, [one.question for one in asked]
        ids = encode_tokens(self.tokenizers.source, questions, "question", limit=limit, numbers=numbers)
        return [
            AskedMedium(**vars(picture), question=row) if picture else []
            for picture, row in zip(pictures, ids, strict=True)
        ]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {**super().make_fields(rows), "question": pad([row.question for row in rows])}

    def name_input(self, source: str) -> str:
        asked = Question.of(source)
        return f"{Path(asked.image).name}: {asked.question}"

    def label_question(self, row: Any) -> tuple[list[str], Groups]:
        return self.tokenizers.source.labels(row.question), self.tokenizers.source.words(row.question)

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Of what attends to the picture, its cells alone."""
        if address.startswith("reader.look."):
            return super().crop_weights(address, weights)
        cells = slice(self.reader.class_tokens, self.media.look.states)
        return CROPS.get(self.media.join.kind, crop_join)(address, weights, cells)

    def find_cell(self, target: str) -> int:
        raise SaccadeError("it is the question that looks, and no cell of the picture; leave out --target")


def crop_join(address: str, weights: Tensor, cells: slice) -> Tensor:
    """Of a stack over cells and words, what words attend to."""
    if address.startswith("reader.join.stack."):
        return weights[:, cells.stop :, cells]
    return weights[..., cells] if address.startswith("reader.join") else weights


def crop_glimpses(address: str, weights: Tensor, cells: slice) -> Tensor:
    """Glimpses, which are heads, side by side as words are, so that each is seen."""
    return (
        weights[..., cells.start :].transpose(0, 1) if address == "reader.join" else crop_join(address, weights, cells)
    )


def crop_concat(address: str, weights: Tensor, cells: slice) -> Tensor:
    """The memory is all cells and then all words."""
    crossed = address.startswith("writer.") and "cross" in address
    return weights[..., cells] if crossed else crop_join(address, weights, cells)


CROPS: dict[str, Callable[[str, Tensor, slice], Tensor]] = {"glimpses": crop_glimpses, "concat": crop_concat}


class QuestionPresenter(Presenter):
    """Shows a question beside what another presenter shows of its answer."""

    def __init__(self, decoder: Decoder, *, answers: Callable[[Any], Presenter]) -> None:
        super().__init__(decoder)
        self.answers = answers(decoder)

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        said = self.answers.describe(text, found)
        del said["input"]
        return {**(Question.of(text)._asdict() if text.strip() else {}), **said}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return self.answers.attention(source, target)

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """With glimpses called by their number."""
        seen = self.answers.view(source, target, decoding=decoding, title=title)
        maps = [numbered(one) if one.rows == "question states" else one for one in seen.maps]
        names = {name: labels for one in maps for name, labels in one.labels.items()}
        kept = {name: labels for name, labels in seen.labels.items() if name != "question states"}
        return replace(seen, maps=maps, labels={**kept, **names})


def numbered(glimpses: AttentionMap) -> AttentionMap:
    rows = [f"glimpse {number}" for number in range(1, glimpses.weights.shape[1] + 1)]
    return replace(glimpses, rows="glimpse", labels={"glimpse": rows, "source": glimpses.labels["source"]})


# Choose among the answers of the training data, or write answers word by word.
QuestionAnswerer = partial(
    Labeller, parts=Parts(QuestionCodec, LabelDecoder, partial(QuestionPresenter, answers=LabelPresenter))
)
QuestionWriter = partial(
    Predictor, parts=Parts(QuestionCodec, SearchDecoder, partial(QuestionPresenter, answers=TextPresenter))
)
