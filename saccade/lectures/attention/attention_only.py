"""Check on the Transformer as a whole: attention is all that connects positions, in encoder and decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.data.batching.batch import Batch, pad
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, build_causal_mask, embed_tokens
from saccade.lectures.references.transformer import run_stack
from saccade.lectures.scale.graphs import find_dependencies
from saccade.lectures.small import build_small_model, max_difference, randomize_parameters, sample_normal
from saccade.lectures.systems.parallelism import ProductCounter
from saccade.lectures.systems.recurrent_models import (
    BATCH,
    INPUTS,
    SOURCES,
    compare_rows,
    write_at_once,
    write_stepwise,
)
from saccade.model.model import Model

NO_POSITIONS = ["reader.positions={ kind = 'none' }", "writer.positions={ kind = 'none' }"]
WORDS, WIDTH = 7, 12


@check(
    12,
    "S2:39-41, S4:22-23",
    "Attention is enough for encoder and decoder: the Transformer has no recurrent and no convolutional layer.",
    formula=r"\mathrm{encoder}, \mathrm{decoder} = \mathrm{attention}",
    code=(Block, TransformerStack, SelfAttention, CrossAttention),
    breaks=("block-with-recurrence", "block-with-convolution", "cross-attention-off", "uniform-attention",
            "unmasked-attention"),
)  # fmt: skip
@torch.no_grad()
def attention_is_enough() -> CheckResult:
    whole = build_small_model(NO_POSITIONS)
    one = build_small_model([*NO_POSITIONS, "reader.stack.layers=1", "writer.stack.layers=1"])
    for model in (whole, one):
        randomize_parameters(model)
    memory = whole.read(BATCH)
    sources, inputs = map(torch.tensor, SOURCES), map(torch.tensor, INPUTS)
    states = [run_stack(whole.reader.stack, embed_tokens(whole.reader.embedding, ids)) for ids in sources]
    logits = [_decode(whole, ids, known) for ids, known in zip(inputs, states, strict=True)]
    near = {
        "encoder: difference from attention and feed-forward layers alone": compare_rows(memory.states, states),
        "decoder: difference from attention and feed-forward layers alone": compare_rows(
            write_at_once(whole, memory), logits
        ),
        "decoder, step by step: difference": compare_rows(write_stepwise(whole, memory)[0], logits),
        "encoder without positions: difference of permuted outputs and outputs of permuted words": _permute_words(
            whole
        ),
        "decoder layer without positions: difference when words before the last one are permuted": _permute_prefix(one),
    }
    seen = find_dependencies(lambda x: one.reader.stack(x, None)[0], WORDS, WIDTH)
    past = find_dependencies(lambda x: one.writer.stack(x, None, _repeat(one, x))[0], WORDS, WIDTH)
    counts = [_count_products(whole, n) for n in (8, 16)]
    return build_result(
        *(expect_near(name, value, 0, within=1e-9) for name, value in near.items()),
        expect_equal(
            "words that an output of one encoder layer depends on, of 7", str(seen.sum(1).tolist()), str([7] * 7)
        ),
        expect_equal(
            "words that an output of one decoder layer depends on",
            str(past.sum(1).tolist()),
            str([*range(1, WORDS + 1)]),
        ),
        expect_equal("more matrix products for a source and a target of twice the length", counts[1] - counts[0], 0),
    )


def _decode(model: Model, ids: Tensor, states: Tensor) -> Tensor:
    """The logits of one sentence, without positions."""
    x, causal = embed_tokens(model.writer.embedding, ids), build_causal_mask(len(ids))
    return apply_linear(model.writer.output, run_stack(model.writer.stack, x, allowed=[causal], memory=states))


def _repeat(model: Model, x: Tensor) -> object:
    """The memory of the first source, once for each row of x."""
    return model.read(Batch({"source": pad(SOURCES[:1])})).repeat_rows(len(x))


def _permute_words(model: Model) -> float:
    """Permute the words of a source, and compare with the permuted states."""
    ids, order = torch.tensor([SOURCES[0]]), torch.tensor([3, 0, 5, 2, 1, 4])
    mask = torch.ones_like(ids, dtype=torch.bool)
    return max_difference(model.reader(ids[:, order], mask).states, model.reader(ids, mask).states[:, order])


def _permute_prefix(model: Model) -> float:
    """Permute all inputs of a decoder but the last, and compare its last output."""
    x, order = sample_normal(1, 5, WIDTH), [2, 0, 3, 1, 4]
    known = _repeat(model, x)
    first, second = (model.writer.stack(y, None, known)[0][:, -1] for y in (x, x[:, order]))
    return max_difference(first, second)


def _count_products(model: Model, n: int) -> int:
    ids = torch.arange(4, 4 + n)[None]
    batch = Batch({"source": pad(ids.tolist()), "target": pad(ids.tolist())})
    with ProductCounter() as counted:
        model.write(ids, batch["target"].mask, model.read(batch))
    return counted.count
