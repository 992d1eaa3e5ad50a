"""A trained run that labels texts: a class for each, a number for each, or a tag for each word."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.tokenization.text_pairs import encode_texts, separated
from saccade.data.tokenization.words import Worded, encode_words
from saccade.errors import SaccadeError
from saccade.predict.inputs import Asked
from saccade.predict.lines import groups_by_length
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.reading import maps_of, view_of
from saccade.view.viewing import View


class Labeller(Predictor):
    """Texts in, labels out; of a pair of texts, both stand in one line with a tab between them."""

    gives_labels = True

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each given class, or of all given tags of a text."""
        if self.labels.kind == "number":
            raise SaccadeError("a number has no probability; use predict, or `saccade evaluate`")
        scores = []
        for (_, places), logs, (_, label) in zip(*self._log_probs([text for text, _ in pairs]), pairs, strict=True):
            given = self.labels.encode(label)
            if len(given) != len(places):
                raise SaccadeError(f"there are {len(places)} words and {len(given)} tags; each word needs one")
            scores.append(sum(row[number - 1] for row, number in zip(logs, given, strict=True)))
        return scores

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What is said of one text, for JSON."""
        best = found[0]
        if self.labels.kind == "number":
            return {"input": text, "value": best.score if best.text else None}
        probabilities = [math.exp(value) for value in best.log_probs or []]
        if self.labels.kind == "tags":
            return {"input": text, "words": text.split(), "tags": best.text.split(), "probabilities": probabilities}
        names = dict(zip(self.labels.names, probabilities, strict=False))
        return {"input": text, "label": best.text, "probability": math.exp(best.log_prob), "probabilities": names}

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """The weights of every layer and head of the reader; no label is looked for in what was read."""
        return maps_of(self, self._looked_at(source, target), self.predict([source])[0])

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """The same to be shown, with the label."""
        return view_of(self, self._looked_at(source, target), source, output=self.predict([source])[0], title=title)

    # ---- inside

    def _looked_at(self, source: str, target: str | None) -> list[int]:
        if target is not None:
            raise SaccadeError(f"a label is not written word by word, so that there is no target, got {target!r}")
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        return self._rows([source], first=1)[0].ids

    def _decode_lines(self, texts: Sequence[str], asked: Asked) -> list[list[Hypothesis]]:
        """The n_best classes of each text, or its number or tags; an empty line has none."""
        decoding, first = asked.decoding, asked.first
        if asked.align:
            raise SaccadeError("a label is not written word by word, so that nothing can be aligned; ask without align")
        full = [i for i, text in enumerate(texts) if text.strip()]
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        rows, numbers = self._numbers([texts[i] for i in full], first=first, lines=full)
        for i, row, found in zip(full, rows, numbers, strict=True):
            if not bool(found.isfinite().all()):
                raise SaccadeError(
                    f"the model has no finite numbers for line {first + i}; its weights are not usable, train again"
                )
            outputs[i] = self._said(row, found, decoding)
        return outputs

    def _said(self, row: Worded, numbers: Float[Tensor, "n C"], decoding: Decoding) -> list[Hypothesis]:
        if self.labels.kind == "number":
            value = float(numbers[0, 0])
            return [Hypothesis([], f"{value:.6g}", value, 0.0)]
        logs = numbers.log_softmax(-1)
        if self.labels.kind == "tags":
            values, chosen = logs.max(-1)
            text = " ".join(self.labels.names[number] for number in chosen.tolist())
            return [
                Hypothesis(chosen.tolist(), text, float(values.sum()), float(values.sum()), log_probs=values.tolist())
            ]
        values, chosen = logs[0].topk(min(decoding.n_best, self.labels.size))
        return [
            Hypothesis([number], self.labels.names[number], value, value, log_probs=logs[0].tolist())
            for number, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]

    def _log_probs(self, texts: Sequence[str]) -> tuple[list[Worded], list[list[list[float]]]]:
        rows, numbers = self._numbers(texts, first=1)
        return rows, [found.log_softmax(-1).tolist() for found in numbers]

    def _numbers(
        self, texts: Sequence[str], *, first: int, lines: Sequence[int] | None = None
    ) -> tuple[list[Worded], list[Float[Tensor, "n C"]]]:
        """What the writer gives for each text, or for each of its words; and the rows that were read."""
        rows = self._rows(texts, first=first, lines=lines)
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        with self._inference():
            lengths = [len(row.ids) for row in rows]
            for group in groups_by_length(lengths, budget=self.recipe.predict.batch_tokens):
                batch = self._batch(source=[rows[i].ids for i in group])
                numbers = self.model.writer(self.model.read(batch)).float().cpu()
                for at, i in enumerate(group):
                    found[i] = numbers[at, rows[i].places] if self.labels.kind == "tags" else numbers[at : at + 1]
        return rows, found

    def _rows(self, texts: Sequence[str], *, first: int, lines: Sequence[int] | None = None) -> list[Worded]:
        """The ids of each line and where its words are; one that is too long, or has other texts, is refused."""
        limit, numbers = self.recipe.data.max_length, lines if lines is not None else range(len(texts))
        if self.labels.kind == "tags":
            rows = encode_words(self.tokenizers.source, texts)
        else:
            parts = [separated(text) for text in texts]
            for number, part in zip(numbers, parts, strict=True):
                self._check_texts(part, first + number)
            cut = limit if self.recipe.data.cut else None
            rows = [Worded(ids, [0]) for ids in encode_texts(self.tokenizers.source, parts, limit=cut)]
        for number, row in zip(numbers, rows, strict=True):
            if len(row.ids) > limit:
                raise SaccadeError(
                    f"line {first + number} has {len(row.ids)} tokens, but the model was made for at most {limit} "
                    f"(data.max_length, <end> included); shorten it, or train with data.cut=true"
                )
        return rows

    def _check_texts(self, texts: Sequence[str], line: int) -> None:
        wanted = self.labels.texts
        if len(texts) != wanted or not all(text.strip() for text in texts):
            form = "one text" if wanted == 1 else "two texts with a tab between them"
            raise SaccadeError(f"line {line}: the model labels {form}, got {len(texts)}; change the line")

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many texts stand before the first one that is refused."""
        if self._fits(texts):
            return len(texts)
        return next(index for index, text in enumerate(texts) if not self._fits([text]))

    def _fits(self, texts: Sequence[str]) -> bool:
        try:
            self._rows([text for text in texts if text.strip()], first=1)
        except SaccadeError:
            return False
        return True
