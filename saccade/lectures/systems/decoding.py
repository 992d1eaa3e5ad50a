"""Rows about writing: one word at a time."""

from __future__ import annotations

import torch

from saccade.config.schema import Decoding
from saccade.lectures.claims import Measured, check, measured, same
from saccade.lectures.small import small_batch, small_model
from saccade.model.writers.fill import FillWriter
from saccade.predict.decode import decode
from saccade.predict.search.beam import beam_search
from saccade.predict.search.fill import written
from saccade.predict.search.greedy import greedy, sampling, write_rows
from saccade.predict.search.request import Request


@check(
    107,
    "S4:244",
    "Generation writes one word at a time: one step for each word, whether greedy, by beam or by sampling.",
    formula=r"y_t = \argmax P(y \,|\, y_1, \dots, y_{t-1}, x)",
    code=(write_rows, greedy, beam_search, sampling),
)
def one_word_at_a_time() -> Measured:
    words, compared = 7, []
    settings = {"greedy": Decoding(beam=1), "beam of 3": Decoding(beam=3), "sampling": Decoding(beam=1, sample=True)}
    for name, decoding in settings.items():
        steps, outputs = _decoded(decoding.model_copy(update={"min_length": words, "max_length": words}), words)
        compared.append(same(f"{name}: words written", outputs, words))
        compared.append(same(f"{name}: steps for them and for the end", steps, words + 1))
    return measured(*compared)


@check(
    108,
    "S4:250",
    "Fully parallel generation (Gu et al. 2018): one pass for all words, however many; each refinement is one more.",
    formula=r"P(Y \,|\, X) = P(T \,|\, X) \prod_t P(y_t \,|\, T, X)",
    code=(FillWriter, written),
)
def all_words_at_once() -> Measured:
    compared = []
    for words in (3, 7):
        for passes in (1, 4):
            settings = Decoding(iterations=passes, min_length=words, max_length=words)
            asked, outputs = _filled(settings, words)
            compared.append(same(f"{passes} wanted: words written", outputs, words))
            compared.append(same(f"{passes} wanted: passes for {words} words", asked, passes))
    return measured(*compared)


def _filled(decoding: Decoding, words: int) -> tuple[int, int]:
    """How often a writer of all words at once gave logits, and how many words it wrote."""
    stack = "{ layers = 2, dim = 12, heads = 3, ff = 17 }"
    writer = [f"writer={{ kind = 'fill', stack = {stack} }}", "objectives=[{ kind = 'fill' }]"]
    model, passes = small_model(writer).float(), [0]
    model.writer.output.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    with torch.inference_mode():
        found = decode(model, Request([words, words], decoding, small_batch())).found
    return passes[0], len(found[0][0].ids)


def _decoded(decoding: Decoding, words: int) -> tuple[int, int]:
    """How often the writer was asked, and how many words it wrote."""
    model, steps = small_model().float(), [0]
    model.writer.stack.register_forward_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    with torch.inference_mode():
        request = Request([words, words], decoding, small_batch(), generator=torch.Generator())
        found = decode(model, request).found
    return steps[0], len(found[0][0].ids)
