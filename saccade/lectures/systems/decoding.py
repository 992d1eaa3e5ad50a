"""Checks on decoding: one step per word, or all words in parallel."""

from __future__ import annotations

import torch

from saccade.config.schema import Decoding
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal
from saccade.lectures.small import build_small_batch, build_small_model
from saccade.model.writers.fill import FillWriter
from saccade.predict.decode import decode
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import build_sampler, choose_best, decode_rows
from saccade.predict.search.mask_predict import fill_canvases
from saccade.predict.search.request import Request


@check(
    107,
    "S4:244",
    "Generation is sequential: one decoding step for each word, for greedy search, beam search and sampling.",
    formula=r"y_t = \argmax P(y \,|\, y_1, \dots, y_{t-1}, x)",
    code=(decode_rows, choose_best, beam_search, build_sampler),
)
def one_word_at_a_time() -> CheckResult:
    words, compared = 7, []
    settings = {"greedy": Decoding(beam=1), "beam of 3": Decoding(beam=3), "sampling": Decoding(beam=1, sample=True)}
    for name, decoding in settings.items():
        steps, outputs = _run_decoding(decoding.model_copy(update={"min_length": words, "max_length": words}), words)
        compared.append(expect_equal(f"{name}: words generated", outputs, words))
        compared.append(expect_equal(f"{name}: decoding steps, one more for the end token", steps, words + 1))
    return build_result(*compared)


@check(
    108,
    "S4:250",
    "Fully parallel generation (Gu et al. 2018): one pass for all words; each refinement is one more pass.",
    formula=r"P(Y \,|\, X) = P(T \,|\, X) \prod_t P(y_t \,|\, T, X)",
    code=(FillWriter, fill_canvases),
)
def all_words_at_once() -> CheckResult:
    compared = []
    for words in (3, 7):
        for passes in (1, 4):
            settings = Decoding(iterations=passes, min_length=words, max_length=words)
            found, outputs = _run_parallel_decoding(settings, words)
            compared.append(expect_equal(f"{passes} iterations: words generated", outputs, words))
            compared.append(expect_equal(f"{passes} iterations: decoder passes for {words} words", found, passes))
    return build_result(*compared)


def _run_parallel_decoding(decoding: Decoding, words: int) -> tuple[int, int]:
    """Decode with a non-autoregressive writer; return its number of passes and of output words."""
    stack = "{ layers = 2, dim = 12, heads = 3, ff = 17 }"
    writer = [f"writer={{ kind = 'fill', stack = {stack} }}", "objectives=[{ kind = 'fill' }]"]
    model, passes = build_small_model(writer).float(), [0]
    model.writer.output.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    with torch.inference_mode():
        found = decode(model, Request([words, words], decoding, build_small_batch())).hypotheses
    return passes[0], len(found[0][0].ids)


def _run_decoding(decoding: Decoding, words: int) -> tuple[int, int]:
    """Decode with an autoregressive writer; return its number of steps and of output words."""
    model, steps = build_small_model().float(), [0]
    model.writer.stack.register_forward_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    with torch.inference_mode():
        request = Request([words, words], decoding, build_small_batch(), generator=torch.Generator())
        found = decode(model, request).hypotheses
    return steps[0], len(found[0][0].ids)
