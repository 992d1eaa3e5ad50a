"""Rows about writing: one word at a time."""

from __future__ import annotations

import torch

from saccade.config.schema import Decoding
from saccade.lectures.claims import Measured, check, measured, same
from saccade.lectures.small import small_batch, small_model
from saccade.predict.decode import decode
from saccade.predict.search import beam_search, greedy, sampling, write_rows


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


def _decoded(decoding: Decoding, words: int) -> tuple[int, int]:
    """How often the writer was asked, and how many words it wrote."""
    model, steps = small_model().float(), [0]
    model.writer.stack.register_forward_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    with torch.inference_mode():
        found = decode(model, small_batch(), limits=[words, words], decoding=decoding, generator=torch.Generator())
    return steps[0], len(found[0][0].ids)
