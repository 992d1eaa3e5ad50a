"""Inference with a language model: continuations of prompts, and log-probabilities of texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.predict.attention_maps import AttentionExample
from saccade.predict.decode import count_rows_per_input
from saccade.predict.lines import group_by_length
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import Decoder, DecodingOptions, PredictorParts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec, TextPresenter, check_finite
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.predict.search.prompted import build_stop_rule, find_first_stop
from saccade.predict.search.request import Request
from saccade.predict.search.run import stream_tokens
from saccade.predict.search.trace import trace_search

DOCUMENTS_PER_BLOCK = 256  # documents that are scored together
REPLACEMENT_CHARACTER = "\ufffd"  # what an incomplete UTF-8 character is decoded to


class TokenScore(NamedTuple):
    """A token and its log-probability."""

    token: str
    log_prob: float


class ScoredText(NamedTuple):
    """A document with the log-probability of each of its tokens, END last."""

    text: str
    tokens: list[str]
    log_probs: list[float]


class CorpusLikelihood(NamedTuple):
    """Negative log-likelihood of some documents."""

    nll: float  # sum over all tokens, in nats
    tokens: int  # END of each document included
    bytes: int  # of the texts in UTF-8
    documents: int
    unknown: int  # unknown tokens, which are easier to predict than the words they stand for


class TokenLikelihood(Protocol):
    """A decoder that scores texts token by token."""

    @property
    def likelihood_tokenizer(self) -> Tokenizer:
        """The tokenizer of the scored texts."""
        ...

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Return token ids; for documents, including the tokens that the model predicts at their ends."""
        ...

    def compute_log_probs(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each row."""
        ...


def score_tokens(decoder: TokenLikelihood, texts: Sequence[str]) -> list[list[TokenScore]]:
    """Return the log-probability of each token of each text."""
    rows = decoder.encode_texts(texts, documents=False)
    labels = [decoder.likelihood_tokenizer.convert_ids_to_tokens(row) for row in rows]
    scores = zip(labels, decoder.compute_log_probs(rows), strict=True)
    return [[TokenScore(*pair) for pair in zip(names, row, strict=True)] for names, row in scores]


def score_documents(
    decoder: TokenLikelihood, documents: Iterable[str], on_document: Callable[[ScoredText], None] | None
) -> CorpusLikelihood:
    """Sum the negative log-likelihood of documents, in windows that do not overlap.

    `on_document` is called with the scores of each document.
    """
    parts, remaining = list[CorpusLikelihood](), iter(documents)
    while block := list(islice(remaining, DOCUMENTS_PER_BLOCK)):
        rows = decoder.encode_texts(block, documents=True)
        values = decoder.compute_log_probs(rows)
        if on_document is not None:
            for text, row, log_probs in zip(block, rows, values, strict=True):
                on_document(ScoredText(text, decoder.likelihood_tokenizer.convert_ids_to_tokens(row), log_probs))
        likelihood = CorpusLikelihood(
            nll=-sum(map(sum, values)),
            tokens=sum(map(len, rows)),
            bytes=sum(len(text.encode()) for text in block),
            documents=len(block),
            unknown=sum(row.count(UNKNOWN) for row in rows),
        )
        parts.append(likelihood)
    return CorpusLikelihood(*map(sum, zip(*parts, strict=True))) if parts else CorpusLikelihood(0.0, 0, 0, 0, 0)


class PromptCodec(TextCodec):
    """Reads prompts: a row is START and the token ids."""

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        self.encode_prompts(texts, decoding)

    def encode_prompts(self, texts: Sequence[str], decoding: Decoding, *, first: int = 1) -> list[list[int]]:
        """Return START and the tokens of each prompt, which must leave space for the output."""
        max_length = self.recipe.data.max_length
        min_new_tokens = max(1, decoding.max_length or 1, decoding.min_length, len(self.loaded.encode_prefix(decoding)))
        max_prompt = max_length - 1 - min_new_tokens
        if max_prompt < 0:
            raise SaccadeError(
                f"outputs of {min_new_tokens} tokens were requested (max_length, min_length, prefix), but the model "
                f"was made for {max_length} with <end>; request fewer"
            )
        rows = []
        for number, text in enumerate(texts, start=first):
            ids = self.encode_text(text)
            if len(ids) > max_prompt and not decoding.truncate_prompt:
                raise SaccadeError(
                    f"prompt {number} has {len(ids)} tokens, and at least {min_new_tokens} more are to be generated, "
                    f"but the model was made for {max_length} with <end> (data.max_length); shorten it or max_length, "
                    "or set truncate_prompt=true, which keeps the last tokens of it"
                )
            if len(ids) > max_prompt:  # without max_length, half of the positions are reserved for the output
                ids = ids[len(ids) - (max_prompt if decoding.max_length else min(max_prompt, max_length // 2)) :]
            rows.append([START, *ids])
        return rows

    def encode_text(self, text: str) -> list[int]:
        """Return token ids without END."""
        return self.tokenizers.target.encode(text)[:-1]

    def decode_after(self, row: list[int], ids: Sequence[int]) -> str:
        """Decode ids in the context of their prompt (of a chat, since its last END): alone, they may lose a space."""
        row = row[1:] if END not in row else row[len(row) - row[::-1].index(END) :]
        before = self.tokenizers.target.decode(row)
        whole = self.tokenizers.target.decode([*row, *ids])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizers.target.decode(ids)


class ContinuationDecoder(Decoder):
    """Continues prompts."""

    codec: PromptCodec

    @property
    def likelihood_tokenizer(self) -> Tokenizer:
        return self.tokenizers.target

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        """Decode prompts; those of one length form a batch."""
        decoding, align, scored, generator, first = options
        if align:
            raise SaccadeError("a language model has no source that its output could be aligned to; leave out align")
        rows = self.codec.encode_prompts(texts, decoding, first=first)
        prefix = self.loaded.encode_prefix(decoding)
        outputs: list[list[Hypothesis]] = [[] for _ in texts]
        with self.loaded.inference():
            budget = decoding.batch_tokens // count_rows_per_input(self.loaded.model, decoding)
            for group in group_equal_lengths(rows, budget=budget):
                prompts = [rows[i] for i in group]
                decode = partial(self._decode_output, prompts)
                request = Request(
                    [self._get_limit(row, decoding) for row in prompts], decoding, prefix=prefix, generator=generator,
                    prompts=torch.tensor(prompts, device=self.loaded.device),
                    stop_rule=build_stop_rule(decoding.stop, decode) if decoding.stop else None,
                )  # fmt: skip
                hypotheses, decision = self.loaded.decode(request)
                for i, candidates in zip(group, hypotheses, strict=True):
                    check_finite(candidates, line=first + i)
                    completions = [self._make_completion(rows[i], item, decoding) for item in candidates]
                    outputs[i] = [replace(one, engine=decision.engine) for one in completions]
        return self._add_log_probs(rows, outputs) if scored else outputs

    def write(self, text: str, decoding: Decoding | None) -> Iterator[str]:
        """Yield text token by token."""
        decoding = decoding or self.recipe.predict
        if (decoding.beam > 1 and not decoding.sample) or decoding.n_best > 1:
            raise SaccadeError(
                f"tokens come one by one from a single output, got beam = {decoding.beam} and n_best = "
                f"{decoding.n_best}; set beam=1 and n_best=1, or sample=true"
            )
        [row] = self.codec.encode_prompts([text], decoding)
        emitted, ids = "", list[int]()
        with self.loaded.inference():
            request = Request(
                [self._get_limit(row, decoding)], decoding, prompts=torch.tensor([row], device=self.loaded.device),
                prefix=self.loaded.encode_prefix(decoding), generator=self.loaded.make_generator(decoding),
            )  # fmt: skip
            for token in stream_tokens(self.loaded.model, request):
                ids.append(token)
                output = self.codec.decode_after(row, ids)
                stop_index = find_first_stop(output, decoding.stop)
                if stop_index is None:
                    stable = output[: len(output) - count_unstable_characters(output, decoding.stop)]
                else:
                    stable = output[:stop_index]
                yield stable[len(emitted) :]
                emitted = stable
                if stop_index is not None:
                    return
            yield self.codec.decode_after(row, ids)[len(emitted) :]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-probability of the second text of each pair given the first, without END."""
        both = [(self.codec.encode_text(before), self.codec.encode_text(text)) for before, text in pairs]
        values = self.compute_log_probs([[*before, *text] for before, text in both])
        return [sum(row[len(before) :]) for row, (before, _) in zip(values, both, strict=True)]

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        if documents:
            return self.tokenizers.target.encode_all(texts)
        return [self.codec.encode_text(text) for text in texts]

    def compute_log_probs(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each row, given those before it in its window."""
        windows = [
            (i, *window) for i, row in enumerate(rows) for window in split_windows(row, self.recipe.data.max_length)
        ]
        values: list[list[float]] = [[] for _ in windows]
        with self.loaded.inference():
            lengths = [len(ids) for _, _, ids in windows]
            for group in group_by_length(lengths, budget=self.recipe.predict.batch_tokens):
                batch = Batch({"target": pad([windows[i][2] for i in group])}).to(self.loaded.device)
                for i, log_probs in zip(group, compute_token_log_probs(self.loaded.model, batch).tolist(), strict=True):
                    values[i] = log_probs[windows[i][1] : lengths[i]]
        joined: list[list[float]] = [[] for _ in rows]
        for (i, _, _), log_probs in zip(windows, values, strict=True):
            joined[i] += log_probs
        return joined

    def _make_completion(self, row: list[int], item: SearchHypothesis, decoding: Decoding) -> Hypothesis:
        """Convert a search result to text, truncated at the first stop string, with the reason why it ends."""
        ids, text = item.ids, self.codec.decode_after(row, item.ids)
        finish = "length" if len(ids) >= self._get_limit(row, decoding) else "end"
        stop_index = find_first_stop(text, decoding.stop)
        if stop_index is not None:
            text, finish = text[:stop_index], "stop"
            ids = next(ids[:n] for n in range(len(ids) + 1) if len(self.codec.decode_after(row, ids[:n])) >= stop_index)
        return Hypothesis(ids, text, item.score, item.log_prob, finish=finish)

    def _add_log_probs(self, rows: Sequence[list[int]], outputs: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Add the model's log-probability of each token, regardless of penalties, temperature and rules."""
        pairs = [(row, item) for row, items in zip(rows, outputs, strict=True) for item in items]
        values = iter(self.compute_log_probs([[*row[1:], *item.ids] for row, item in pairs]))
        scored = []
        for row, items in zip(rows, outputs, strict=True):
            log_probs = [next(values)[len(row) - 1 :] for _ in items]
            scored.append(
                [item.with_log_probs(values_of_item) for item, values_of_item in zip(items, log_probs, strict=True)]
            )
        return scored

    def _get_limit(self, row: list[int], decoding: Decoding) -> int:
        """Return how many tokens may follow a prompt, END not counted."""
        return decoding.max_length or self.recipe.data.max_length - len(row)

    def _decode_output(self, rows: Sequence[list[int]], number: int, ids: Sequence[int]) -> str:
        return self.codec.decode_after(rows[number], ids)


class CompletionPresenter(TextPresenter):
    """Continuations, with the log-probability of each token."""

    decoder: ContinuationDecoder

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        candidates = [
            {
                "completion": item.text, "score": item.score, "log_prob": item.log_prob, "finish": item.finish,
                "tokens": self.loaded.tokenizers.target.convert_ids_to_tokens(item.ids), "log_probs": item.log_probs,
            }
            for item in hypotheses
        ]  # fmt: skip
        return {"prompt": text, **candidates[0], "candidates": candidates}

    def _find_example(self, source: str, target: str | None, decoding: Decoding | None) -> AttentionExample:
        """Return prompt and continuation as one target, because a language model has no source."""
        self._check_single()
        if target is not None:
            [ids] = self.loaded.encode_target([source + target])
            return AttentionExample(None, ids, target)
        with trace_search() as tree:
            [[best, *_]] = self.decoder.candidates([source], decoding=decoding)
        [[_, *prompt]] = self.decoder.codec.encode_prompts([source], decoding or self.loaded.recipe.predict)
        return AttentionExample(None, [*prompt, *best.ids, END], best.text, tree, search_start=len(prompt))


class LanguageModel(Predictor):
    """Prompts in, continuations out. Decoding settings default to those of the recipe."""

    default_parts = PredictorParts(PromptCodec, ContinuationDecoder, CompletionPresenter)
    continues_prompts = True
    uses_pseudo_likelihood = False  # `compute_likelihood` scores each token given those before it
    decoder: ContinuationDecoder

    def token_scores(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """Return the log-probability of each token of each text; long texts are split into windows."""
        return score_tokens(self.decoder, texts)

    def compute_likelihood(
        self, documents: Iterable[str], *, on_document: Callable[[ScoredText], None] | None = None
    ) -> CorpusLikelihood:
        """Sum the negative log-likelihood of documents, each with its END, in windows that do not overlap.

        `on_document` is called with the scores of each document as soon as they are known.
        """
        return score_documents(self.decoder, documents, on_document)


def split_windows(ids: list[int], length: int) -> Iterator[tuple[int, list[int]]]:
    """Yield windows of `length` tokens, each with its number of context tokens.

    A later window begins with the last token of the one before it, as context.
    """
    yield 0, ids[:length]
    for begin in range(length, len(ids), max(length - 1, 1)):
        yield 1, ids[begin - 1 : begin - 1 + max(length, 2)]


def group_equal_lengths(rows: Sequence[list[int]], *, budget: int) -> Iterator[list[int]]:
    """Yield indices of rows of equal length, as many as the budget of tokens allows, at least one."""
    for group in group_by_length([len(row) for row in rows], budget=budget):
        for length in sorted({len(rows[i]) for i in group}):
            yield [i for i in group if len(rows[i]) == length]


def count_unstable_characters(text: str, stops: Sequence[str]) -> int:
    """Return how many last characters may still change: an incomplete one, or the start of a stop string."""
    beginnings = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([len(text) - len(text.rstrip(REPLACEMENT_CHARACTER)), *beginnings])
