"""Inference with a run that labels texts: a class or a number per text, or a tag per word."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.text_pairs import encode_texts, split_texts
from saccade.data.tokenization.words import encode_words
from saccade.errors import SaccadeError
from saccade.predict.attention_maps import make_view, record_reader_attention
from saccade.predict.lines import group_by_length
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.parts import (
    Decoder,
    DecodingOptions,
    InputCodec,
    LoadedModel,
    PredictorParts,
    Presenter,
)
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec
from saccade.view.viewing import View
from saccade.view.words import Groups


@dataclass(frozen=True)
class LabelKind:
    """Converts logits to labels; this base class gives one class per text."""

    labels: Labels

    def select(self, logits: Float[Tensor, "B ..."], index: int, row: Any) -> Float[Tensor, "n C"]:
        """Return the logits of one row of a batch."""
        return logits[index : index + 1]

    def make_outputs(self, logits: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        """Return the n_best labels."""
        log_probs = logits.log_softmax(-1)[0]
        values, chosen = log_probs.topk(min(decoding.n_best, self.labels.size))
        return [
            Hypothesis([number], self.labels.names[number], value, value, log_probs=log_probs.tolist())
            for number, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]

    def describe(self, text: str, best: Hypothesis) -> dict[str, Any]:
        """Return the label as a JSON object."""
        probabilities = [math.exp(value) for value in best.log_probs or []]
        names = dict(zip(self.labels.names, probabilities, strict=False))
        return {"input": text, "label": best.text, "probability": math.exp(best.log_prob), "probabilities": names}

    def check_probabilities(self) -> None:
        """Raise SaccadeError if outputs have no probability."""


class NumberKind(LabelKind):
    """A number per text (regression)."""

    def make_outputs(self, logits: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        value = float(logits[0, 0])
        return [Hypothesis([], f"{value:.6g}", value, 0.0)]

    def describe(self, text: str, best: Hypothesis) -> dict[str, Any]:
        return {"input": text, "value": best.score if best.text else None}

    def check_probabilities(self) -> None:
        raise SaccadeError("a number has no probability; use predict, or `saccade evaluate`")


class TagKind(LabelKind):
    """A class per word."""

    def select(self, logits: Float[Tensor, "B ..."], index: int, row: Any) -> Float[Tensor, "n C"]:
        return logits[index, row.positions]

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
        """Encode lines; refuse one with the wrong number of texts, or too long a one unless the recipe truncates."""
        limit, places = self.recipe.data.max_length, list(numbers or range(1, len(texts) + 1))
        rows = self._encode_lines(texts, places)
        for number, row in zip(places, rows, strict=True):
            if len(row) > limit:
                raise SaccadeError(
                    f"line {number} has {len(row)} tokens, but the model was made for at most {limit} "
                    f"(data.max_length, <end> included); shorten it, or train with data.truncate=true"
                )
        return rows

    def _encode_lines(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Any]:
        parts = [split_texts(text) for text in texts]
        for number, part in zip(numbers, parts, strict=True):
            self._check_texts(part, number)
        limit = self.recipe.data.max_length if self.recipe.data.truncate else None
        return encode_texts(self.tokenizers.source, parts, max_length=limit)

    def _check_texts(self, texts: Sequence[str], line: int) -> None:
        expected = get_labels(self.loaded).num_texts
        if len(texts) != expected or not all(text.strip() for text in texts):
            form = "one text" if expected == 1 else "two texts with a tab between them"
            raise SaccadeError(f"line {line}: the model labels {form}, got {len(texts)}; change the line")


@dataclass(frozen=True)
class WordRow:
    """Token ids of a text, END last, and the position of the first token of each word."""

    ids: list[int]
    positions: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class WordsCodec(LabelledTextCodec):
    """Reads a text each word of which gets a tag."""

    def _encode_lines(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Any]:
        return [WordRow(*row) for row in encode_words(self.tokenizers.source, texts)]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return super().make_fields([row.ids for row in rows])

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        return super().label_source(row.ids)


LABEL_KINDS = {"number": NumberKind, "tags": TagKind}  # by kind of label; any other gives classes
LABEL_CODECS = {"tags": WordsCodec}


def get_labels(loaded: LoadedModel) -> Labels:
    assert loaded.tokenizers.labels is not None, "a run of this task has labels"
    return loaded.tokenizers.labels


def make_label_codec(loaded: LoadedModel) -> InputCodec:
    return LABEL_CODECS.get(get_labels(loaded).kind, LabelledTextCodec)(loaded)


class LabelDecoder(Decoder):
    """Labels each input with the writer's head over the memory."""

    def __init__(self, loaded: LoadedModel, codec: InputCodec) -> None:
        super().__init__(loaded, codec)
        self.labels = get_labels(loaded)
        self.kind = LABEL_KINDS.get(self.labels.kind, LabelKind)(self.labels)

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        """Return the n_best classes of each text, or its number or tags; an empty line has none."""
        if options.align:
            raise SaccadeError("a label is not written word by word, so nothing can be aligned; leave out align")
        non_empty = [i for i, text in enumerate(texts) if text.strip()]
        lines = [options.first_line + i for i in non_empty]
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        found = self._compute_logits([texts[i] for i in non_empty], options.decoding, lines)
        for i, line, logits in zip(non_empty, lines, found, strict=True):
            if not bool(logits.isfinite().all()):
                raise SaccadeError(
                    f"the model has no finite numbers for line {line}; its weights are not usable, train again"
                )
            outputs[i] = self.kind.make_outputs(logits, options.decoding)
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each given class, or of all given tags of a text."""
        self.kind.check_probabilities()
        scores = []
        found = self._compute_logits([text for text, _ in pairs], self.recipe.predict)
        for logits, (_, label) in zip(found, pairs, strict=True):
            log_probs, label_ids = logits.log_softmax(-1).tolist(), self.labels.encode(label)
            if len(label_ids) != len(log_probs):
                raise SaccadeError(f"there are {len(log_probs)} words and {len(label_ids)} tags; each word needs one")
            scores.append(sum(row[number - 1] for row, number in zip(log_probs, label_ids, strict=True)))
        return scores

    def _compute_logits(
        self, texts: Sequence[str], decoding: Decoding, lines: Sequence[int] | None = None
    ) -> list[Float[Tensor, "n C"]]:
        """Return the writer's logits for each text, or for each of its words."""
        rows = self.codec.encode(texts, "line", numbers=lines)
        outputs: list[Tensor] = [torch.empty(0)] * len(rows)
        with self.loaded.inference():
            for group in group_by_length([len(row) for row in rows], budget=decoding.batch_tokens):
                batch = self.codec.collate([rows[i] for i in group])
                logits = self.loaded.model.writer(self.loaded.model.read(batch)).float().cpu()
                for index, i in enumerate(group):
                    outputs[i] = self.kind.select(logits, index, rows[i])
        return outputs


