"""Checks on vision: self-attention inside a CNN, the Vision Transformer, and self-supervised learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, Tokens
from saccade.data.tokenization.tokenizers import START
from saccade.layers.record import record
from saccade.layers.vision.grid_attention import GridAttention
from saccade.layers.vision.patches import PatchEmbedding, ResNetCells
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, compute_sinusoids, compute_softmax, gelu
from saccade.lectures.references.transformer import Style, run_stack
from saccade.lectures.references.vision import list_cells, run_residual_block
from saccade.lectures.small import (
    VOCABULARY_SIZE,
    build_small_batch,
    load_small_recipe,
    max_difference,
    randomize_parameters,
)
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.model.writers.patches import PatchWriter, compute_patch_errors
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.masked_patches import masked_patch_loss
from saccade.train.objectives.objectives import build_objectives, r_drop_loss

PRE_NORM = Style(activation=gelu, pre_norm=True)
SMALL = ["reader.size=12", "reader.stack={layers=2, dim=12, heads=3, ff=17}"]
SMALL_CNN = [
    "reader.size=16",
    "reader.width=24",
    "reader.channels=[8, 16]",
    "reader.attention_levels=[1, 2]",
    "reader.depth=1",
]
PATCH, ACROSS = 4, 3  # pixels of a patch, patches in a row
RATIO = 0.6  # share of masked patches in the recipe vit-masked


# ---- self-attention inside a CNN


@check(
    66,
    "S3:1446",
    "Self-attention inside a CNN: 1 x 1 convolutions compute Q, K and V of all H x W positions.",
    formula=r"y = x + \gamma W_o \mathrm{softmax}(Q K^T) V",
    code=(GridAttention, ResNetCells),
    recipes=("cnn-self-attention",),
    breaks=(
        "uniform-attention",
        "grid-attention-open-at-first",
        "grid-attention-without-residual",
        "grid-attention-scaled",
        "doubled-values",
    ),
)
@torch.no_grad()
def attention_in_a_cnn() -> CheckResult:
    recipe = load("cnn-self-attention", overrides=SMALL_CNN)
    model = build(recipe, source_size=0, target_size=5).double().eval()
    pictures = torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)
    batch = Batch({"source": Pictures(pictures, torch.ones(2, 24, dtype=torch.bool))})
    fresh = model.read(batch).states
    without, _ = run_network(model.reader.cells.blocks, pictures, attends=False)
    randomize_parameters(model, scale=0.5)
    expected, weights = run_network(model.reader.cells.blocks, pictures, attends=True)
    states = model.read(batch).states
    with record(model) as maps:
        recorded = model.read(batch).states
    cells = list_cells(expected)
    logits = apply_linear(model.writer.output, cells.mean(1))
    return build_result(
        expect_near(
            "at first, gamma = 0: difference from the network without attention",
            max_difference(fresh, list_cells(without)),
            0,
            within=1e-11,
        ),
        expect_near(
            "another gamma: difference from x + gamma W_o softmax(Q K^T) V after both levels",
            max_difference(states, cells),
            0,
            within=1e-10,
        ),
        expect_near("while weights are recorded: difference", max_difference(recorded, cells), 0, within=1e-10),
        expect_equal(
            "positions of both levels that attend", " ".join(str(m.shape[-2]) for m in maps.values()), "96 24"
        ),
        expect_near(
            "weights: difference from softmax(Q K^T)",
            max(max_difference(one[:, 0], other) for one, other in zip(maps.values(), weights, strict=False)),
            0,
            within=1e-11,
        ),
        expect_near(
            "logits: difference from the output layer on the mean of the cells",
            max_difference(model.writer(model.read(batch)), logits),
            0,
            within=1e-10,
        ),
        note="`saccade view RUN PICTURE --target 3,4` shows what one cell of a trained network attends to.",
    )


def run_network(blocks: Any, pictures: Tensor, *, attends: bool) -> tuple[Tensor, list[Tensor]]:
    """The feature map, and the weights of each self-attention, which follows each residual block."""
    x, maps = pictures.double() / 127.5 - 1, list[Tensor]()
    parts = [[block for block in blocks if ("gamma" in block.state_dict()) == found] for found in (False, True)]
    for block, attention in zip(*parts, strict=False):
        x = run_residual_block(block, x)
        if attends:
            flat = x.flatten(2)
            query, key, value = (
                torch.einsum("oc,bcn->bno", part.weight[:, :, 0, 0], flat)
                for part in (attention.query, attention.key, attention.value)
            )
            maps.append(compute_softmax(query @ key.mT))
            attended = torch.einsum("co,bno->bcn", attention.output.weight[:, :, 0, 0], maps[-1] @ value)
            x = x + attention.gamma * attended.view_as(x)
    return x, maps


# ---- Vision Transformer


def build_small_vit(name: str = "vit") -> Model:
    """Build a small ViT for pictures of 12 x 12 pixels with patches of 4 x 4, with random parameters."""
    model = build(load(name, overrides=SMALL), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    return randomize_parameters(model.double().eval(), scale=0.5)


def sample_pictures(count: int) -> Pictures:
    pictures = torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8)
    return Pictures(pictures, torch.ones(count, ACROSS**2 + 1).bool())


def cut_patches(pixels: Tensor) -> Tensor:
    """Patches (B, N, 48) of pictures, row by row; each lists red, then green, then blue, row by row."""
    sides = [(PATCH * y, PATCH * x) for y in range(ACROSS) for x in range(ACROSS)]
    return torch.stack([pixels[:, :, y : y + PATCH, x : x + PATCH].flatten(1) for y, x in sides], 1)


def encode_by_hand(encoder: Any, pictures: Tensor) -> Tensor:
    """z_0 = [x_class; x_p E] + E_pos, then z' = MSA(LN(z)) + z and z = MLP(LN(z')) + z' per block, and a final LN."""
    z = apply_linear(encoder.cells.project, cut_patches(pictures.double() / 127.5 - 1))
    if encoder.first is not None:
        z = torch.cat((encoder.first.expand(len(z), 1, -1), z), 1)
    if encoder.positions.max_length is None:
        z = z + compute_sinusoids(z.shape[1], z.shape[2]).float()  # the model rounds them to float32
    else:
        z = z + encoder.positions.table.weight
    return run_stack(encoder.stack, z, PRE_NORM)


