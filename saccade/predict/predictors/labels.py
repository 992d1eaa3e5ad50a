"""A trained run that labels texts: a class for each, a number for each, or a tag for each word."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.text_pairs import encode_texts, separated
from saccade.data.tokenization.words import encode_words
from saccade.errors import SaccadeError
from saccade.predict.lines import groups_by_length
from saccade.predict.looking import make_view, record_reading
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.parts import Decoder, InputCodec, LoadedModel, Options, Parts, Presenter
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec
from saccade.view.viewing import View
from saccade.view.words import Groups


@dataclass(frozen=True)
class LabelKind:
    """How the logits of a text become its label: here, one class for each text."""

    labels: Labels

    def select(self, logits: Float[Tensor, "B ..."], at: int, row: Any) -> Float[Tensor, "n C"]:
        """The logits of one row of a batch."""
        return logits[at : at + 1]

    def make_outputs(self, logits: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        logs = logits.log_softmax(-1)[0]
        values, chosen = logs.topk(min(decoding.n_best, self.labels.size))
        return [
            Hypothesis([number], self.labels.names[number], value, value, log_probs=logs.tolist())
            for number, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]

    def describe(self, text: str, best: Hypothesis) -> dict[str, Any]:
        probabilities = [math.exp(value) for value in best.log_probs or []]
        names = dict(zip(self.labels.names, probabilities, strict=False))
        return {"input": text, "label": best.text, "probability": math.exp(best.log_prob), "probabilities": names}

    def check_probabilities(self) -> None:
        """Raise SaccadeError where outputs have no probability."""


class NumberKind(LabelKind):
    """A number for each text."""

    def make_outputs(self, logits: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        value = float(logits[0, 0])
        return [Hypothesis([], f"{value:.6g}", value, 0.0)]

    def describe(self, text: str, best: Hypothesis) -> dict[str, Any]:
        return {"input": text, "value": best.score if best.text else None}

    def check_probabilities(self) -> None:
        raise SaccadeError("a number has no probability; use predict, or `saccade evaluate`")


class TagKind(LabelKind):
    """A class for each word."""

    def select(self, logits: Float[Tensor, "B ..."], at: int, row: Any) -> Float[Tensor, "n C"]:
        return logits[at, row.places]

    def make_outputs(self, logits: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        values, chosen = logits.log_softmax(-1).max(-1)
        text, total = " ".join(self.labels.names[number] for number in chosen.tolist()), float(values.sum())
        return [Hypothesis(chosen.tolist(), text, total, total, log_probs=values.tolist())]

    def describe(self, text: str, best: Hypothesis) -> dict[str, Any]:
        probabilities = [math.exp(value) for value in best.log_probs or []]
        return {"input": text, "words": text.split(), "tags": best.text.split(), "probabilities": probabilities}


class LabelledTextCodec(TextCodec):
    """Reads a text, or a pair of texts in one line with a tab between them."""

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """Too long a line is refused, unless the recipe cuts it, and so is one with another number of texts."""
        limit, places = self.recipe.data.max_length, list(numbers or range(1, len(texts) + 1))
        rows = self._encode_lines(texts, places)
        for number, row in zip(places, rows, strict=True):
            if len(row) > limit:
                raise SaccadeError(
                    f"line {number} has {len(row)} tokens, but the model was made for at most {limit} "
                    f"(data.max_length, <end> included); shorten it, or train with data.cut=true"
                )
        return rows

    def _encode_lines(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Any]:
        parts = [separated(text) for text in texts]
        for number, part in zip(numbers, parts, strict=True):
            self._check_texts(part, number)
        limit = self.recipe.data.max_length if self.recipe.data.cut else None
        return encode_texts(self.tokenizers.source, parts, limit=limit)

    def _check_texts(self, texts: Sequence[str], line: int) -> None:
        wanted = get_labels(self.loaded).texts
        if len(texts) != wanted or not all(text.strip() for text in texts):
            form = "one text" if wanted == 1 else "two texts with a tab between them"
            raise SaccadeError(f"line {line}: the model labels {form}, got {len(texts)}; change the line")


@dataclass(frozen=True)
class WordRow:
    """Token ids of a text, END last, and the position of the first token of each word."""

    ids: list[int]
    places: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class WordsCodec(LabelledTextCodec):
    """Reads a text of which each word gets a tag."""

    def _encode_lines(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Any]:
        return [WordRow(*row) for row in encode_words(self.tokenizers.source, texts)]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return super().make_fields([row.ids for row in rows])

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        return super().label_source(row.ids)


KINDS = {"number": NumberKind, "tags": TagKind}  # by the kind of writer; any other gives classes
CODECS = {"tags": WordsCodec}


def get_labels(loaded: LoadedModel) -> Labels:
    assert loaded.tokenizers.labels is not None, "a run of this task has labels"
    return loaded.tokenizers.labels


def make_label_codec(loaded: LoadedModel) -> InputCodec:
    return CODECS.get(get_labels(loaded).kind, LabelledTextCodec)(loaded)


class LabelDecoder(Decoder):
    """Labels each input with the writer's head over what was read."""

    def __init__(self, loaded: LoadedModel, codec: InputCodec) -> None:
        super().__init__(loaded, codec)
        self.labels = get_labels(loaded)
        self.kind = KINDS.get(self.labels.kind, LabelKind)(self.labels)

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        """The n_best classes of each text, or its number or tags; an empty line has none."""
        if options.align:
            raise SaccadeError("a label is not written word by word, so that nothing can be aligned; ask without align")
        full = [i for i, text in enumerate(texts) if text.strip()]
        lines = [options.first + i for i in full]
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        for i, line, logits in zip(full, lines, self._logits([texts[i] for i in full], lines), strict=True):
            if not bool(logits.isfinite().all()):
                raise SaccadeError(
                    f"the model has no finite numbers for line {line}; its weights are not usable, train again"
                )
            outputs[i] = self.kind.make_outputs(logits, options.decoding)
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each given class, or of all given tags of a text."""
        self.kind.check_probabilities()
        scores = []
        for found, (_, label) in zip(self._logits([text for text, _ in pairs]), pairs, strict=True):
            logs, given = found.log_softmax(-1).tolist(), self.labels.encode(label)
            if len(given) != len(logs):
                raise SaccadeError(f"there are {len(logs)} words and {len(given)} tags; each word needs one")
            scores.append(sum(row[number - 1] for row, number in zip(logs, given, strict=True)))
        return scores

    def _logits(self, texts: Sequence[str], lines: Sequence[int] | None = None) -> list[Float[Tensor, "n C"]]:
        """What the writer gives for each text, or for each of its words."""
        rows = self.codec.encode(texts, "line", numbers=lines)
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        with self.loaded.inference():
            for group in groups_by_length([len(row) for row in rows], budget=self.recipe.predict.batch_tokens):
                batch = self.codec.collate([rows[i] for i in group])
                logits = self.loaded.model.writer(self.loaded.model.read(batch)).float().cpu()
                for at, i in enumerate(group):
                    found[i] = self.kind.select(logits, at, rows[i])
        return found


class LabelPresenter(Presenter):
    """A label, and the attention of the reader; no label is written token by token."""

    decoder: LabelDecoder

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        return self.decoder.kind.describe(text, found[0])

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        if target is not None:
            raise SaccadeError(f"a label is not written word by word, so that there is no target, got {target!r}")
        return record_reading(self.codec, self._encode(source), self.decoder.predict([source])[0])

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Of a picture with a target `ROW,COLUMN`, the attention of that cell."""
        cell = None if target is None else self.codec.find_cell(target)
        row, output = self._encode(source), self.decoder.predict([source])[0]
        seen = record_reading(self.codec, row, output, cell=cell)
        view = make_view(self.codec, seen, source, row, output=output, title=title)
        return name_query(view, cell) if self.codec.medium else view

    def _encode(self, source: str) -> Any:
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        return self.codec.encode([source], "line")[0]


def name_query(view: View, cell: int | None) -> View:
    """Of files, maps have one query: the class token or the mean of all, which gives the label, or one cell."""
    label = {"target": [view.output if cell is None else f"from {view.labels['source'][cell]}"]}
    maps = [
        replace(one, rows="target", labels={**label, one.columns: one.labels[one.columns]})
        if len(one.labels[one.rows]) == 1
        else one
        for one in view.maps
    ]
    shown = {name: labels for one in maps for name, labels in one.labels.items()}
    return replace(view, maps=maps, labels={**label, "source": view.labels["source"], **shown})


class Labeller(Predictor):
    """Texts in, labels out; of a pair of texts, both stand in one line with a tab between them."""

    default_parts = Parts(make_label_codec, LabelDecoder, LabelPresenter)
