"""XLNet and Reformer, compared with their formulas: two streams in any order; hashed attention, reversible layers."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.layers.attention.lsh import Hashing, hash_vectors
from saccade.lectures.claims import Comparison, expect_at_least, expect_at_most, expect_equal, expect_near
from saccade.lectures.references.basics import apply_layer_norm, apply_linear, find_segments
from saccade.lectures.references.comparing import compare_gradients
from saccade.lectures.references.transformer import (
    compute_feedforward,
    compute_heads,
    compute_two_streams,
    join_heads,
    project_heads,
)
from saccade.lectures.scale.family_checks import build_family, compare, load_family, sample_ids
from saccade.lectures.small import VOCABULARY_SIZE, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.objectives.objectives import build_objectives
from saccade.train.objectives.permuted import FactorizationOrder, sample_order

# ---- XLNet


SEGMENT, MEMORY = 8, 6  # words of a segment, and states that the next one sees


def build_xlnet() -> tuple[Model, Any]:
    sizes = f"kind = 'permuted', span_length = 3, segment_length = {SEGMENT}, memory_length = {MEMORY}"
    still = (f"reader.stack.{key}=0.0" for key in ("attention_dropout", "ff_dropout"))
    recipe = load_family("xlnet", ("reader",), (f"objectives=[{{ {sizes} }}]", *still))
    return build_family(recipe), build_objectives(recipe)[0]


@torch.no_grad()
def check_xlnet() -> list[Comparison]:
    """Compare both streams, and the loss over two segments with memory; see which words each query depends on."""
    net, objective = build_xlnet()
    ids, order, at = sample_ids(1, 9), torch.randperm(9) - 3, torch.arange(9)
    order = order.clamp(min=-1)
    ids[0, 4] = END
    found = _run_streams(net, ids, order)
    h, g, _ = compute_two_streams(net, ids[0], order, at=at, segments=find_segments(ids[0]))
    wrong = _count_wrong_dependencies(net, ids, order)
    return [
        compare("XLNet: content stream", found[0][0], h),
        compare("XLNet: query stream", found[1][0], g),
        expect_equal(
            "XLNet: predicted words that see themselves, or one later in the order, or not one before", wrong[0], 0
        ),
        expect_equal("XLNet: contents that do not see their own word", wrong[1], 0),
        *_compare_permutation_loss(net, objective),
    ]


def _run_streams(net: Model, ids: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Both streams with a query at each position."""
    rows, every = order.expand_as(ids), torch.arange(ids.shape[1]).expand_as(ids)
    segments = find_segments(ids)
    keep = torch.ones_like(ids, dtype=torch.bool)
    streams = net.writer(net.reader, ids, rows, at=every, keep=keep, segments=segments)
    return streams.content, streams.query


def _count_wrong_dependencies(net: Model, ids: Tensor, order: Tensor) -> tuple[int, int]:
    """Change each word; count the queries and contents that change though they must not, or the other way round."""
    places = [place for place in range(9) if int(ids[0, place]) != END]
    moved = ids.repeat(len(places), 1)
    moved[torch.arange(len(places)), places] = torch.where(ids[0, places] == 9, 10, 9)
    before, after = _run_streams(net, ids, order), _run_streams(net, moved, order)
    content, query = ((two - one).abs().amax(-1) > 1e-12 for one, two in zip(before, after, strict=True))
    allowed = (order[places][:, None] < order[None]) | (order[places][:, None] < 0)  # word, query
    return int((query != allowed)[:, order >= 0].sum()), int((~content[torch.arange(len(places)), places]).sum())


