"""Inference with a trained encoder: filling masked tokens, embeddings, and pseudo-likelihood."""

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
from saccade.data.tokenization.special_tokens import MASK_TOKEN, find_mask_id, find_special_ranges, get_mask_id
from saccade.data.tokenization.tokenizers import END, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.model.writers.labels import pool_states
from saccade.model.writers.masked import StatesWriter
from saccade.predict.attention_maps import make_view, record_reader_attention
from saccade.predict.lines import group_by_length
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.language import CorpusLikelihood, ScoredText, TokenScore, score_documents, score_tokens
from saccade.predict.predictors.parts import Decoder, DecodingOptions, PredictorParts, Presenter
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec
from saccade.view.viewing import View

Pooling = Literal["mean", "first"]
POOLINGS = ("mean", "first")


class MaskedTextCodec(TextCodec):
    """Reads text with [MASK] in place of missing tokens."""

    def prepare(self, text: str) -> str:
        mask = find_mask_id(self.tokenizers.source)
        if mask is None or MASK_TOKEN not in text:
            return text
        return text.replace(
            MASK_TOKEN, str(self.tokenizers.source.backend.id_to_token(self.tokenizers.source.library_ids[mask]))
        )

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """Encode texts, with the tokens that the tokenizer appends to a whole text (<cls> of XLNet)."""
        after = self.tokenizers.source.suffix_ids
        return [[*row, *after] for row in super().encode(texts, what, numbers=numbers)]


