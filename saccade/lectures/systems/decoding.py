"""Checks on decoding: one step per word, by greedy search, beam search or sampling, or all words in parallel."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, START
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.references import transformer
from saccade.lectures.references.basics import (
    apply_linear,
    compute_sinusoids,
    compute_softmax,
    embed,
    relu,
)
from saccade.lectures.references.transformer import Style, encode, run_stack
from saccade.lectures.small import VOCABULARY_SIZE, load_small_recipe, randomize_parameters
from saccade.lectures.systems.fertilities import compare_fertilities
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.writers.fertility import FertilityWriter
from saccade.model.writers.fill import MASK, FillWriter
from saccade.predict.decode import decode
from saccade.predict.engines.plain import PlainSearch
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import SearchHypothesis, build_sampler, choose_best, decode_rows
from saccade.predict.search.mask_predict import fill_canvases
from saccade.predict.search.request import Request

SOURCES = ([5, 6, 4, 5, 6], [6, 4], [4, 4, 5], [5], [6, 6, 5, 4])
WORDS = (4, 5, 6)  # a vocabulary of three words after four special tokens
LIMIT = 3  # words of an output, at most
PRECISION = 1e-4  # models decode in float32
SAMPLES = 2000
MAX_VARIATION = 0.05  # of 2,000 samples of 13 outcomes; about 0.02 is expected

NextWords = Mapping[tuple[int, ...], Tensor]  # log P(next token | the words before it), for each prefix


# ---- one step for each word


def build_search_model() -> Model:
    """Build a Transformer over three words with random weights, sharp enough that outputs differ in probability."""
    net = build(load_small_recipe(["writer.tie=none"]), source_size=7, target_size=7)
    randomize_parameters(net, scale=0.1)
    with torch.no_grad():  # outputs depend on the words before more than on biases and positions
        for part in (net.reader, net.writer):
            part.embedding.tokens.weight *= 3
        net.writer.stack.blocks[-1].residuals[-1].norm.bias.zero_()
        net.writer.output.weight *= 2
        net.writer.output.weight[END] = net.writer.output.weight[list(WORDS)].mean(0)  # outputs of all lengths
    return net.eval()


@torch.no_grad()
def list_next_words(net: Model, source: list[int], style: Style) -> NextWords:
    """Compute log P(y_t | y_1, ..., y_(t-1), x) for all outputs of up to three words, by the formulas."""
    exact, found = copy.deepcopy(net).double(), {}
    states = encode(exact, torch.tensor(source), style=style)
    for words in itertools.product(WORDS, repeat=LIMIT):
        y = transformer.decode(exact, torch.tensor([START, *words]), states, style=style)
        scores = apply_linear(exact.writer.output, y).log_softmax(-1)
        found.update({words[:t]: scores[t] for t in range(LIMIT + 1)})
    return found


def list_outputs(limit: int) -> Iterator[tuple[int, ...]]:
    return (words for n in range(limit + 1) for words in itertools.product(WORDS, repeat=n))


def score_output(table: NextWords, words: tuple[int, ...], alpha: float = 0.0) -> float:
    """log P(words, END) / ((5 + n + 1) / 6)^alpha."""
    total = sum(float(table[words[:t]][token]) for t, token in enumerate((*words, END)))
    return total / ((6 + len(words)) / 6) ** alpha


def search_beam(table: NextWords, width: int, alpha: float) -> list[tuple[int, ...]]:
    """The outputs of beam search, best first: of the best `width` continuations of all live ones, some end."""
    live: dict[tuple[int, ...], float] = {(): 0.0}
    finished: list[tuple[int, ...]] = []
    for n in range(LIMIT + 1):
        tokens = (END, *WORDS) if n < LIMIT else (END,)
        grown = [
            (score + float(table[words][token]), words, token) for words, score in live.items() for token in tokens
        ]
        best = sorted(grown, reverse=True)[:width]
        finished += [words for _, words, token in best if token == END]
        live = {(*words, token): score for score, words, token in best if token != END}
    return sorted(finished, key=lambda words: -score_output(table, words, alpha))


def search_everything(table: NextWords, alpha: float) -> list[tuple[int, ...]]:
    """All outputs, best first."""
    return sorted(list_outputs(LIMIT), key=lambda words: -score_output(table, words, alpha))


@check(
    107,
    "S4:244",
    "Generation is sequential: one decoding step for each word, for greedy search, beam search and sampling.",
    formula=r"y_t = \argmax P(y \,|\, y_1, \dots, y_{t-1}, x)",
    code=(decode_rows, choose_best, beam_search, build_sampler),
    breaks=(
        "greedy-takes-the-second-best",
        "beam-ignores-scores",
        "beam-stops-at-the-first-end",
        "worst-hypothesis-first",
        "beam-states-not-reordered",
        "no-length-penalty",
        "sampling-takes-the-best",
        "sampling-ignores-temperature",
        "sampling-ignores-top-k",
        "sampling-ignores-top-p",
        "uniform-attention",
    ),
)
def one_word_at_a_time() -> CheckResult:
    net = build_search_model()
    tables = [list_next_words(net, source, Style()) for source in SOURCES]
    return build_result(
        *_count_steps(net),
        *_compare_searches(net, tables),
        *_compare_samples(net, tables[0]),
    )


def run_search(
    net: Model, decoding: Decoding, *, limit: int = LIMIT, plain: bool = False, sources: Sequence[list[int]] = SOURCES
) -> list[list[SearchHypothesis]]:
    """Decode sentences by the engine that is chosen for them, or by the plain one."""
    seed = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    request = Request([limit] * len(sources), decoding, Batch({"source": pad(sources)}), generator=seed)
    with torch.inference_mode():
        return decode(net, request, engines=(PlainSearch(),) if plain else None).hypotheses


def _count_steps(net: Model) -> list[Comparison]:
    words, compared = 7, []
    settings = {"greedy": Decoding(beam=1), "beam of 3": Decoding(beam=3), "sampling": Decoding(beam=1, sample=True)}
    for name, decoding in settings.items():
        widths: list[int] = []
        hook = net.writer.stack.register_forward_hook(
            lambda module, given, found, to=widths: to.append(given[0].shape[1])
        )
        with hook:
            exact = decoding.model_copy(update={"min_length": words, "max_length": words})
            outputs = run_search(net, exact, limit=words)
        compared += [
            expect_equal(f"{name}: words generated", len(outputs[0][0].ids), words),
            expect_equal(f"{name}: words of each decoding step, one more for the end token", str(widths), str([1] * 8)),
        ]
    return compared


def _compare_searches(net: Model, tables: list[NextWords]) -> list[Comparison]:
    """Compare each search with the same one over all 40 outputs of up to three words."""
    compared, valid = [], set(list_outputs(LIMIT))
    for width, count, alpha in ((1, 1, 0.0), (2, 2, 0.0), (3, 3, 1.5), (40, 5, 0.0), (40, 5, 1.5)):
        every = width > len(WORDS) ** LIMIT
        expected = [search_everything(table, alpha) if every else search_beam(table, width, alpha) for table in tables]
        decoding = Decoding(beam=width, n_best=count, length_penalty=alpha)
        for plain in (False, True):
            found, worst = run_search(net, decoding, plain=plain), 0.0
            for table, group in zip(tables, found, strict=True):
                for item in (item for item in group if tuple(item.ids) in valid):
                    exact = score_output(table, tuple(item.ids)), score_output(table, tuple(item.ids), alpha)
                    worst = max(worst, abs(item.log_prob - exact[0]), abs(item.score - exact[1]))
            name = f"{'exhaustive beam' if every else f'beam of {width}'}, length penalty {alpha}"
            name = f"{name}, {'plain' if plain else 'fastest'} engine"
            ours = [[item.ids for item in group] for group in found]
            theirs = [[list(words) for words in outputs[:count]] for outputs in expected]
            wrong = sum(one != other for one, other in zip(ours, theirs, strict=True))
            compared += [
                expect_equal(f"{name}: sentences whose best outputs differ from a search written out", wrong, 0),
                expect_near(f"{name}: difference of log P and scores", worst, 0, within=PRECISION),
            ]
    return compared


def _compare_samples(net: Model, table: NextWords) -> list[Comparison]:
    """Compare how often outputs of up to two words are sampled with their probabilities."""
    settings = {
        "sampling": {},
        "temperature 0.5": {"temperature": 0.5},
        "top 2, temperature 2": {"top_k": 2, "temperature": 2.0},
        "top 60 %": {"top_p": 0.6},
    }
    compared = []
    for name, options in settings.items():
        decoding = Decoding(beam=1, sample=True, n_best=SAMPLES, **options)  # type: ignore[arg-type]
        counts = Counter(tuple(item.ids) for item in run_search(net, decoding, limit=2, sources=SOURCES[:1])[0])
        expected = {words: _compute_sampling(table, words, options) for words in list_outputs(2)}
        variation = sum(abs(counts[words] / SAMPLES - share) for words, share in expected.items()) / 2
        what = f"{name}: total variation of {SAMPLES:,} samples from the probabilities"
        compared.append(expect_at_most(what, variation, MAX_VARIATION))
    return compared


def _compute_sampling(table: NextWords, words: tuple[int, ...], options: Mapping[str, float]) -> float:
    """The probability that an output of up to two words is sampled."""
    total = 1.0
    for t, token in enumerate((*words, END)):
        allowed = (END, *WORDS) if t < 2 else (END,)
        scores = {item: float(table[words[:t]][item]) / options.get("temperature", 1.0) for item in allowed}
        ordered = sorted(scores, key=lambda item, s=scores: -s[item])  # type: ignore[misc]
        ordered = ordered[: int(options.get("top_k", len(ordered)))]
        mass = sum(math.exp(scores[item]) for item in ordered)
        before = list(itertools.accumulate((math.exp(scores[item]) / mass for item in ordered), initial=0.0))
        kept = [
            item for item, sum_before in zip(ordered, before, strict=False) if sum_before < options.get("top_p", 1.0)
        ]
        total *= math.exp(scores[token]) / sum(math.exp(scores[item]) for item in kept) if token in kept else 0.0
    return total


# ---- all words at once


PARALLEL = Style(pre_norm=True)
TEXTS = ([5, 6, 7, 8, 9], [10, 11, 12, 13], [13, 14, 15, 16, 17, 18])


@check(
    108,
    "S4:250",
    "Fully parallel generation (Gu et al. 2018): one pass for all words; each refinement is one more pass.",
    formula=r"P(Y \,|\, X) = P(T \,|\, X) \prod_t P(y_t \,|\, T, X)",
    code=(FillWriter, fill_canvases, FertilityWriter),
    recipes=("mask-predict", "nat"),
    breaks=(
        "mask-predict-refines-nothing",
        "mask-predict-masks-the-surest",
        "length-is-not-predicted",
        "no-soft-copy",
        "uniform-attention",
        "fertilities-are-ignored",
        "no-positional-attention",
        "attends-to-itself",
        "teacher-is-ignored",
        "one-candidate-is-decoded",
        "teacher-scores-other-candidates",
        "teacher-ignores-length",
        "teacher-favours-short-outputs",
    ),
)
def all_words_at_once() -> CheckResult:
    net = build_parallel_model()
    compared = []
    for words, passes in itertools.product((3, 7), (1, 4)):
        settings = Decoding(iterations=passes, min_length=words, max_length=words)
        found, outputs = _count_passes(net, settings, words)
        compared.append(expect_equal(f"{passes} iterations: words generated", outputs, words))
        compared.append(expect_equal(f"{passes} iterations: decoder passes for {words} words", found, passes))
    for passes in (1, 2, 4):
        compared += _compare_canvases(net, Decoding(iterations=passes, length_candidates=3, n_best=3))
    return build_result(*compared, *compare_fertilities())


def build_parallel_model() -> Model:
    """Build the model of the recipe mask-predict with two narrow layers."""
    sizes = [
        f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("layers=2", "dim=12", "heads=3", "ff=17")
    ]
    recipe = load("mask-predict", overrides=[*sizes, "writer.max_length_difference=3"])
    net = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    randomize_parameters(net, scale=0.4)
    return net.eval()


def _decode_parallel(net: Model, decoding: Decoding, limit: int) -> list[list[SearchHypothesis]]:
    with torch.inference_mode():
        return decode(net, Request([limit] * 3, decoding, Batch({"source": pad(TEXTS)}))).hypotheses


def _count_passes(net: Model, decoding: Decoding, words: int) -> tuple[int, int]:
    """Decode; return the number of passes and of output words."""
    passes = [0]
    with net.writer.output.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1)):
        found = _decode_parallel(net, decoding, words)
    return passes[0], len(found[0][0].ids)


@torch.no_grad()
def _compare_canvases(net: Model, decoding: Decoding) -> list[Comparison]:
    """Compare the outputs for the three most probable lengths of each sentence with those by the formulas."""
    exact, expected, scores = copy.deepcopy(net).double(), [], []
    for source in TEXTS:
        states = encode(exact, torch.tensor(source), style=PARALLEL)
        lengths = _predict_lengths(exact, states)
        best = lengths.argsort(descending=True)[:3].tolist()
        found = []
        for index in best:
            length = len(source) - 3 + index
            ids, log_prob = _fill(exact, states, length, decoding.iterations)
            found.append((float(lengths[index] + log_prob) / length, ids))
        found.sort(reverse=True)
        expected.append([ids for _, ids in found])
        scores.append([score for score, _ in found])
    outputs = _decode_parallel(net, decoding, 20)
    got = [[item.ids for item in group] for group in outputs]
    worst = max(
        abs(item.score - score)
        for group, row in zip(outputs, scores, strict=True)
        for item, score in zip(group, row, strict=False)
    )
    name = f"{decoding.iterations} iterations, three lengths"
    return [
        expect_equal(f"{name}: outputs", str(got), str(expected)),
        expect_near(f"{name}: difference of the scores", worst, 0, within=PRECISION),
    ]


def _predict_lengths(net: Any, states: Tensor) -> Tensor:
    """log P(T | X) from the mean of the encoder's states and their number."""
    features = torch.cat((states.mean(0), compute_sinusoids(torch.tensor([len(states)]), 64)[0]))
    first, _, second = net.writer.length
    return apply_linear(second, relu(apply_linear(first, features))).log_softmax(-1)


def _fill(net: Any, states: Tensor, length: int, passes: int) -> tuple[list[int], Tensor]:
    """Fill a canvas of masks and an END: in each pass predict all masks, then mask the least probable words again."""
    ids, log_probs = torch.tensor([MASK] * (length - 1) + [END]), torch.zeros(length, dtype=torch.float64)
    centers = torch.arange(length) * (len(states) - 1) / max(length - 1, 1)
    copied = compute_softmax(-(centers[:, None] - torch.arange(len(states))).abs().double()) @ states
    for left in reversed(range(passes)):
        masked = ids == MASK
        x = embed(net.writer.embedding, ids) + copied * masked[:, None]
        y = run_stack(net.writer.stack, x, PARALLEL, memory=states)
        scores = apply_linear(net.writer.output, y).log_softmax(-1)
        best = scores[:, 4:].max(-1)  # after the special tokens
        ids, log_probs = torch.where(masked, best.indices + 4, ids), torch.where(masked, best.values, log_probs)
        if left:
            ids[log_probs[:-1].argsort()[: (length - 1) * left // passes]] = MASK
    return ids[:-1].tolist(), log_probs.sum()