@check(
    105,
    "S2:8,22,216",
    "The Vision Transformer is a Transformer encoder over patches of a picture and a class token.",
    formula=r"z_0 = [x_{class}; x_p^1 E; ...; x_p^N E] + E_{pos}",
    code=(PatchEmbedding, PictureReader),
    recipes=("vit", "vit-masked"),
    breaks=(
        "uniform-attention",
        "class-token-left-out",
        "class-token-not-read",
        "cells-without-positions",
        "patches-in-column-order",
        "patches-transposed",
    ),
)
@torch.no_grad()
def vision_transformer() -> CheckResult:
    model, pictures = build_small_vit(), sample_pictures(2)
    states, logits = run_vit(model, pictures)
    expected = encode_by_hand(model.reader, pictures.values)
    swapped = pictures.values.clone()
    swapped[..., :PATCH, :PATCH], swapped[..., :PATCH, PATCH : 2 * PATCH] = (
        pictures.values[..., :PATCH, PATCH : 2 * PATCH],
        pictures.values[..., :PATCH, :PATCH],
    )
    return build_result(
        expect_equal("states: patches of 4 x 4 in a 12 x 12 picture, and the class token", states.shape[1], 10),
        expect_near("states: difference from the paper's equations", max_difference(states, expected), 0, within=1e-11),
        expect_near(
            "logits: difference from the output layer on the class token",
            max_difference(logits, apply_linear(model.writer.output, expected[:, 0])),
            0,
            within=1e-11,
        ),
        expect_at_least(
            "two patches exchanged: change of the logits, because of the positions",
            max_difference(logits, run_vit(model, Pictures(swapped, pictures.mask))[1]),
            1e-3,
        ),
        note="`saccade train vit --tiny` learns to classify coloured shapes in a minute.",
    )


def run_vit(model: Model, pictures: Pictures) -> tuple[Tensor, Tensor]:
    """The states and the logits."""
    memory = model.read(Batch({"source": pictures}))
    return memory.states, model.writer(memory)


# ---- learning without labels


@check(
    106,
    "S2:24,216",
    "Consistency losses and self-supervised learning: masked patches are reconstructed, two dropout passes must agree.",
    formula=r"L = \frac{1}{|H|} \sum_{i \in H} |x_i - y_i|^2",
    code=(PatchWriter, masked_patch_loss, r_drop_loss),
    recipes=("vit-masked",),
    breaks=(
        "uniform-attention",
        "masked-patches-visible",
        "loss-of-all-patches",
        "patches-in-column-order",
        "consistency-left-out",
        "one-dropout-pass",
    ),
)
def learning_without_labels() -> CheckResult:
    return build_result(
        *compare_masked_patches(),
        *compare_consistency(),
        note="`saccade train vit-masked --tiny --run seen`, then `saccade train vit --tiny init=seen`.",
    )


