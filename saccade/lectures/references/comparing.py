"""What checks measure: saccade's layers and models, with random parameters, and their differences from references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.layers.attention import masks
from saccade.layers.attention.multihead import CrossAttention
from saccade.layers.record import record
from saccade.lectures.claims import Comparison, expect_near
from saccade.lectures.references.transformer import ScoreFn, compute_attention, decode, encode
from saccade.lectures.small import build_small_model, load_small_recipe, max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.predictors.predictor import Predictor

MODEL_TOLERANCE = 1e-5  # sinusoids of a model are float32


def compare_gradients(what: str, net: nn.Module, ours: Tensor, theirs: Tensor, *, within: float = 1e-7) -> Comparison:
    """Compare the gradients of all parameters for a random sum of two outputs; a parameter without one counts as 0."""
    direction, parameters = torch.randn_like(theirs), list(net.parameters())
    grads = [
        torch.autograd.grad((output * direction).sum(), parameters, allow_unused=True) for output in (ours, theirs)
    ]
    pairs = zip(parameters, *grads, strict=True)
    differences = [(torch.zeros_like(p) if a is None else a) - (0 if b is None else b) for p, a, b in pairs]
    worst = max(float(difference.abs().max()) for difference in differences)
    return expect_near(f"{what}: difference of the gradients from the formulas", worst, 0, within=within)


def build_random_model(changes: list[str] | None = None) -> Model:
    """Build the small `transformer` in float64 with random parameters, biases and norms included."""
    return randomize_parameters(build_small_model(changes or []))


def build_padded_batch() -> Batch:
    """Build two sentence pairs of different lengths, so that sources and targets are padded."""
    source, target = pad([[5, 6, 7, 8, 9, 5, 11], [10, 11, 6, 12]]), pad([[12, 13, 14, 15, 8], [15, 16, 17]])
    return Batch({"source": source, "target": target})


class Attended(NamedTuple):
    """What multi-head attention computes for given queries, keys and values."""

    y: Tensor  # by the fused kernel
    a: Tensor  # recorded weights
    steps: Tensor  # one query at a time, as in decoding


def attend_in_layer(
    q: Tensor, k: Tensor, v: Tensor, *, scaled: bool = True, score: Any = None, keep: Tensor | None = None
) -> Attended:
    """Run saccade's cross-attention with one head and identity matrices, so that its inputs are Q, K and V.

    Matrices have one row for each vector; values have at most as many features as keys. `keep`: which keys are real.
    """
    width = q.shape[-1]
    layer = CrossAttention(width, heads=1, memory_dim=2 * width, form=width, bias=False, scale=scaled).to(q.dtype)
    if score is not None:
        layer.heads.set_score(score)
    eye: Any = torch.eye(2 * width, dtype=q.dtype)
    with torch.no_grad():
        layer.query.weight.copy_(eye[:width, :width])
        layer.memory.weight.copy_(eye.view(2, width, 2 * width))
        layer.heads.out.weight.copy_(eye[:width, :width])  # type: ignore[operator]
    memory = torch.cat((k, v, v.new_zeros(len(v), width - v.shape[1])), -1)[None]
    projected, mask = layer.project_memory(memory), None if keep is None else keep[None]
    y = layer(q[None], projected, mask=mask)
    with record(layer) as maps:
        layer(q[None], projected, mask=mask)
    with torch.no_grad():
        steps = torch.cat([layer(row[None, None], projected, mask=mask) for row in q], 1)
    a = next(iter(maps.values()), torch.zeros(1, 1, len(q), len(k), dtype=q.dtype))
    return Attended(y[0, :, : v.shape[1]], a[0, 0], steps[0, :, : v.shape[1]])


def measure_layer(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, score: ScoreFn | None = None, real: Tensor | None = None
) -> float:
    """Return how far self-attention on x, or cross-attention from x to `memory`, is from the formula.

    Both implementations are measured: the fused one, and the explicit one, which runs while weights are recorded.
    `real`: which positions are no padding.
    """
    allowed = None if real is None else real[:, None]
    expected = compute_attention(layer, x, memory=memory, allowed=allowed, score=score)
    if memory is not None:
        kept = layer.project_memory(memory)
        outputs = run_both(layer, lambda: layer(x, kept, mask=real))
    else:
        outputs = run_both(layer, lambda: layer(x, mask=None if real is None else masks.padding(real)))
    return max(max_difference(found, expected) for found in outputs)


def run_both(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """Run attention by fused kernels, and again by the explicit implementation."""
    fused = run()
    with record(module):
        return [fused, run()]


def compare_model(model: Model, batch: Batch) -> list[Comparison]:
    """Expect the states of encoder and decoder, at real positions of a padded batch, to be those of the formulas.

    Attention is computed by fused kernels and again explicitly.
    """
    source, target = batch["source"], batch["target"]
    with torch.no_grad():
        states = encode(model, source.ids, source.mask)
        expected = decode(model, target.ids, states, source.mask)
        read = run_both(model, lambda: model.read(batch).states)
        written = run_both(model, lambda: model.writer(target.ids, target.mask, model.read(batch)))
    return [
        expect_near(f"built model, {name}: difference from the formulas", difference, 0, within=MODEL_TOLERANCE)
        for name, difference in {
            "encoder": max(max_difference(found[source.mask], states[source.mask]) for found in read),
            "decoder": max(max_difference(found[target.mask], expected[target.mask]) for found in written),
        }.items()
    ]


def build_word_predictor(text: str, changes: Sequence[str] = ()) -> Predictor:
    """Build a predictor of the small `transformer` with random parameters whose tokens are the words of a text."""
    recipe = load_small_recipe(["tokenizer.kind=words", *changes])
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(text, text)])
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    randomize_parameters(model)
    return recipe.task.get_predictor(recipe)(model, recipe=recipe, tokenizers=tokenizers)
