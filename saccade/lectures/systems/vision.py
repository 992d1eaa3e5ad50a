"""Checks on vision: self-attention inside a CNN, the Vision Transformer, and self-supervised learning."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures
from saccade.layers.attention import masks
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.record import record
from saccade.layers.vision.grid_attention import GridAttention
from saccade.layers.vision.patches import PatchEmbedding, ResNetCells, paint_patches
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.small import (
    VOCABULARY_SIZE,
    build_small_batch,
    format_shape,
    load_small_recipe,
    max_difference,
    sample_normal,
)
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.model.writers.patches import PatchWriter, compute_patch_errors
from saccade.train.objectives.objectives import r_drop_loss

SMALL = ["reader.size=12", "reader.stack={layers=2, dim=12, heads=3, ff=17}"]
HIDDEN_SHARE = 0.5


@check(
    66,
    "S3:1446",
    "Self-attention inside a CNN: 1 x 1 convolutions compute Q, K and V of all H x W positions.",
    formula=r"y = x + \gamma W_o \mathrm{softmax}(Q K^T) V",
    code=(GridAttention, ResNetCells),
)
@torch.no_grad()
def attention_in_a_cnn() -> CheckResult:
    layer, x = GridAttention(16).double(), sample_normal(2, 16, 3, 5)
    fresh = layer(x)
    layer.gamma.fill_(0.7)
    query, key, value = (
        torch.einsum("oc,bcn->bno", part.weight[..., 0, 0], x.flatten(2))
        for part in (layer.query, layer.key, layer.value)
    )
    attended = (query @ key.mT).softmax(-1) @ value
    out = torch.einsum("co,bno->bcn", layer.output.weight[..., 0, 0], attended).view_as(x)
    with record(layer) as maps:
        layer(x)
    weights = next(iter(maps.values()))
    return build_result(
        expect_equal("shape of the output", format_shape(fresh), format_shape(x)),
        expect_near("gamma = 0: difference of output and input", max_difference(fresh, x), 0, within=0.0),
        expect_near(
            "gamma = 0.7: difference from x + 0.7 W_o softmax(Q K^T) V",
            max_difference(layer(x), x + 0.7 * out),
            0,
            within=1e-12,
        ),
        expect_equal("attention weights of 3 x 5 positions", format_shape(weights[0, 0]), "15 x 15"),
        expect_near(
            "sum of each row of them", max_difference(weights.sum(-1), torch.ones(2, 1, 15).double()), 0, within=1e-12
        ),
        note="`saccade view RUN PICTURE --target 3,4` shows what one cell of a trained network attends to.",
    )


def build_small_vit(name: str = "vit") -> Model:
    """Build a small ViT for pictures of 12 x 12 pixels with patches of 4 x 4."""
    return build(load(name, overrides=SMALL), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()


def sample_pictures(count: int) -> Pictures:
    return Pictures(torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8), torch.ones(count, 10).bool())


def encode_by_hand(reader: PictureReader, pictures: Tensor) -> Tensor:
    """Compute z_0 = [x_class; x_p E] + E_pos, z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z' per block, and a final LN."""
    pixels = pictures.double() / 127.5 - 1
    cut = pixels.unflatten(3, (3, 4)).unflatten(2, (3, 4)).permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), 9, 48)
    cells: PatchEmbedding = reader.cells  # type: ignore[assignment]
    assert reader.first is not None and reader.positions is not None, "the recipe has both"
    z = torch.cat((reader.first.expand(len(cut), 1, -1), F.linear(cut, cells.project.weight, cells.project.bias)), 1)
    z = z + reader.positions(masks.make_positions(10, z.device))
    stack = cast(TransformerStack, reader.stack)
    for block in stack.blocks:
        first, second = (residual.norm for residual in block.residuals)
        z = z + block.self(first(z))
        z = z + block.feedforward(second(z))
    return stack.norm(z)


@check(
    105,
    "S2:8,22,216",
    "The Vision Transformer is a Transformer encoder over patches of a picture and a class token.",
    formula=r"z_0 = [x_{class}; x_p^1 E; ...; x_p^N E] + E_{pos}",
    code=(PatchEmbedding, PictureReader),
)
@torch.no_grad()
def vision_transformer() -> CheckResult:
    model, pictures = build_small_vit(), sample_pictures(2)
    memory = model.reader(pictures.values, pictures.mask)
    logits = model.writer(memory)
    return build_result(
        expect_equal("states: patches of 4 x 4 in a 12 x 12 picture, and the class token", memory.states.shape[1], 10),
        expect_equal("learned positions x width", format_shape(model.reader.positions.table.weight), "10 x 12"),
        expect_near(
            "states: difference from the paper's equations",
            max_difference(memory.states, encode_by_hand(model.reader, pictures.values)),
            0,
            within=1e-12,
        ),
        expect_near(
            "logits: difference from the output layer on the class token",
            max_difference(logits, model.writer.output(memory.states[:, 0])),
            0,
            within=1e-12,
        ),
        note="`saccade train vit --tiny` learns to classify coloured shapes in a minute.",
    )


@check(
    106,
    "S2:24,216",
    "Consistency losses and self-supervised learning: masked patches are reconstructed, two dropout passes must agree.",
    formula=r"L = \frac{1}{|H|} \sum_{i \in H} |x_i - y_i|^2",
    code=(PatchWriter, r_drop_loss),
)
@torch.no_grad()
def learning_without_labels() -> CheckResult:
    model, pictures = build_small_vit("vit-masked"), sample_pictures(4)
    missed = compute_patch_errors(model, pictures, build_generator(), mask_ratio=HIDDEN_SHARE, normalize_pixels=True)
    others = compute_patch_errors(
        model,
        change_hidden_pixels(pictures, missed.is_masked),
        build_generator(),
        mask_ratio=HIDDEN_SHARE,
        normalize_pixels=True,
    )
    visible = ~missed.is_masked
    return build_result(
        expect_equal(
            "masked patches of 4 pictures with 9 patches each, about half",
            format_shape(missed.squared_errors[missed.is_masked]),
            "16",
        ),
        expect_near(
            "other pixels in masked patches: change of the error on visible patches",
            max_difference(missed.squared_errors[visible], others.squared_errors[visible]),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "other pixels in masked patches: change of the error on masked patches",
            max_difference(missed.squared_errors[missed.is_masked], others.squared_errors[missed.is_masked]),
            1e-3,
        ),
        expect_near(
            "consistency loss (R-Drop) of two passes, dropout 0", measure_consistency(dropout=0.0), 0, within=1e-6
        ),
        expect_at_least("consistency loss (R-Drop) of two passes, dropout 0.3", measure_consistency(dropout=0.3), 1e-3),
        note="`saccade train vit-masked --tiny --run seen`, then `saccade train vit --tiny init=seen`.",
    )


def build_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def change_hidden_pixels(pictures: Pictures, hidden: Tensor) -> Pictures:
    """Invert the pixels of masked patches."""
    gone = paint_patches(torch.zeros_like(pictures.values), hidden, patch=4) > 0
    return Pictures(torch.where(gone, 255 - pictures.values, pictures.values), pictures.mask)


def measure_consistency(*, dropout: float) -> float:
    """Return the R-Drop loss between two passes of a small Transformer."""
    recipe = load_small_recipe([f"{part}.stack.dropout={dropout}" for part in ("reader", "writer")])
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).train()
    batch: Batch = build_small_batch()
    return float(r_drop_loss(model, batch, build_generator())["consistency"].sum)