@torch.no_grad()
def compare_masked_patches() -> list[Comparison]:
    """The loss of the recipe vit-masked, whose reader must not see the pixels that it reconstructs."""
    model, pictures = build_small_vit("vit-masked"), sample_pictures(4)
    found = compute_patch_errors(model, pictures, build_generator(), mask_ratio=RATIO, normalize_pixels=True)
    masked = found.is_masked
    [objective] = build_objectives(load("vit-masked", overrides=SMALL))
    term = objective(model, Batch({"source": pictures}), build_generator())["patches"]
    pixels = cut_patches(pictures.values.double())
    painted = torch.where(masked[..., None], 127.5, pixels)
    inputs = painted.unflatten(1, (ACROSS, ACROSS)).unflatten(3, (3, PATCH, PATCH)).permute(0, 3, 1, 4, 2, 5)
    states = encode_by_hand(model.reader, inputs.reshape(4, 3, 12, 12))[:, -(ACROSS**2) :]
    scaled = pixels / 127.5 - 1
    targets = (scaled - scaled.mean(-1, keepdim=True)) / (scaled.var(-1, keepdim=True) + 1e-6).sqrt()
    errors = (apply_linear(model.writer.output, states) - targets).pow(2).mean(-1)
    changed = Pictures(torch.where(enlarge(masked), 255 - pictures.values, pictures.values), pictures.mask)
    others = compute_patch_errors(model, changed, build_generator(), mask_ratio=RATIO, normalize_pixels=True)
    return [
        expect_equal("masked patches of each of 4 pictures with 9", str(masked.sum(1).tolist()), "[5, 5, 5, 5]"),
        expect_at_least("different choices of them", len({tuple(row) for row in masked.tolist()}), 2),
        expect_near(
            "error of each patch: difference from a ViT that reads grey in place of the masked ones",
            max_difference(found.squared_errors.double(), errors),
            0,
            within=1e-4,
        ),
        expect_near(
            "loss: mean error of the masked patches",
            float(term.sum) / float(term.count),
            float(errors[masked].mean()),
            within=1e-4,
        ),
        expect_near(
            "other pixels in masked patches: change of the errors of visible patches",
            float(((found.squared_errors - others.squared_errors).abs() * ~masked).max()),
            0,
            within=1e-6,
        ),
    ]


def enlarge(masked: Tensor) -> Tensor:
    """The pixels (B, 1, 12, 12) of masked patches."""
    return masked.view(-1, 1, ACROSS, ACROSS).repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)


def build_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def compare_consistency() -> list[Comparison]:
    """R-Drop of a small Transformer: the divergence of two passes, and the gradient of the loss with it."""
    alpha, passes = 5.0, {}
    for dropout in (0.0, 0.3):
        recipe = load_small_recipe([f"{part}.stack.dropout={dropout}" for part in ("reader", "writer")])
        model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).train()
        torch.manual_seed(1)
        terms = r_drop_loss(model, build_small_batch(), build_generator(), label_smoothing=0.0, alpha=alpha)
        passes[dropout] = (terms, model)
    terms, model = passes[0.3]
    weight = model.writer.output.weight
    [gradient] = torch.autograd.grad(terms["next-token"].sum, weight)
    torch.manual_seed(1)
    loss, divergence = compute_two_passes(model)
    [expected] = torch.autograd.grad(loss + alpha / 2 * divergence, weight)
    return [
        expect_near("R-Drop without dropout: divergence", float(passes[0.0][0]["consistency"].sum), 0, within=1e-6),
        expect_near(
            "R-Drop with dropout 0.3: divergence, expected (KL(P1||P2) + KL(P2||P1)) / 2",
            float(terms["consistency"].sum),
            float(divergence.detach()),
            within=1e-3,
        ),
        expect_near(
            "R-Drop: gradient of the loss, largest difference from that of both formulas",
            max_difference(gradient, expected),
            0,
            within=1e-4,
        ),
        expect_at_least("R-Drop: divergence of two passes with dropout", float(terms["consistency"].sum), 1e-2),
    ]


def compute_two_passes(model: Model) -> tuple[Tensor, Tensor]:
    """Half of the cross-entropy of two passes with different dropout, and their divergence, both by hand."""
    batch = build_small_batch()
    twice = {name: Tokens(field.ids.repeat(2, 1), field.mask.repeat(2, 1)) for name, field in batch.fields.items()}
    target, real = twice["target"], batch["target"].mask
    hidden = model.write(shift_right(target.ids, START), target.mask, model.read(Batch(twice)))[0]
    first, second = model.writer.head(hidden).log_softmax(-1).unflatten(0, (2, -1))
    ids = batch["target"].ids[..., None]
    loss = -(first.gather(-1, ids) + second.gather(-1, ids))[..., 0][real].sum() / 2
    forward, backward = ((p.exp() * (p - q)).sum(-1)[real].sum() for p, q in ((first, second), (second, first)))
    return loss, (forward + backward) / 2