def _compare_permutation_loss(net: Model, objective: Any) -> list[Comparison]:
    """Compare the loss of two rows, the second with padding, segment by segment."""
    ids = sample_ids(2, 2 * SEGMENT)
    ids[0, 3], ids[1, 12:] = END, PAD
    keep = ids != PAD
    terms = objective(net, Batch({"source": Tokens(ids, keep)}), torch.Generator().manual_seed(5))
    generator, loss, count, past = torch.Generator().manual_seed(5), 0.0, 0, [[], []]  # type: ignore[var-annotated]
    orders = []
    for begin in (0, SEGMENT):
        part = slice(begin, begin + SEGMENT)
        order = sample_order((keep & (ids > END))[:, part], generator, tokens_per_prediction=6, span_length=3)
        orders.append(order)
        for row in range(2):
            size = int(keep[row, part].sum())
            real = order.target_positions[row][order.real[row]].clamp(max=size - 1)
            segments = find_segments(ids[row])[begin - len(past[row][0]) if past[row] else begin : begin + size]
            words = ids[row, part][:size]
            ranks = order.step[row, :size]
            _, g, inputs = compute_two_streams(net, words, ranks, at=real, segments=segments, past=past[row])
            scores = (g @ net.reader.embedding.tokens.weight.T + net.writer.output.bias).log_softmax(-1)
            loss -= float(scores.gather(1, words[real][:, None]).sum())
            past[row], count = [x[-MEMORY:] for x in inputs], count + len(real)
    return [
        expect_near(
            "XLNet: loss with memory, difference from the formulas", float(terms["permuted"].sum) - loss, 0, within=1e-4
        ),
        expect_equal("XLNet: predicted words of 28, one in six of each segment", int(terms["permuted"].count), count),
        *_check_orders(orders),
    ]


def _check_orders(orders: list[FactorizationOrder]) -> list[Comparison]:
    """The last words of an order are predicted, one after the other; orders differ."""
    generator = torch.Generator().manual_seed(1)
    sampled = sample_order(torch.ones(200, 24, dtype=torch.bool), generator, tokens_per_prediction=6, span_length=1)
    ranks = sampled.step.sort(1).values[:, -4:]
    places = torch.stack([(sampled.step >= 0)[:, place].float().mean() for place in range(24)])
    return [
        expect_equal(
            "XLNet: orders of 200 with the ranks 0, 1, 2, 3", int((ranks == torch.arange(4)).all(1).sum()), 200
        ),
        expect_at_most(
            "XLNet: most frequent place of a predicted word, in 200 orders of 24", float(places.max()), 0.32
        ),
        expect_at_least(
            "XLNet: places whose rank falls from left to right", int((sampled.step.diff(dim=1) < 0).sum()), 200
        ),
    ]


# ---- Reformer


CHUNK, LENGTH, ROUNDS = 4, 19, 2