class LabelPresenter(Presenter):
    """A label, and the attention of the reader, because labels are not decoded token by token."""

    decoder: LabelDecoder

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        return self.decoder.kind.describe(text, hypotheses[0])

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        if target is not None:
            raise SaccadeError(
                f"a label is not written word by word, so there is no target, got {target!r}; leave it out"
            )
        return record_reader_attention(self.codec, self._encode(source), self.decoder.predict([source])[0])

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Display the reader's attention; for a picture, a target `ROW,COLUMN` selects the query cell."""
        cell = None if target is None else self.codec.find_cell(target)
        row, output = self._encode(source), self.decoder.predict([source])[0]
        maps = record_reader_attention(self.codec, row, output, cell=cell)
        view = make_view(self.codec, maps, source, row, output=output, title=title)
        return label_query(view, cell) if self.codec.medium else view

    def _encode(self, source: str) -> Any:
        if not source.strip():
            raise SaccadeError("attention needs a text, got an empty one")
        return self.codec.encode([source], "line")[0]


def label_query(view: View, cell: int | None) -> View:
    """Name the single query of attention maps over a file: the label for the class token or mean, or the cell."""
    label = {"target": [view.output if cell is None else f"from {view.labels['source'][cell]}"]}
    maps = [
        replace(one, rows="target", labels={**label, one.columns: one.labels[one.columns]})
        if len(one.labels[one.rows]) == 1
        else one
        for one in view.maps
    ]
    axis_labels = {name: labels for one in maps for name, labels in one.labels.items()}
    return replace(view, maps=maps, labels={**label, "source": view.labels["source"], **axis_labels})


class Labeller(Predictor):
    """Texts in, labels out; a pair of texts is one line with a tab between them."""

    default_parts = PredictorParts(make_label_codec, LabelDecoder, LabelPresenter)
