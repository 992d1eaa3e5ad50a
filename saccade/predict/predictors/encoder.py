"""A trained encoder put to use: masked tokens filled in, embeddings, and how likely a text is."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.config.protocols import Reader
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.special_tokens import MASK, find_mask, mask_of, special_runs
from saccade.data.tokenization.tokenizers import END, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.model.writers.labels import pooled
from saccade.model.writers.masked import StatesWriter
from saccade.predict.lines import groups_by_length
from saccade.predict.looking import make_view, record_reading
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.language import Fit, ScoredText, TokenScore, fit_documents, score_tokens
from saccade.predict.predictors.parts import Decoder, Options, Parts, Presenter
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec
from saccade.view.viewing import View

Pooling = Literal["mean", "first"]
POOLINGS = ("mean", "first")


class MaskedTextCodec(TextCodec):
    """Reads text with [MASK] where tokens are missing."""

    def prepare(self, text: str) -> str:
        mask = find_mask(self.tokenizers.source)
        if mask is None or MASK not in text:
            return text
        return text.replace(MASK, str(self.tokenizers.source.core.id_to_token(self.tokenizers.source.order[mask])))

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """With what the tokenizer puts behind a text that is read whole (<cls> of XLNet)."""
        after = self.tokenizers.source.after
        return [[*row, *after] for row in super().encode(texts, what, numbers=numbers)]


class MaskDecoder(Decoder):
    """Fills in masked tokens (BERT), and measures each token of a text where it alone is masked."""

    hides = True  # whether a token is measured with all others given

    @property
    def measured(self) -> Tokenizer:
        return self.tokenizers.source

    @property
    def reader(self) -> Reader:
        return self.loaded.single.reader

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        """The n_best ways to fill in each text; an empty line stays empty."""
        decoding, first = options.decoding, options.first
        self._check_options(options)
        mask = mask_of(self.tokenizers.source)
        numbers = range(first, first + len(texts))
        rows = self.codec.encode([self.codec.prepare(text) for text in texts], "line", numbers=numbers)
        full = [i for i, text in enumerate(texts) if text.strip()]
        for i in full:
            if mask not in rows[i]:
                raise SaccadeError(
                    f"line {first + i} has no {MASK} to fill in; write {MASK} where a word is missing, or ask for "
                    "vectors of texts (--embed mean)"
                )
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        with self.loaded.inference():
            groups = groups_by_length([len(rows[i]) for i in full], budget=decoding.batch_tokens)
            for group in ([full[j] for j in part] for part in groups):
                batch = self.codec.collate([rows[i] for i in group])
                states = self._masked_states(batch, batch["source"].ids == mask)
                values, ids = self._likely(states, decoding.n_best)
                at = 0
                for i in group:
                    places = [place for place, number in enumerate(rows[i]) if number == mask]
                    part = slice(at, at + len(places))
                    at += len(places)
                    outputs[i] = self._filled(rows[i], places, values[part], ids[part], most=decoding.n_best)
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("this model writes nothing about a text; ask for token_scores of texts")

    def check_writes(self) -> None:
        if medium := self.codec.medium:
            raise SaccadeError(
                f"this model writes nothing about a {medium}; ask for vectors of {medium}s (--embed mean, or embed in "
                "Python), or train with init=RUN what does"
            )
        if isinstance(self.loaded.model.writer, StatesWriter):
            raise SaccadeError(
                "this encoder has no head over the vocabulary, so that it fills in nothing; ask for vectors of texts "
                "(--embed mean, or embed in Python)"
            )

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Token ids without special tokens."""
        self.check_writes()
        begin = len(self.tokenizers.source.begin)
        return [row[begin:-1] for row in self.tokenizers.source.encode_all(texts)]

    def measure_rows(self, rows: Sequence[list[int]]) -> list[list[float]]:
        return [self._measure(row) for row in rows]

    def _measure(self, ids: list[int]) -> list[float]:
        """The log-probability of each token where it is masked, all others of its window given."""
        begin, mask, device = list(self.tokenizers.source.begin), mask_of(self.tokenizers.source), self.loaded.device
        room, values = self.recipe.data.max_length - len(begin) - 1, list[float]()
        with self.loaded.inference():
            for first in range(0, len(ids), room):
                row = torch.tensor([*begin, *ids[first : first + room], END], device=device)
                places = torch.arange(len(begin), len(row) - 1, device=device)
                for some in places.split(max(1, self.recipe.predict.batch_tokens // len(row))):
                    hidden = row.repeat(len(some), 1)
                    hidden[torch.arange(len(some)), some] = mask
                    states = self.reader(hidden, torch.ones_like(hidden, dtype=torch.bool)).states
                    logs = self._logits(states[torch.arange(len(some)), some]).log_softmax(-1)
                    values += logs.gather(1, row[some][:, None])[:, 0].tolist()
        return values

    def _masked_states(self, batch: Batch, masked: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """The hidden states at masked positions."""
        memory: Any = self.loaded.model.read(batch)
        return memory.states[masked]

    def _logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.loaded.model.writer.head(self.loaded.model.writer(states)).float()

    def _likely(self, states: Float[Tensor, "m D"], count: int) -> tuple[list[list[float]], list[list[int]]]:
        """The log-probabilities and ids of the likeliest tokens that are text, for each masked position."""
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

    def _check_options(self, options: Options) -> None:
        self.check_writes()
        if options.align:
            raise SaccadeError("hidden words are not written one by one, so that nothing can be aligned; leave it out")
        if options.decoding.sample:
            raise SaccadeError("an encoder fills in the likeliest words; sample=true says nothing to it, leave it out")


class FillPresenter(Presenter):
    """Filled-in tokens, and the attention of the reader."""

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        labels = self.loaded.tokenizers.source.labels
        candidates = [
            {
                "output": item.text, "fillings": [label.strip("␣") for label in labels(item.ids)],
                "probability": item.score, "probabilities": [math.exp(value) for value in item.log_probs or []],
            }
            for item in found
        ]  # fmt: skip
        return {"input": text, **candidates[0], "candidates": candidates}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return record_reading(self.codec, self._encode(source, target), source)

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        row = self._encode(source, target)
        return make_view(self.codec, record_reading(self.codec, row, ""), source, row, output="", title=title)

    def _encode(self, source: str, target: str | None) -> Any:
        if target is not None:
            raise SaccadeError(f"an encoder reads and writes nothing, so that there is no target, got {target!r}")
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        return self.codec.encode([self.codec.prepare(source)], "source")[0]


class Encoder(Predictor):
    """Texts with [MASK] in them in, the same with words in its place out; or vectors of texts."""

    default_parts = Parts(MaskedTextCodec, MaskDecoder, FillPresenter)
    supports_embedding = True
    decoder: MaskDecoder

    @property
    def hides(self) -> bool:
        """Whether `fit` measures each token with all others given (pseudo-likelihood)."""
        return self.decoder.hides

    def embed(self, texts: Sequence[str], *, pool: Pooling = "mean", normalise: bool = True) -> np.ndarray:
        """A row for each text: the mean of its states, or the first one, by default of length 1."""
        self.codec.check_list(texts)
        if pool not in POOLINGS:
            raise SaccadeError(f"texts are embedded by one of {', '.join(POOLINGS)}, got {pool!r}")
        return np.concatenate([self._embed(part, pool, normalise) for part in self.codec.split(texts) or [texts]])

    def _embed(self, texts: Sequence[str], pool: Pooling, normalise: bool) -> np.ndarray:
        rows = self.codec.encode(texts, "text")
        found = np.zeros((len(rows), self.decoder.reader.dim), dtype=np.float32)
        with self.inference():
            for group in groups_by_length([len(row) for row in rows], budget=self.recipe.predict.batch_tokens):
                memory: Any = self.model.read(self.codec.collate([rows[i] for i in group]))
                vectors = pooled(memory, pool)
                vectors = torch.nn.functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
                found[group] = vectors.cpu().numpy()
        return found

    def token_scores(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """The log-probability of each token where it alone is hidden; what is too long is cut into windows."""
        return score_tokens(self.decoder, texts)

    def fit(self, documents: Iterable[str], *, each: Callable[[ScoredText], None] | None = None) -> Fit:
        """How likely all tokens of the documents are, each where it alone is hidden (Salazar et al. 2020)."""
        return fit_documents(self.decoder, documents, each)
