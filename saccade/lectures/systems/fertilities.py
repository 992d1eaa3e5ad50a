"""The non-autoregressive Transformer with fertilities by its formulas (Gu et al. 2018), for the check of row 108."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END
from saccade.lectures.claims import Comparison, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, compute_sinusoids, compute_softmax, embed
from saccade.lectures.references.transformer import (
    Style,
    compute_attention,
    compute_feedforward,
    encode,
    project_heads,
)
from saccade.lectures.small import VOCABULARY_SIZE, load_small_recipe, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.predict.search.request import Request

STYLE = Style(pre_norm=True)
TEXTS = ([5, 6, 7, 8, END], [10, 11, 12, END], [13, 14, 15, 16, 17, END])
CANDIDATES = 6
LENGTH_PENALTIES = (0.0, 3.0)  # by the second one longer outputs are chosen
PRECISION = 1e-4  # models decode in float32


def build_fertility_model() -> Model:
    """Build the model of the recipe nat with two narrow layers; fertilities of all sizes are likely."""
    sizes = [
        f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("layers=2", "dim=12", "heads=3", "ff=17")
    ]
    recipe = load("nat", overrides=[*sizes, "writer.max_fertility=3"])
    net = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    randomize_parameters(net, scale=0.4)
    return net.eval()


@torch.no_grad()
def compare_fertilities() -> list[Comparison]:
    """Compare outputs of the most probable fertilities with the formulas, and the choice of a teacher with all."""
    net = build_fertility_model()
    exact, expected, scores = copy.deepcopy(net).double(), [], []
    for source in TEXTS:
        ids, score = _translate(exact, torch.tensor(source))
        expected.append(ids)
        scores.append(score)
    found = [group[0] for group in _decode(net, Decoding())]
    worst = max(abs(item.log_prob - score) for item, score in zip(found, scores, strict=True))
    return [
        expect_equal("fertilities: outputs", str([item.ids for item in found]), str(expected)),
        expect_near("fertilities: difference of the log-probabilities", worst, 0, within=PRECISION),
        *_compare_choice(net),
    ]


def _decode(net: Model, decoding: Decoding, teacher: Model | None = None) -> list[list[Any]]:
    request = Request([20] * len(TEXTS), decoding, Batch({"source": pad(TEXTS)}), teacher=teacher)
    return decode(net, request).hypotheses


def _compare_choice(net: Model) -> list[Comparison]:
    """Noisy parallel decoding: the teacher's log-probability of each candidate, and which one it returns."""
    recipe = load_small_recipe()
    teacher = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    randomize_parameters(teacher, scale=0.4)
    settings = Decoding(npd=CANDIDATES, n_best=CANDIDATES, beam=CANDIDATES, seed=2)
    every = _decode(net, settings)
    compared = [expect_equal("candidates of one sentence, more than one", len(every[0]) > 1, True)]
    for alpha in LENGTH_PENALTIES:
        chosen = _decode(net, settings.model_copy(update={"n_best": 1, "length_penalty": alpha}), teacher.eval())
        best = []
        for source, group in zip(TEXTS, every, strict=True):
            pairs = {"source": pad([source] * len(group)), "target": pad([[*item.ids, END] for item in group])}
            values = compute_token_log_probs(teacher, Batch(pairs)).sum(1)
            lengths = torch.tensor([len(item.ids) + 1 for item in group])
            best.append(group[int((values / ((5 + lengths) / 6) ** alpha).argmax())].ids)
        name = f"the candidate that a teacher chooses, length penalty {alpha}"
        compared.append(expect_equal(name, str([item.ids for [item] in chosen]), str(best)))
    return compared


def _translate(net: Any, source: Tensor) -> tuple[list[int], float]:
    """argmax fertilities, copies, and one pass of the decoder; return the output and its log-probability."""
    states = encode(net, source, style=STYLE)
    chances = apply_linear(net.writer.fertility, states).log_softmax(-1)[:-1]  # END has none
    fertilities = chances.argmax(-1)
    copies = [int(token) for token, times in zip(source, fertilities, strict=False) for _ in range(int(times))]
    copies = copies or [int(source[-2])]
    x = embed(net.writer.embedding, torch.tensor([*copies, END]))
    for block in net.writer.stack.blocks:
        x = _run_block(block, x, states)
    scores = apply_linear(net.writer.output, STYLE.normalize(net.writer.stack.norm, x)).log_softmax(-1)
    best = scores[:-1, 4:].max(-1)  # after the special tokens
    return (best.indices + 4).tolist(), float(best.values.sum() + chances.max(-1).values.sum())


def _run_block(block: Any, x: Tensor, states: Tensor) -> Tensor:
    """Attention to the others, attention by position, cross-attention, feed-forward network; each is x + f(norm x)."""
    others = ~torch.eye(len(x), dtype=torch.bool)
    first, second, third = block.residuals
    x = x + compute_attention(block.self, STYLE.normalize(first.norm, x), allowed=others)
    x = x + _attend_by_position(block.positional, STYLE.normalize(block.positional_residual.norm, x))
    x = x + compute_attention(block.cross, STYLE.normalize(second.norm, x), memory=states)
    return x + compute_feedforward(block.feedforward, STYLE.normalize(third.norm, x), STYLE)


def _attend_by_position(layer: Any, x: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V with queries and keys of position encodings."""
    places = compute_sinusoids(torch.arange(len(x)), x.shape[-1]).float().double()  # as in the model
    query, key = project_heads(layer.position, places)
    (value,) = project_heads(layer.value, x)
    heads = compute_softmax(query @ key.mT / math.sqrt(query.shape[-1])) @ value
    return apply_linear(layer.heads.out, torch.cat(list(heads), -1))
