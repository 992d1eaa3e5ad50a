"""Inference with runs that answer questions about pictures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from saccade.config.schema import Decoding, JoinedReader
from saccade.data.batching.batch import pad
from saccade.data.sources.lines import did_you_mean
from saccade.data.sources.media import list_files
from saccade.data.tokenization.text_pairs import SEPARATOR, join_texts
from saccade.errors import SaccadeError
from saccade.parsing import parse_json
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.labels import LabelDecoder, Labeller, LabelPresenter
from saccade.predict.predictors.media import DecodedFile, PictureCodec
from saccade.predict.predictors.parts import Decoder, PredictorParts, Presenter, Report, encode_tokens
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextPresenter
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View
from saccade.view.words import Groups


class Question(NamedTuple):
    """A picture and a question about it; as one line, with a tab between them."""

    image: str
    question: str

    @property
    def line(self) -> str:
        return join_texts(self)

    @classmethod
    def parse(cls, line: str) -> "Question":
        """Parse such a line, or a JSON object with both fields."""
        if line.lstrip().startswith("{"):
            return cls.from_fields(_parse_object(line))
        image, tab, question = line.partition(SEPARATOR)
        if not (tab and image.strip() and question.strip()):
            raise SaccadeError(
                'a picture and a question are needed: {"image": "FILE", "question": "TEXT"}, or FILE, a tab and TEXT; '
                f"got {line[:60]!r}"
            )
        return cls(image, question)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Question":
        """Validate the fields of a JSON object."""
        for name in fields:
            if name not in cls._fields:
                hint = did_you_mean(name, cls._fields)
                raise SaccadeError(f"unknown field {name!r}{hint}; expected {' and '.join(cls._fields)}")
        for name in cls._fields:
            if not isinstance(fields.get(name), str) or not fields[name].strip():
                got = f"got {fields[name]!r}" if name in fields else "it is missing"
                raise SaccadeError(f"the field {name} must be a text, but {got}; expected {' and '.join(cls._fields)}")
        return cls(**fields)


def _parse_object(line: str) -> dict[str, Any]:
    """Parse the JSON object of a line that begins with a brace."""
    fields: dict[str, Any] = parse_json(line, repr(line[:60]))
    return fields


@dataclass(frozen=True, eq=False)
class PictureWithQuestion(DecodedFile):
    """A decoded picture, and the token ids of a question about it."""

    question: list[int] = field(default_factory=list)


class QuestionCodec(PictureCodec):
    """Reads pictures with questions, as `Question.line`."""

    fields = Question._fields
    media: JoinedReader

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        """Yield each question; an empty line stays empty."""
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\r\n")
            if not text.strip():
                yield text
                continue
            try:
                question = Question.parse(text)
            except SaccadeError as error:
                raise SaccadeError(f"line {number}: {error}") from None
            files = list_files(question.image, medium=self.medium)
            if len(files) != 1:
                raise SaccadeError(f"line {number}: a question is about one picture, got the folder {question.image}")
            yield question._replace(image=files[0]).line

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        parsed = [Question.parse(text) if text.strip() else Question("", "") for text in texts]
        pictures = super().encode([one.image for one in parsed], what, numbers=numbers)
        limit, questions = self.recipe.data.max_length, [one.question for one in parsed]
        ids = encode_tokens(self.tokenizers.source, questions, "question", limit=limit, numbers=numbers)
        return [
            PictureWithQuestion(**vars(picture), question=row) if picture else []
            for picture, row in zip(pictures, ids, strict=True)
        ]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {**super().make_fields(rows), "question": pad([row.question for row in rows])}

    def name_input(self, source: str) -> str:
        question = Question.parse(source)
        return f"{Path(question.image).name}: {question.question}"

    def label_question(self, row: Any) -> tuple[list[str], Groups]:
        return self.tokenizers.source.convert_ids_to_tokens(row.question), self.tokenizers.source.group_words(
            row.question
        )

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Select the picture's cells among the keys of layers that attend to it."""
        if address.startswith("reader.look."):
            return super().crop_weights(address, weights)
        cells = slice(self.reader.class_tokens, self.media.image.states)
        return CROPS.get(self.media.join.kind, crop_join)(address, weights, cells)

    def find_cell(self, target: str) -> int:
        raise SaccadeError(
            "attention goes from the question to the picture, so no cell can be chosen; leave out --target"
        )


def crop_join(address: str, weights: Tensor, cells: slice) -> Tensor:
    """In a stack over cells and words, select the attention of words to cells."""
    if address.startswith("reader.join.stack."):
        return weights[:, cells.stop :, cells]
    return weights[..., cells] if address.startswith("reader.join") else weights


def crop_glimpses(address: str, weights: Tensor, cells: slice) -> Tensor:
    """Display glimpses, which are heads, side by side as rows."""
    return (
        weights[..., cells.start :].transpose(0, 1) if address == "reader.join" else crop_join(address, weights, cells)
    )


def crop_concat(address: str, weights: Tensor, cells: slice) -> Tensor:
    """Select the cells of a memory that is all cells followed by all words."""
    crossed = address.startswith("writer.") and "cross" in address
    return weights[..., cells] if crossed else crop_join(address, weights, cells)


CROPS: dict[str, Callable[[str, Tensor, slice], Tensor]] = {"glimpses": crop_glimpses, "concat": crop_concat}


class QuestionPresenter(Presenter):
    """Adds the question to what another presenter displays of its answer."""

    def __init__(self, decoder: Decoder, *, answer_presenter: Callable[[Any], Presenter]) -> None:
        super().__init__(decoder)
        self.answer_presenter = answer_presenter(decoder)

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        answer = self.answer_presenter.describe(text, hypotheses)
        del answer["input"]
        return {**(Question.parse(text)._asdict() if text.strip() else {}), **answer}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return self.answer_presenter.attention(source, target)

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Display the answer's attention, with glimpses labelled by their number."""
        view = self.answer_presenter.view(source, target, decoding=decoding, title=title)
        maps = [number_glimpses(one) if one.rows == "question states" else one for one in view.maps]
        names = {name: labels for one in maps for name, labels in one.labels.items()}
        kept = {name: labels for name, labels in view.labels.items() if name != "question states"}
        return replace(view, maps=maps, labels={**kept, **names})


def number_glimpses(glimpses: AttentionMap) -> AttentionMap:
    rows = [f"glimpse {number}" for number in range(1, glimpses.weights.shape[1] + 1)]
    return replace(glimpses, rows="glimpse", labels={"glimpse": rows, "source": glimpses.labels["source"]})


# Choose among the answers of the training data, or write answers word by word.
QuestionAnswerer = partial(
    Labeller,
    parts=PredictorParts(QuestionCodec, LabelDecoder, partial(QuestionPresenter, answer_presenter=LabelPresenter)),
)
QuestionWriter = partial(
    Predictor,
    parts=PredictorParts(QuestionCodec, SearchDecoder, partial(QuestionPresenter, answer_presenter=TextPresenter)),
)
