"""Rows about pictures: self-attention inside a CNN, the Vision Transformer, and learning without labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures
from saccade.layers.attention import masks
from saccade.layers.record import record
from saccade.layers.vision.grid_attention import GridAttention
from saccade.layers.vision.patches import Convolutions, Patches, painted
from saccade.lectures.claims import Measured, at_least, check, measured, near, same
from saccade.lectures.small import VOCABULARY, apart, numbers, shape_of, small_batch, small_recipe
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.model.writers.patches import PatchWriter, missed_patches
from saccade.train.objectives.objectives import r_drop

SMALL = ["reader.size=12", "reader.stack={layers=2, dim=12, heads=3, ff=17}"]
HALF = 0.5


@check(
    66,
    "S3:1446",
    "Self-attention inside a CNN: 1 x 1 convolutions give Q, K and V of all H x W places.",
    formula=r"y = x + \gamma W_o \mathrm{softmax}(Q K^T) V",
    code=(GridAttention, Convolutions),
)
@torch.no_grad()
def attention_in_a_cnn() -> Measured:
    layer, x = GridAttention(16).double(), numbers(2, 16, 3, 5)
    fresh = layer(x)
    layer.gamma.fill_(0.7)
    query, key, value = (
        torch.einsum("oc,bcn->bno", part.weight[..., 0, 0], x.flatten(2))
        for part in (layer.query, layer.key, layer.value)
    )
    looked = (query @ key.mT).softmax(-1) @ value
    out = torch.einsum("co,bno->bcn", layer.output.weight[..., 0, 0], looked).view_as(x)
    with record(layer) as maps:
        layer(x)
    weights = next(iter(maps.values()))
    return measured(
        same("shape of what comes out", shape_of(fresh), shape_of(x)),
        near("gamma = 0: what comes out against what goes in", apart(fresh, x), 0, within=0.0),
        near("gamma = 0.7: against x + 0.7 W_o softmax(Q K^T) V", apart(layer(x), x + 0.7 * out), 0, within=1e-12),
        same("weights of 3 x 5 places", shape_of(weights[0, 0]), "15 x 15"),
        near("sum of each row of them", apart(weights.sum(-1), torch.ones(2, 1, 15).double()), 0, within=1e-12),
        note="`saccade view RUN PICTURE --target 3,4` shows where one cell of a trained network looks.",
    )


def small_vit(name: str = "vit") -> Model:
    """Pictures of 12 pixels in patches of 4."""
    return build(load(name, overrides=SMALL), source_size=VOCABULARY, target_size=VOCABULARY).double().eval()


def drawn_pictures(count: int) -> Pictures:
    return Pictures(torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8), torch.ones(count, 10).bool())


def by_hand(reader: PictureReader, pictures: Tensor) -> Tensor:
    """z_0 = [x_class; x_p E] + E_pos, then z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z', and LN at the end."""
    pixels = pictures.double() / 127.5 - 1
    cut = pixels.unflatten(3, (3, 4)).unflatten(2, (3, 4)).permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), 9, 48)
    cells: Patches = reader.cells  # type: ignore[assignment]
    assert reader.first is not None and reader.positions is not None, "the recipe has both"
    z = torch.cat((reader.first.expand(len(cut), 1, -1), F.linear(cut, cells.project.weight, cells.project.bias)), 1)
    z = z + reader.positions(masks.positions(10, z.device))
    for block in reader.stack.blocks:
        first, second = (residual.norm for residual in block.residuals)
        z = z + block.self(first(z))
        z = z + block.feedforward(second(z))
    return reader.stack.norm(z)


@check(
    105,
    "S2:8,22,216",
    "Vision Transformers.",
    formula=r"z_0 = [x_{class}; x_p^1 E; ...; x_p^N E] + E_{pos}",
    code=(Patches, PictureReader),
)
@torch.no_grad()
def vision_transformer() -> Measured:
    model, pictures = small_vit(), drawn_pictures(2)
    memory = model.reader(pictures.values, pictures.mask)
    logits = model.writer(memory)
    return measured(
        same("states of a picture of 12 x 12 in patches of 4 x 4, and one before them", memory.states.shape[1], 10),
        same("positions that are learned", shape_of(model.reader.positions.table.weight), "10 x 12"),
        near("states against the paper's equations", apart(memory.states, by_hand(model.reader, pictures.values)), 0,
             within=1e-12),
        near("class from the first state alone", apart(logits, model.writer.output(memory.states[:, 0])), 0,
             within=1e-12),
        note="`saccade train vit --tiny` tells coloured shapes apart in a minute.",
    )  # fmt: skip


@check(
    106,
    "S2:24,216",
    "Next time: consistency losses and self-supervised learning.",
    formula=r"L = \frac{1}{|H|} \sum_{i \in H} |x_i - y_i|^2",
    code=(PatchWriter, r_drop),
)
@torch.no_grad()
def learning_without_labels() -> Measured:
    model, pictures = small_vit("vit-masked"), drawn_pictures(4)
    missed = missed_patches(model, pictures, drawing(), hidden=HALF, normalised=True)
    others = missed_patches(model, changed(pictures, missed.hidden), drawing(), hidden=HALF, normalised=True)
    shown = ~missed.hidden
    return measured(
        same("hidden patches of 9 in each picture, half of them", shape_of(missed.squares[missed.hidden]), "16"),
        near("other pixels in hidden patches: what is drawn of shown ones", apart(
            missed.squares[shown], others.squares[shown]), 0, within=1e-12),
        at_least("and of hidden ones, which were not seen", apart(
            missed.squares[missed.hidden], others.squares[missed.hidden]), 1e-3),
        near("consistency loss (R-Drop) of two passes without dropout", agreement(dropout=0.0), 0, within=1e-6),
        at_least("and with dropout 0.3", agreement(dropout=0.3), 1e-3),
        note="`saccade train vit-masked --tiny --run seen`, then `saccade train vit --tiny init=seen`.",
    )  # fmt: skip


def drawing() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def changed(pictures: Pictures, hidden: Tensor) -> Pictures:
    """Other pixels where a patch is hidden, the same elsewhere."""
    gone = painted(torch.zeros_like(pictures.values), hidden, patch=4) > 0
    return Pictures(torch.where(gone, 255 - pictures.values, pictures.values), pictures.mask)


def agreement(*, dropout: float) -> float:
    """How far two passes of a small Transformer are apart."""
    recipe = small_recipe([f"{part}.stack.dropout={dropout}" for part in ("reader", "writer")])
    model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY).train()
    batch: Batch = small_batch()
    return float(r_drop(model, batch, drawing())["consistency"].sum)
