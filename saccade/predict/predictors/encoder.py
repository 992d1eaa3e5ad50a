"""A trained encoder put to use: hidden words filled in, vectors of texts, and how likely a text is."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.special_tokens import MASK, find_mask, mask_of, special_runs
from saccade.data.tokenization.tokenizers import END, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.model.writers.labels import pooled
from saccade.model.writers.masked import StatesWriter
from saccade.predict.inputs import Asked
from saccade.predict.lines import groups_by_length
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.language import BLOCK, Fit, ScoredText, TokenScore
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.reading import maps_of, view_of
from saccade.view.viewing import View

Pooling = Literal["mean", "first"]
POOLINGS = ("mean", "first")


class Encoder(Predictor):
    """Texts with [MASK] in them in, the same with words in its place out; or vectors of texts."""

    supports_embedding = True
    supports_likelihood = True
    hides = True

    def embed(self, texts: Sequence[str], *, pool: Pooling = "mean", normalise: bool = True) -> np.ndarray:
        """A row for each text: the mean of its states, or the first one, by default of length 1."""
        if isinstance(texts, str):
            raise SaccadeError(f"expected a list of texts, got the single text {texts[:20]!r}; put it in a list")
        if pool not in POOLINGS:
            raise SaccadeError(f"texts are embedded by one of {', '.join(POOLINGS)}, got {pool!r}")
        rows = self._encode(self.tokenizers.source, texts, "text")
        found = np.zeros((len(rows), self._reader.dim), dtype=np.float32)
        with self._inference():
            for group in groups_by_length([len(row) for row in rows], budget=self.recipe.predict.batch_tokens):
                memory: Any = self.model.read(self._batch(source=[rows[i] for i in group]))
                vectors = pooled(memory, pool)
                vectors = torch.nn.functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
                found[group] = vectors.cpu().numpy()
        return found

    def token_scores(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """The log-probability of each token where it alone is hidden; what is too long is cut into windows."""
        rows = self._texts(texts)
        labels = [self.tokenizers.source.labels(row) for row in rows]
        return [
            [TokenScore(*pair) for pair in zip(names, self._alone(row), strict=True)]
            for names, row in zip(labels, rows, strict=True)
        ]

    def fit(self, documents: Iterable[str], *, each: Callable[[ScoredText], None] | None = None) -> Fit:
        """How likely all tokens of the documents are, each where it alone is hidden (Salazar et al. 2020)."""
        parts, found = list[Fit](), iter(documents)
        while block := list(islice(found, BLOCK)):
            rows = self._texts(block)
            values = [self._alone(row) for row in rows]
            for text, row, measured in zip(block, rows, values, strict=True) if each else ():
                each(ScoredText(text, self.tokenizers.source.labels(row), measured))  # type: ignore[misc]
            unknown = sum(row.count(UNKNOWN) for row in rows)
            size = sum(len(text.encode()) for text in block)
            parts.append(Fit(-sum(map(sum, values)), sum(map(len, rows)), size, len(block), unknown))
        return Fit(*map(sum, zip(*parts, strict=True))) if parts else Fit(0.0, 0, 0, 0, 0)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("this model writes nothing about a text; ask for token_scores of texts")

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What was filled into one text, for JSON."""
        labels = self.tokenizers.source.labels
        candidates = [
            {
                "output": item.text, "fillings": [label.strip("␣") for label in labels(item.ids)],
                "probability": item.score, "probabilities": [math.exp(value) for value in item.log_probs or []],
            }
            for item in found
        ]  # fmt: skip
        return {"input": text, **candidates[0], "candidates": candidates}

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """The weights of every layer and head of the reader."""
        return maps_of(self, self._looked_at(source, target), source)

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """The same to be shown."""
        return view_of(self, self._looked_at(source, target), source, title=title)

    def check_writes(self) -> None:
        """Refuses to go on where vectors are all that there is."""
        if isinstance(self.model.writer, StatesWriter):
            raise SaccadeError(
                "this encoder has no head over the vocabulary, so that it fills in nothing; ask for vectors of texts "
                "(--embed mean, or embed in Python)"
            )

    # ---- inside

    @property
    def _reader(self) -> Any:
        return self.model.reader

    def _looked_at(self, source: str, target: str | None) -> list[int]:
        if target is not None:
            raise SaccadeError(f"an encoder reads and writes nothing, so that there is no target, got {target!r}")
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        return self._encode(self.tokenizers.source, [self._said(source)], "source")[0]

    def _said(self, text: str) -> str:
        """[MASK] under the name that the tokenizer has for it."""
        mask = find_mask(self.tokenizers.source)
        if mask is None or MASK not in text:
            return text
        return text.replace(MASK, str(self.tokenizers.source.core.id_to_token(self.tokenizers.source.order[mask])))

    def _decode_lines(self, texts: Sequence[str], asked: Asked) -> list[list[Hypothesis]]:
        """The n_best ways to fill in each text; an empty line stays empty."""
        decoding, first = asked.decoding, asked.first
        self._check_asked(decoding, align=asked.align)
        mask = mask_of(self.tokenizers.source)
        rows = self._encode(self.tokenizers.source, [self._said(text) for text in texts], "line", first=first)
        full = [i for i, text in enumerate(texts) if text.strip()]
        for i in full:
            if mask not in rows[i]:
                raise SaccadeError(
                    f"line {first + i} has no {MASK} to fill in; write {MASK} where a word is missing, or ask for "
                    "vectors of texts (--embed mean)"
                )
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        with self._inference():
            groups = groups_by_length([len(rows[i]) for i in full], budget=decoding.batch_tokens)
            for group in ([full[j] for j in part] for part in groups):
                batch = self._batch(source=[rows[i] for i in group])
                states = self._hidden_states(batch, batch["source"].ids == mask)
                values, ids = self._likely(states, decoding.n_best)
                at = 0
                for i in group:
                    places = [place for place, number in enumerate(rows[i]) if number == mask]
                    part = slice(at, at + len(places))
                    at += len(places)
                    outputs[i] = self._filled(rows[i], places, values[part], ids[part], most=decoding.n_best)
        return outputs

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str], what: str, *, first: int = 1) -> list[list[int]]:
        """With what the tokenizer puts behind a text that is read whole (<cls> of XLNet)."""
        return [[*row, *tokenizer.after] for row in super()._encode(tokenizer, texts, what, first=first)]

    def _hidden_states(self, batch: Batch, hidden: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """What is known of the tokens that are hidden."""
        memory: Any = self.model.read(batch)
        return memory.states[hidden]

    def _likely(self, states: Float[Tensor, "m D"], count: int) -> tuple[list[list[float]], list[list[int]]]:
        """The log-probabilities and ids of the likeliest pieces of text, for each hidden token."""
        logs = self._logits(states).log_softmax(-1)
        if not bool(logs.isfinite().all()):
            raise SaccadeError("the model has no finite probabilities; its weights are not usable, train again")
        logs[:, : UNKNOWN + 1] = -math.inf
        for begin, size in special_runs(self.tokenizers.source):
            logs[:, begin : begin + size] = -math.inf
        values, ids = logs.topk(min(count, logs.shape[1]))
        return values.tolist(), ids.tolist()

    def _filled(
        self, row: list[int], places: list[int], values: list[list[float]], ids: list[list[int]], *, most: int
    ) -> list[Hypothesis]:
        """The likeliest ways to fill all places, each token independent of the others."""
        ways: list[tuple[float, list[tuple[float, int]]]] = [(0.0, [])]
        for logs, pieces in zip(values, ids, strict=True):
            chosen = list(zip(logs, pieces, strict=True))
            longer = ((total + log, [*way, (log, id)]) for total, way in ways for log, id in chosen)
            ways = heapq.nlargest(most, longer, key=lambda way: way[0])
        made = []
        for total, way in ways:
            filled = dict(zip(places, (id for _, id in way), strict=True))
            text = self.tokenizers.source.decode([filled.get(place, id) for place, id in enumerate(row)])
            logs = [log for log, _ in way]
            made.append(Hypothesis([id for _, id in way], text, math.exp(total), total, log_probs=logs))
        return made

    def _logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.model.writer.head(self.model.writer(states)).float()

    def _texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts without what stands around them."""
        self.check_writes()
        begin = len(self.tokenizers.source.begin)
        return [row[begin:-1] for row in self.tokenizers.source.encode_all(texts)]

    def _alone(self, ids: list[int]) -> list[float]:
        """The log-probability of each token where it is hidden, all others of its window given."""
        begin, mask = list(self.tokenizers.source.begin), mask_of(self.tokenizers.source)
        room, values = self.recipe.data.max_length - len(begin) - 1, list[float]()
        with self._inference():
            for first in range(0, len(ids), room):
                row = torch.tensor([*begin, *ids[first : first + room], END], device=self.device)
                places = torch.arange(len(begin), len(row) - 1, device=self.device)
                for some in places.split(max(1, self.recipe.predict.batch_tokens // len(row))):
                    hidden = row.repeat(len(some), 1)
                    hidden[torch.arange(len(some)), some] = mask
                    states = self._reader(hidden, torch.ones_like(hidden, dtype=torch.bool)).states
                    logs = self._logits(states[torch.arange(len(some)), some]).log_softmax(-1)
                    values += logs.gather(1, row[some][:, None])[:, 0].tolist()
        return values

    def _check_asked(self, decoding: Decoding, *, align: bool) -> None:
        self.check_writes()
        if align:
            raise SaccadeError("hidden words are not written one by one, so that nothing can be aligned; leave it out")
        if decoding.sample:
            raise SaccadeError("an encoder fills in the likeliest words; sample=true says nothing to it, leave it out")
