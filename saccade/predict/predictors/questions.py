"""A trained run that answers questions about pictures."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from saccade.config.schema import ConcatJoin, Decoding, GlimpsesJoin, JoinedReader, PatchReader
from saccade.data.batching.batch import Batch, pad
from saccade.data.sources.lines import did_you_mean
from saccade.data.sources.media import named_files
from saccade.data.tokenization.text_pairs import SEPARATOR, joined
from saccade.errors import SaccadeError
from saccade.predict.inputs import Tell
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.media import Describer, MediaLabeller, Medium, OfMedia
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
    try:
        found = json.loads(line)
    except ValueError as error:
        raise SaccadeError(f"not valid JSON: {error}; got {line[:60]!r}") from None
    assert isinstance(found, dict), "it begins with a brace"
    return found


@dataclass(frozen=True, eq=False)
class Shown(Medium):
    """A decoded picture, and the ids of a question about it."""

    question: list[int] = field(default_factory=list)


class OfQuestions(OfMedia):
    """What is the same whether answers are chosen or written: texts are pictures and questions, as `Question.line`."""

    fields = Question._fields
    asks_questions = True

    def inputs(self, lines: Iterable[str], *, tell: Tell | None = None) -> Iterator[str]:
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
            found = named_files(asked.image, medium=self.reader.medium)
            if len(found) != 1:
                raise SaccadeError(f"line {number}: a question is about one picture, got the folder {asked.image}")
            yield asked._replace(image=found[0]).line

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What is said to one question, for JSON."""
        said = super().described(text, found)
        del said["input"]
        return {**(Question.of(text)._asdict() if text.strip() else {}), **said}

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """What is looked at, with glimpses called by their number."""
        seen = super().view(source, target, decoding=decoding, title=title)
        maps = [numbered(one) if one.rows == "question states" else one for one in seen.maps]
        names = {name: labels for one in maps for name, labels in one.labels.items()}
        kept = {name: labels for name, labels in seen.labels.items() if name != "question states"}
        return replace(seen, maps=maps, labels={**kept, **names})

    # ---- inside

    def _read(self, texts: Sequence[str], what: str, *, first: int = 1) -> list[Any]:
        asked = [Question.of(text) if text.strip() else Question("", "") for text in texts]
        pictures = super()._read([one.image for one in asked], what, first=first)
        ids = self._encode(self.tokenizers.source, [one.question for one in asked], "question", first=first)
        return [
            Shown(**vars(picture), question=row) if picture else [] for picture, row in zip(pictures, ids, strict=True)
        ]

    def _batch(self, *, source: Sequence[Any], target: Sequence[list[int]] | None = None) -> Batch:
        batch = super()._batch(source=source, target=target)
        return Batch({**batch.fields, "question": pad([one.question for one in source]).to(self.device)})

    def _question_labels(self, row: Any) -> tuple[list[str], Groups]:
        return self.tokenizers.source.labels(row.question), self.tokenizers.source.words(row.question)

    def _shown(self, address: str, weights: Tensor) -> Tensor:
        """Of what looks at cells, the cells alone; of a stack over both, what words look at there."""
        settings = self.recipe.reader
        assert isinstance(settings, JoinedReader), "the task says so"
        first, cells = isinstance(settings.look, PatchReader) and settings.look.first, settings.look.states
        if address.startswith("reader.look."):
            return super()._shown(address, weights)
        if address.startswith("reader.join.stack."):
            return weights[:, cells:, first:cells]
        if isinstance(settings.join, GlimpsesJoin) and address == "reader.join":
            return weights[..., first:].transpose(0, 1)  # side by side, as words are: each is to be seen
        both = isinstance(settings.join, ConcatJoin) and address.startswith("writer.") and "cross" in address
        return weights[..., first:cells] if both or address.startswith("reader.join") else weights

    def _called(self, source: str) -> str:
        asked = Question.of(source)
        return f"{Path(asked.image).name}: {asked.question}"


def numbered(glimpses: AttentionMap) -> AttentionMap:
    rows = [f"glimpse {number}" for number in range(1, glimpses.weights.shape[1] + 1)]
    return replace(glimpses, rows="glimpse", labels={"glimpse": rows, "source": glimpses.labels["source"]})


class QuestionAnswerer(OfQuestions, MediaLabeller):
    """Chooses among the answers of the training data."""

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        if target is not None:
            raise SaccadeError("it is the question that looks, and no cell of the picture; leave out --target")
        return super().view(source, decoding=decoding, title=title)


class QuestionWriter(OfQuestions, Describer):
    """Writes answers word by word."""