def compute_reformer(net: Any, ids: Tensor) -> Tensor:
    """The logits of Reformer for one sequence (Kitaev et al. 2020): y1 = x1 + F(x2), y2 = x2 + G(y1) in each layer."""
    embedding, stack = net.writer.embedding, net.writer.stack
    rows, columns = embedding.positions.rows.weight, embedding.positions.columns.weight
    places = torch.arange(len(ids))
    positions = torch.cat((rows[places // len(columns)], columns[places % len(columns)]), -1)
    x1 = x2 = embedding.tokens.weight[ids] + positions
    for number, block in enumerate(stack.blocks):
        inner = apply_layer_norm(block.norms[0], x2)
        attended = attend_hashed(block.attention, inner) if number % 2 else attend_locally(block.attention, inner)
        x1 = x1 + attended
        x2 = x2 + compute_feedforward(block.feedforward, apply_layer_norm(block.norms[1], x1))
    return apply_linear(net.writer.output, apply_layer_norm(stack.norm, torch.cat((x1, x2), -1)))


def attend_locally(layer: Any, x: Tensor) -> Tensor:
    """Attention to the own chunk and the one before, and to nothing later."""
    places = torch.arange(len(x))
    allowed = (places[None] <= places[:, None]) & (places[None] // CHUNK >= places[:, None] // CHUNK - 1)
    return apply_linear(layer.out, join_heads(compute_heads(layer, x, allowed=allowed)))


def attend_hashed(layer: Any, x: Tensor) -> Tensor:
    """LSH attention: in each round to the own chunk and the one before, in the order of buckets.

    Keys are queries of length 1. The rounds share one softmax, in which a key that is seen twice counts twice. A word
    attends to itself only where it may attend to no other.
    """
    (shared, value), size = project_heads(layer.project, x), len(x)
    heads, _, width = shared.shape
    unit = shared / (shared.square().sum(-1, keepdim=True) + 1e-6 * width).sqrt()
    buckets = 2 ** max(1, (2 * (size // CHUNK)).bit_length() - 1)
    rotations = torch.randn(
        heads, width, ROUNDS, buckets // 2, generator=torch.Generator().manual_seed(0), dtype=x.dtype
    )
    padded, counts = -(-size // CHUNK) * CHUNK, torch.zeros(heads, size, size, dtype=x.dtype)
    for head in range(heads):
        orders: list[int] = []
        for r in range(ROUNDS):
            rotated = shared[head] @ rotations[head, :, r]
            bucket = torch.cat((rotated, -rotated), -1).argmax(-1)
            orders += [*bucket.argsort(stable=True).tolist(), *range(size, padded)]  # padding comes last
        chunks = [orders[i : i + CHUNK] for i in range(0, len(orders), CHUNK)]
        for index, chunk in enumerate(chunks):
            for q, k in itertools.product(chunk, (*chunks[index - 1], *chunk)):
                if k < q < size:
                    counts[head, q, k] += 1
    alone = (counts.sum(-1, keepdim=True) == 0) * torch.eye(size, dtype=x.dtype)
    exponents = torch.einsum("hqe,hke->hqk", shared, unit).exp() * counts + alone
    return apply_linear(layer.out, torch.cat(tuple(exponents / exponents.sum(-1, keepdim=True) @ value), -1))


def build_reformer(layers: int = 4) -> Model:
    chunks = f"{{ length = {CHUNK}, hashes = {ROUNDS}, feedforward = 5 }}"
    sizes = ("heads=2", "head_dim=5", f"chunks={chunks}", f"layers={layers}")
    changes = ("writer.positions.shape=[8, 8]", *(f"writer.stack.{size}" for size in sizes))
    recipe = load_family("reformer", ("writer",), changes)
    net = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
    randomize_parameters(net, scale=0.3)
    return net


def check_reformer() -> list[Comparison]:
    """Compare logits and gradients, which come from activations that are computed again from the outputs."""
    net, ids = build_reformer(), sample_ids(1, LENGTH)
    ours = net.writer.head(net.writer(ids, None, None))[0]
    theirs = compute_reformer(net, ids[0])
    with torch.no_grad():
        again = net.writer.head(net.writer(ids, None, None))[0]
    saved = [_count_saved(build_reformer(layers), ids) for layers in (2, 6)]
    name = "Reformer: activations that 6 layers keep for the backward pass, as many as 2 layers"
    return [
        compare("Reformer: logits", ours, theirs),
        compare("Reformer: logits without gradients", again, theirs),
        compare_gradients("Reformer, from reversed layers", net, ours, theirs),
        expect_equal(name, saved[1], saved[0]),
        *_check_hashing(),
    ]


def _count_saved(net: Model, ids: Tensor) -> int:
    """Count the tensors (B, T, D) that the layers keep for the backward pass."""
    kept: set[int] = set()

    def keep(x: Tensor) -> Tensor:
        if x.is_floating_point() and x.shape == (1, LENGTH, 12):
            kept.add(x.data_ptr())
        return x

    x = net.writer.embedding(ids)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = net.writer.stack(x, None)[0]
    assert y.shape == (1, LENGTH, 24)
    return len(kept)


def _check_hashing() -> list[Comparison]:
    """Nearby vectors share a bucket more often than any two, whatever their length."""
    x = torch.randn(1, 1, 400, 16, dtype=torch.float64)
    near = x + 0.1 * torch.randn_like(x)
    rotations = Hashing(rounds=4, chunk=4).sample_rotations((16,), x)
    first, second, longer, other = (hash_vectors(y, rotations, (16,)) for y in (x, near, 7 * x, x.roll(1, 2)))
    return [
        expect_at_least("Reformer: nearby vectors in one bucket of 16", float((first == second).double().mean()), 0.7),
        expect_at_most("Reformer: any two vectors in one bucket of 16", float((first == other).double().mean()), 0.15),
        expect_equal("Reformer: vectors whose bucket depends on their length", int((first != longer).sum()), 0),
    ]
