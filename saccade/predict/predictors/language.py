"""A trained language model put to use: what comes after a prompt, and how likely a text is."""

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
from saccade.predict.decode import copies
from saccade.predict.lines import groups_by_length
from saccade.predict.looking import Given
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import Decoder, Options, Parts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextCodec, TextPresenter, check_finite
from saccade.predict.search.greedy import Found
from saccade.predict.search.likelihood import token_log_probs
from saccade.predict.search.prompted import first_stop, stopping
from saccade.predict.search.request import Request
from saccade.predict.search.run import stream_tokens
from saccade.predict.search.trace import listening

BLOCK = 256  # documents whose likelihood is measured together
HALF = "\ufffd"  # what a part of a character becomes


class TokenScore(NamedTuple):
    token: str
    log_prob: float


class ScoredText(NamedTuple):
    """A document with the log-probability of each of its tokens, END last."""

    text: str
    tokens: list[str]
    log_probs: list[float]


class Fit(NamedTuple):
    """How well a model predicts some documents."""

    nll: float  # sum over the tokens, in nats
    tokens: int  # END of each document among them
    bytes: int  # of the texts, in UTF-8
    documents: int
    unknown: int  # tokens that the vocabulary lacks: to predict that there is one is easier than to predict which


class TokenLikelihood(Protocol):
    """A decoder that measures texts token by token."""

    @property
    def measured(self) -> Tokenizer:
        """The tokenizer of the texts that are measured."""
        ...

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        """Token ids; of documents, with all tokens that the model predicts at their ends."""
        ...

    def measure_rows(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each row."""
        ...


def score_tokens(decoder: TokenLikelihood, texts: Sequence[str]) -> list[list[TokenScore]]:
    """The log-probability of each token of each text."""
    rows = decoder.encode_texts(texts, documents=False)
    labels = [decoder.measured.labels(row) for row in rows]
    scores = zip(labels, decoder.measure_rows(rows), strict=True)
    return [[TokenScore(*pair) for pair in zip(names, row, strict=True)] for names, row in scores]


def fit_documents(decoder: TokenLikelihood, documents: Iterable[str], each: Callable[[ScoredText], None] | None) -> Fit:
    """How likely all documents are, in windows that do not overlap; `each` is called with every one of them."""
    parts, left = list[Fit](), iter(documents)
    while block := list(islice(left, BLOCK)):
        rows = decoder.encode_texts(block, documents=True)
        values = decoder.measure_rows(rows)
        if each is not None:
            for text, row, measured in zip(block, rows, values, strict=True):
                each(ScoredText(text, decoder.measured.labels(row), measured))
        fit = Fit(
            nll=-sum(map(sum, values)),
            tokens=sum(map(len, rows)),
            bytes=sum(len(text.encode()) for text in block),
            documents=len(block),
            unknown=sum(row.count(UNKNOWN) for row in rows),
        )
        parts.append(fit)
    return Fit(*map(sum, zip(*parts, strict=True))) if parts else Fit(0.0, 0, 0, 0, 0)


class PromptCodec(TextCodec):
    """Reads prompts: a row is START and the token ids."""

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        self.encode_prompts(texts, decoding)

    def encode_prompts(self, texts: Sequence[str], decoding: Decoding, *, first: int = 1) -> list[list[int]]:
        """START and the tokens of each prompt, which must leave room for what is to be written."""
        longest = self.recipe.data.max_length
        least = max(1, decoding.max_length or 1, decoding.min_length, len(self.loaded.encode_prefix(decoding)))
        room = longest - 1 - least
        if room < 0:
            raise SaccadeError(
                f"outputs of {least} tokens were asked for (max_length, min_length, prefix), but the model was made "
                f"for {longest} with <end>; ask for less"
            )
        rows = []
        for number, text in enumerate(texts, start=first):
            ids = self.encode_text(text)
            if len(ids) > room and not decoding.slide:
                raise SaccadeError(
                    f"prompt {number} has {len(ids)} tokens, and at least {least} more are to be written, but the "
                    f"model was made for {longest} with <end> (data.max_length); shorten it or max_length, or set "
                    "slide=true, which takes the last tokens of it"
                )
            if len(ids) > room:  # without a max_length, half of the positions are for the output
                ids = ids[len(ids) - (room if decoding.max_length else min(room, longest // 2)) :]
            rows.append([START, *ids])
        return rows

    def encode_text(self, text: str) -> list[int]:
        """Token ids without END."""
        return self.tokenizers.target.encode(text)[:-1]

    def decode_after(self, row: list[int], ids: Sequence[int]) -> str:
        """What ids add to the text of a prompt, a chat's since its last END: decoded alone, a space may be lost."""
        row = row[1:] if END not in row else row[len(row) - row[::-1].index(END) :]
        before = self.tokenizers.target.decode(row)
        whole = self.tokenizers.target.decode([*row, *ids])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizers.target.decode(ids)


class ContinuationDecoder(Decoder):
    """Continues prompts."""

    codec: PromptCodec

    @property
    def measured(self) -> Tokenizer:
        return self.tokenizers.target

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        """Prompts of one length are decoded together."""
        decoding, align, scored, generator, first = options
        if align:
            raise SaccadeError("this model reads nothing that its output could be aligned to; ask without align")
        rows = self.codec.encode_prompts(texts, decoding, first=first)
        prefix = self.loaded.encode_prefix(decoding)
        outputs: list[list[Hypothesis]] = [[] for _ in texts]
        with self.loaded.inference():
            for group in of_one_length(rows, budget=decoding.batch_tokens // copies(self.loaded.model, decoding)):
                prompts = [rows[i] for i in group]
                request = Request(
                    [self._limit(row, decoding) for row in prompts], decoding, prefix=prefix, generator=generator,
                    prompts=torch.tensor(prompts, device=self.loaded.device),
                    stops=stopping(decoding.stop, partial(self._output, prompts)) if decoding.stop else None,
                )  # fmt: skip
                found, decision = self.loaded.decode(request)
                for i, candidates in zip(group, found, strict=True):
                    check_finite(candidates, line=first + i)
                    made = [self._completion(rows[i], item, decoding) for item in candidates]
                    outputs[i] = [replace(one, engine=decision.engine) for one in made]
        return self._measured(rows, outputs) if scored else outputs

    def write(self, text: str, decoding: Decoding | None) -> Iterator[str]:
        """Token by token."""
        decoding = decoding or self.recipe.predict
        if (decoding.beam > 1 and not decoding.sample) or decoding.n_best > 1:
            raise SaccadeError(
                f"tokens come one by one from a single output, got beam = {decoding.beam} and n_best = "
                f"{decoding.n_best}; set beam=1 and n_best=1, or sample=true"
            )
        [row] = self.codec.encode_prompts([text], decoding)
        told, ids = "", list[int]()
        with self.loaded.inference():
            request = Request(
                [self._limit(row, decoding)], decoding, prompts=torch.tensor([row], device=self.loaded.device),
                prefix=self.loaded.encode_prefix(decoding), generator=self.loaded.make_generator(decoding),
            )  # fmt: skip
            for token in stream_tokens(self.loaded.model, request):
                ids.append(token)
                output = self.codec.decode_after(row, ids)
                at = first_stop(output, decoding.stop)
                safe = output[: len(output) - held_back(output, decoding.stop) if at is None else at]
                yield safe[len(told) :]
                told = safe
                if at is not None:
                    return
            yield self.codec.decode_after(row, ids)[len(told) :]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of the second text of each pair after the first; END is no part of it."""
        both = [(self.codec.encode_text(before), self.codec.encode_text(text)) for before, text in pairs]
        values = self.measure_rows([[*before, *text] for before, text in both])
        return [sum(row[len(before) :]) for row, (before, _) in zip(values, both, strict=True)]

    def encode_texts(self, texts: Sequence[str], *, documents: bool) -> list[list[int]]:
        if documents:
            return self.tokenizers.target.encode_all(texts)
        return [self.codec.encode_text(text) for text in texts]

    def measure_rows(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each row, given those before it in its window."""
        windows = [(i, *window) for i, row in enumerate(rows) for window in cut(row, self.recipe.data.max_length)]
        values: list[list[float]] = [[] for _ in windows]
        with self.loaded.inference():
            lengths = [len(ids) for _, _, ids in windows]
            for group in groups_by_length(lengths, budget=self.recipe.predict.batch_tokens):
                batch = Batch({"target": pad([windows[i][2] for i in group])}).to(self.loaded.device)
                for i, found in zip(group, token_log_probs(self.loaded.model, batch).tolist(), strict=True):
                    values[i] = found[windows[i][1] : lengths[i]]
        joined: list[list[float]] = [[] for _ in rows]
        for (i, _, _), found in zip(windows, values, strict=True):
            joined[i] += found
        return joined

    def _completion(self, row: list[int], item: Found, decoding: Decoding) -> Hypothesis:
        """An output as text, up to the first stop text, and why it ends."""
        ids, text = item.ids, self.codec.decode_after(row, item.ids)
        finish = "length" if len(ids) >= self._limit(row, decoding) else "end"
        at = first_stop(text, decoding.stop)
        if at is not None:
            text, finish = text[:at], "stop"
            ids = next(ids[:n] for n in range(len(ids) + 1) if len(self.codec.decode_after(row, ids[:n])) >= at)
        return Hypothesis(ids, text, item.score, item.log_prob, finish=finish)

    def _measured(self, rows: Sequence[list[int]], outputs: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """With the log-probability of each token, whatever penalties, temperature and rules it was chosen under."""
        every = [(row, item) for row, items in zip(rows, outputs, strict=True) for item in items]
        values = iter(self.measure_rows([[*row[1:], *item.ids] for row, item in every]))
        measured = []
        for row, items in zip(rows, outputs, strict=True):
            each = [next(values)[len(row) - 1 :] for _ in items]
            measured.append([item.with_log_probs(found) for item, found in zip(items, each, strict=True)])
        return measured

    def _limit(self, row: list[int], decoding: Decoding) -> int:
        """How many tokens may be written after a prompt, END not counted."""
        return decoding.max_length or self.recipe.data.max_length - len(row)

    def _output(self, rows: Sequence[list[int]], number: int, ids: Sequence[int]) -> str:
        return self.codec.decode_after(rows[number], ids)


class CompletionPresenter(TextPresenter):
    """Outputs after their prompt, with the log-probability of each token."""

    decoder: ContinuationDecoder

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        candidates = [
            {
                "completion": item.text, "score": item.score, "log_prob": item.log_prob, "finish": item.finish,
                "tokens": self.loaded.tokenizers.target.labels(item.ids), "log_probs": item.log_probs,
            }
            for item in found
        ]  # fmt: skip
        return {"prompt": text, **candidates[0], "candidates": candidates}

    def _find(self, source: str, target: str | None, decoding: Decoding | None) -> Given:
        """A prompt and what is written after it, as one text: the model reads it as it writes."""
        self._check_single()
        if target is not None:
            [written] = self.loaded.encode_target([source + target])
            return Given(None, written, target)
        with listening() as tree:
            [[best, *_]] = self.decoder.candidates([source], decoding=decoding)
        [[_, *prompt]] = self.decoder.codec.encode_prompts([source], decoding or self.loaded.recipe.predict)
        return Given(None, [*prompt, *best.ids, END], best.text, tree, first=len(prompt))


class LanguageModel(Predictor):
    """Prompts in, what comes after them out; decoding settings are those of the recipe where none are given."""

    default_parts = Parts(PromptCodec, ContinuationDecoder, CompletionPresenter)
    goes_on = True
    hides = False  # `fit` measures each token given those before it
    decoder: ContinuationDecoder

    def token_scores(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """The log-probability of each token of each text; what is too long for the model is cut into windows."""
        return score_tokens(self.decoder, texts)

    def fit(self, documents: Iterable[str], *, each: Callable[[ScoredText], None] | None = None) -> Fit:
        """How likely all of the documents are, each with its END, in windows that do not overlap.

        `each` is told every one of them as soon as it is measured.
        """
        return fit_documents(self.decoder, documents, each)


def cut(ids: list[int], length: int) -> Iterator[tuple[int, list[int]]]:
    """Windows of `length` tokens, and how many of each are given: a later one begins with the last token before it."""
    yield 0, ids[:length]
    for begin in range(length, len(ids), max(length - 1, 1)):
        yield 1, ids[begin - 1 : begin - 1 + max(length, 2)]


def of_one_length(rows: Sequence[list[int]], *, budget: int) -> Iterator[list[int]]:
    """The numbers of rows that are equally long, as many as the budget of tokens allows, at least one."""
    for group in groups_by_length([len(row) for row in rows], budget=budget):
        for length in sorted({len(rows[i]) for i in group}):
            yield [i for i in group if len(rows[i]) == length]


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many letters at the end may still change: part of a character, or what may become a stop text."""
    beginnings = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([len(text) - len(text.rstrip(HALF)), *beginnings])