class MaskDecoder(Decoder):
    """Fills in masked tokens (BERT), and scores each token of a text with that token alone masked."""

    uses_pseudo_likelihood = True  # whether a token is scored given all others

    @property
    def likelihood_tokenizer(self) -> Tokenizer:
        return self.tokenizers.source

    @property
    def reader(self) -> Reader:
        return self.loaded.single.reader

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        """Return the n_best ways to fill in each text; an empty line stays empty."""
        decoding, first = options.decoding, options.first_line
        self._check_options(options)
        mask = get_mask_id(self.tokenizers.source)
        numbers = range(first, first + len(texts))
        rows = self.codec.encode([self.codec.prepare(text) for text in texts], "line", numbers=numbers)
        non_empty = [i for i, text in enumerate(texts) if text.strip()]
        for i in non_empty:
            if mask not in rows[i]:
                raise SaccadeError(
                    f"line {first + i} has no {MASK_TOKEN} to fill in; write {MASK_TOKEN} where a word is missing, or "
                    "ask for embeddings of texts (--embed mean)"
                )
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        with self.loaded.inference():
            groups = group_by_length([len(rows[i]) for i in non_empty], budget=decoding.batch_tokens)
            for group in ([non_empty[j] for j in part] for part in groups):
                batch = self.codec.collate([rows[i] for i in group])
                states = self._compute_masked_states(batch, batch["source"].ids == mask)
                values, ids = self._select_top_tokens(states, decoding.n_best)
                offset = 0
                for i in group:
                    positions = [position for position, token in enumerate(rows[i]) if token == mask]
                    part = slice(offset, offset + len(positions))
                    offset += len(positions)
                    outputs[i] = self._combine_fillings(
                        rows[i], positions, values[part], ids[part], n_best=decoding.n_best
                    )
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("this model does not generate text; use token_scores")

    def check_writes(self) -> None:
        if medium := self.codec.medium:
            raise SaccadeError(
                f"this model has no output for a {medium}; ask for embeddings of {medium}s (--embed mean, or embed in "
                "Python), or train another model with init=RUN"
            )
        if isinstance(self.loaded.model.writer, StatesWriter):
            raise SaccadeError(
                "this encoder has no head over the vocabulary, so it cannot fill in words; ask for embeddings of texts "
                "(--embed mean, or embed in Python)"
            )

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Return token ids without special tokens."""
        self.check_writes()
        begin = len(self.tokenizers.source.prefix_ids)
        return [row[begin:-1] for row in self.tokenizers.source.encode_all(texts)]

    def compute_log_probs(self, rows: Sequence[list[int]]) -> list[list[float]]:
        return [self._compute_row_log_probs(row) for row in rows]

    def _compute_row_log_probs(self, ids: list[int]) -> list[float]:
        """Return the log-probability of each token with that token masked, given all others of its window."""
        tokenizer, device = self.tokenizers.source, self.loaded.device
        begin, mask = list(tokenizer.prefix_ids), get_mask_id(tokenizer)
        window, values = self.recipe.data.max_length - len(begin) - 1, list[float]()
        with self.loaded.inference():
            for first in range(0, len(ids), window):
                row = torch.tensor([*begin, *ids[first : first + window], END], device=device)
                positions = torch.arange(len(begin), len(row) - 1, device=device)
                for chunk in positions.split(max(1, self.recipe.predict.batch_tokens // len(row))):
                    masked = row.repeat(len(chunk), 1)
                    masked[torch.arange(len(chunk)), chunk] = mask
                    states = self.reader(masked, torch.ones_like(masked, dtype=torch.bool)).states
                    log_probs = self._compute_logits(states[torch.arange(len(chunk)), chunk]).log_softmax(-1)
                    values += log_probs.gather(1, row[chunk][:, None])[:, 0].tolist()
        return values

    def _compute_masked_states(self, batch: Batch, masked: Bool[Tensor, "B T"]) -> Float[Tensor, "m D"]:
        """Return the hidden states at masked positions."""
        memory: Any = self.loaded.model.read(batch)
        return memory.states[masked]

    def _compute_logits(self, states: Float[Tensor, "m D"]) -> Float[Tensor, "m V"]:
        return self.loaded.model.writer.head(self.loaded.model.writer(states)).float()

    def _select_top_tokens(self, states: Float[Tensor, "m D"], count: int) -> tuple[list[list[float]], list[list[int]]]:
        """Return log-probabilities and ids of the most probable text tokens at each masked position."""
        log_probs = self._compute_logits(states).log_softmax(-1)
        if not bool(log_probs.isfinite().all()):
            raise SaccadeError("the model has no finite probabilities; its weights are not usable, train again")
        log_probs[:, : UNKNOWN + 1] = -math.inf
        for begin, size in find_special_ranges(self.tokenizers.source):
            log_probs[:, begin : begin + size] = -math.inf
        values, ids = log_probs.topk(min(count, log_probs.shape[1]))
        return values.tolist(), ids.tolist()

    def _combine_fillings(
        self, row: list[int], positions: list[int], values: list[list[float]], ids: list[list[int]], *, n_best: int
    ) -> list[Hypothesis]:
        """Return the n_best joint fillings of all positions; tokens are independent of each other."""
        beams: list[tuple[float, list[tuple[float, int]]]] = [(0.0, [])]
        for log_probs, tokens in zip(values, ids, strict=True):
            choices = list(zip(log_probs, tokens, strict=True))
            extended = ((total + log, [*filling, (log, id)]) for total, filling in beams for log, id in choices)
            beams = heapq.nlargest(n_best, extended, key=lambda filling: filling[0])
        hypotheses = []
        for total, filling in beams:
            filled = dict(zip(positions, (id for _, id in filling), strict=True))
            text = self.tokenizers.source.decode([filled.get(position, id) for position, id in enumerate(row)])
            log_probs = [log for log, _ in filling]
            hypotheses.append(Hypothesis([id for _, id in filling], text, math.exp(total), total, log_probs=log_probs))
        return hypotheses

    def _check_options(self, options: DecodingOptions) -> None:
        self.check_writes()
        if options.align:
            raise SaccadeError("masked words are not written one by one, so nothing can be aligned; leave it out")
        if options.decoding.sample:
            raise SaccadeError("an encoder fills in the most probable words and does not sample; leave out sample=true")


class FillPresenter(Presenter):
    """Filled-in tokens, and the attention of the reader."""

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        labels = self.loaded.tokenizers.source.convert_ids_to_tokens
        candidates = [
            {
                "output": item.text, "fillings": [label.strip("␣") for label in labels(item.ids)],
                "probability": item.score, "probabilities": [math.exp(value) for value in item.log_probs or []],
            }
            for item in hypotheses
        ]  # fmt: skip
        return {"input": text, **candidates[0], "candidates": candidates}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return record_reader_attention(self.codec, self._encode(source, target), source)

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        row = self._encode(source, target)
        return make_view(self.codec, record_reader_attention(self.codec, row, ""), source, row, output="", title=title)

    def _encode(self, source: str, target: str | None) -> Any:
        if target is not None:
            raise SaccadeError(f"an encoder has no output, so there is no target, got {target!r}; leave it out")
        if not source.strip():
            raise SaccadeError("attention needs a text, got an empty one")
        return self.codec.encode([self.codec.prepare(source)], "source")[0]


class Encoder(Predictor):
    """Fills in [MASK] in texts, or embeds texts."""

    default_parts = PredictorParts(MaskedTextCodec, MaskDecoder, FillPresenter)
    supports_embedding = True
    decoder: MaskDecoder

    @property
    def uses_pseudo_likelihood(self) -> bool:
        """Whether `compute_likelihood` scores each token given all others (pseudo-likelihood)."""
        return self.decoder.uses_pseudo_likelihood

    def embed(self, texts: Sequence[str], *, pool: Pooling = "mean", normalise: bool = True) -> np.ndarray:
        """Return one row per text: the mean or the first of its hidden states, by default normalized to length 1."""
        self.codec.check_list(texts)
        if pool not in POOLINGS:
            raise SaccadeError(f"texts are embedded by one of {', '.join(POOLINGS)}, got {pool!r}")
        return np.concatenate([self._embed(part, pool, normalise) for part in self.codec.split(texts) or [texts]])

    def _embed(self, texts: Sequence[str], pool: Pooling, normalise: bool) -> np.ndarray:
        rows = self.codec.encode(texts, "text")
        embeddings = np.zeros((len(rows), self.decoder.reader.dim), dtype=np.float32)
        with self.inference():
            for group in group_by_length([len(row) for row in rows], budget=self.recipe.predict.batch_tokens):
                memory: Any = self.model.read(self.codec.collate([rows[i] for i in group]))
                vectors = pool_states(memory, pool)
                vectors = torch.nn.functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
                embeddings[group] = vectors.cpu().numpy()
        return embeddings

    def token_scores(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """Return the log-probability of each token with that token masked; long texts are split into windows."""
        return score_tokens(self.decoder, texts)

    def compute_likelihood(
        self, documents: Iterable[str], *, on_document: Callable[[ScoredText], None] | None = None
    ) -> CorpusLikelihood:
        """Sum the pseudo-log-likelihood of documents (Salazar et al. 2020): each token is masked alone."""
        return score_documents(self.decoder, documents, on_document)
