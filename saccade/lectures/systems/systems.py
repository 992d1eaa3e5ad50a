"""Checks on systems before the Transformer: the models of their recipes compute what the notes describe."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal
from saccade.lectures.scale.graphs import find_dependencies
from saccade.lectures.small import VOCABULARY_SIZE, sample_normal
from saccade.model.build.model import build
from saccade.model.model import Model

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10]])
REAL = torch.ones_like(SOURCE, dtype=torch.bool)


def build_system(name: str, changes: Sequence[str] = ()) -> Model:
    """Build the model of a recipe with width 12, in float64 and without dropout."""
    small = [f"{part}.stack.dim=12" for part in ("reader", "writer")]
    still = [f"{key}=0.0" for part in ("reader", "writer") for key in (f"{part}.dropout", f"{part}.stack.dropout")]
    recipe = load(name, overrides=[*small, *still, *changes])
    return build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()


@check(
    11,
    "S1:64-70, S3:1460-1474",
    "Convolutional models: each layer sees a window, many layers see far, and decoder layers never look ahead.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(ConvolutionStack,),
)
def convolution_style() -> CheckResult:
    compared = []
    for layers in (1, 2, 4):
        reader = build_system("convs2s", [f"reader.stack.layers={layers}"]).reader.stack
        with torch.no_grad():
            seen = find_dependencies(lambda x, reader=reader: reader(x, None)[0], 21, 12)  # type: ignore[misc]
        name = f"receptive field of the middle word, {layers} layers of k = 3"
        compared.append(expect_equal(name, int(seen[10].sum()), 1 + 2 * layers))
    model = build_system("convs2s")
    memory, x = model.reader(SOURCE, REAL), sample_normal(1, 9, 12)
    moved = x.clone()
    moved[:, 6] += 1
    with torch.no_grad():
        before, after = (model.writer.stack(y, None, memory)[0] for y in (x, moved))
    compared.append(
        expect_equal(
            "decoder: outputs before a changed word that change, of 6", _count_changed(before, after, end=6), 0
        )
    )
    return build_result(*compared)


def _count_changed(before: Tensor, after: Tensor, *, end: int) -> int:
    """Count the positions before `end` that differ by more than rounding."""
    return int(((before - after)[0, :end].abs().amax(-1) > 1e-12).sum())
