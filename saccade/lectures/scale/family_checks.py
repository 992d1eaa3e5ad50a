"""The models of the successors of the Transformer, compared with their formulas: GPT, BERT and its kin, T5."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.layers.memory import Memory
from saccade.lectures.claims import Comparison, expect_equal, expect_near
from saccade.lectures.references.basics import (
    apply_linear,
    apply_rms_norm,
    build_causal_mask,
    gelu,
    gelu_tanh,
    shift_targets,
)
from saccade.lectures.references.comparing import compare_gradients
from saccade.lectures.references.transformer import Style, decode_text, encode_text, run_stack
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.objectives.objectives import build_objectives

ROUNDING = 1e-9
SIZES = ("layers=4", "dim=12", "heads=3", "ff=17")


@functools.lru_cache(64)
def load_family(name: str, parts: tuple[str, ...], changes: tuple[str, ...] = ()) -> Recipe:
    """Load a recipe with four layers of width 12 in these parts, and without dropout."""
    small = [f"{part}.stack.{size}" for part in parts for size in SIZES]
    still = [f"{key}=0.0" for part in parts for key in (f"{part}.dropout", f"{part}.stack.dropout")]
    return load(name, overrides=[*small, *still, "data.max_length=64", *changes])


def build_family(recipe: Recipe, *, size: int = VOCABULARY_SIZE) -> Model:
    """Build the model of a recipe in float64, with random biases and gains too."""
    net = build(recipe, source_size=size, target_size=size).double().eval()
    randomize_parameters(net, scale=0.2)
    return net


def sample_ids(rows: int, length: int) -> Tensor:
    """Random words, no special tokens."""
    return torch.randint(4, VOCABULARY_SIZE, (rows, length))


def compare(what: str, ours: Tensor, theirs: Tensor) -> Comparison:
    return expect_near(f"{what}, difference from the formulas", max_difference(ours, theirs), 0, within=ROUNDING)


# ---- GPT-2 and GPT-3


LANGUAGE_MODEL = Style(pre_norm=True, activation=gelu_tanh)


def compute_language_model(net: Any, ids: Tensor, windows: Sequence[int | None]) -> Tensor:
    """The logits of GPT: learned positions, pre-norm, causal, the output matrix is the embedding."""
    states = decode_text(net.writer, ids, LANGUAGE_MODEL, windows)
    return states @ net.writer.embedding.tokens.weight.T


def check_language_model(
    name: str, recipe_name: str, windows: Sequence[int | None], changes: Sequence[str] = ()
) -> list[Comparison]:
    """Compare logits and loss; see that no word depends on a later one, and which earlier ones a layer sees."""
    recipe = load_family(recipe_name, ("writer",), ("writer.positions.length=64", *changes))
    net, ids = build_family(recipe), sample_ids(2, 11)
    keep = torch.ones_like(ids, dtype=torch.bool)
    logits = net.writer.head(net.writer(ids, None, None))
    expected = compute_language_model(net, ids, windows)
    with torch.no_grad():
        terms = build_objectives(recipe)[0](net, Batch({"target": Tokens(ids, keep)}), torch.Generator())
        log_probs = compute_language_model(net, shift_targets(ids), windows).log_softmax(-1)
    loss = float(terms["next-token"].sum + log_probs.gather(2, ids[..., None]).sum())
    return [
        compare(f"{name}: logits", logits, expected),
        compare(f"{name}: logits, word by word", decode_stepwise(net, ids, None), expected),
        compare_gradients(name, net, logits, expected),
        expect_near(f"{name}: loss, difference from -sum of log P(next word)", loss, 0, within=1e-4),
        *_find_reach(name, net, ids, windows),
    ]


@torch.no_grad()
def decode_stepwise(net: Model, ids: Tensor, memory: Memory | None) -> Tensor:
    """The logits of all words, one step for each."""
    state, logits = net.writer.start(memory, capacity=ids.shape[1], rows=len(ids)), []
    for t in range(ids.shape[1]):
        step = net.writer.step(ids[:, t : t + 1], state)
        state = step.state
        logits.append(step.logits)
    return torch.stack(logits, 1)


@torch.no_grad()
def _find_reach(name: str, net: Model, ids: Tensor, windows: Sequence[int | None]) -> list[Comparison]:
    """Move the input of each layer at position 5 and list which outputs of its attention move."""
    found, x = [], torch.randn(1, ids.shape[1], 12, dtype=torch.float64)
    moved = x.clone()
    moved[:, 5] += 1
    stack: Any = net.writer.stack
    for block, window in zip(stack.blocks, stack.windows, strict=True):
        mask = stack.build_mask(None, window)
        first, second = (block.self(y, mask=mask) for y in (x, moved))
        found.append(((first - second)[0].abs().amax(-1) > 1e-12).nonzero()[:, 0].tolist())
    expected = [list(range(5, 11 if window is None else 6 + window)) for window in windows]
    return [expect_equal(f"{name}: words that see word 5, by layer", str(found), str(expected))]


def check_gpt2() -> list[Comparison]:
    return check_language_model("GPT-2", "gpt2", [None] * 4)


def check_gpt3() -> list[Comparison]:
    return check_language_model("GPT-3", "gpt3", [None, 3, None, 3], ['writer.stack.window=["none", 3]'])


# ---- BERT, RoBERTa, ALBERT


ENCODERS = {
    "BERT": ("bert", Style(activation=gelu, epsilon=1e-12)),
    "RoBERTa": ("roberta", Style(activation=gelu)),
    "ALBERT": ("albert", Style(activation=gelu_tanh, epsilon=1e-12, shared=True)),
}


def predict_masked(net: Any, states: Tensor, style: Style) -> Tensor:
    """E norm(f(W x + b)) + c, where E are the word vectors."""
    hidden = style.normalize(net.writer.norm, style.activation(apply_linear(net.writer.transform, states)))
    return hidden @ net.reader.embedding.tokens.weight.T + net.writer.output.bias


def predict_pair(net: Any, states: Tensor) -> Tensor:
    """V tanh(W x_1 + b) + c: whether the second sentence follows, from the first word."""
    return apply_linear(net.writer.follows, torch.tanh(apply_linear(net.writer.hidden, states[0])))


def build_encoder(name: str) -> tuple[Model, Style]:
    recipe_name, style = ENCODERS[name]
    narrow = ("reader.embedding_dim=5",) if name == "ALBERT" else ()
    recipe = load_family(recipe_name, ("reader",), ("reader.positions.length=64", *narrow))
    return build_family(recipe), style


def check_encoder(name: str) -> list[Comparison]:
    """Compare states and both heads for two sentence pairs of different length; see that all words see all."""
    net, style = build_encoder(name)
    ids = sample_ids(2, 12)
    ids[0, [4, 11]], ids[1, [2, 6]] = END, END
    lengths = torch.tensor([12, 7])
    keep = torch.arange(12) < lengths[:, None]
    memory = net.reader(ids.masked_fill(~keep, PAD), keep)
    compared = []
    for row, length in enumerate(lengths.tolist()):
        states = encode_text(net, ids[row, :length], style)
        logits = net.writer.head(net.writer(memory.states[row, :length]))
        compared.append(compare(f"{name}: states of sentence pair {row + 1}", memory.states[row, :length], states))
        compared.append(compare(f"{name}: logits of masked words", logits, predict_masked(net, states, style)))
        if name != "RoBERTa":
            follows = net.writer.compute_pair_logits(memory)[row]
            compared.append(compare(f"{name}: sentence pairs, from the first word", follows, predict_pair(net, states)))
    moved = ids[:1].repeat(12, 1)
    moved[torch.arange(12), torch.arange(12)] = torch.where(ids[0] == 9, 10, 9)
    real = torch.ones_like(moved, dtype=torch.bool)
    states = encode_text(net, ids[0], style)
    seen = (net.reader(moved, real).states - memory.states[:1]).abs().amax(-1) > 1e-12
    vectors = len(net.reader.embedding.segments.weight)
    own = len({id(block) for block in net.reader.stack.blocks})
    width = net.reader.embedding.tokens.weight.shape[1]
    return [
        *compared,
        compare_gradients(name, net, memory.states[0], states),
        expect_equal(f"{name}: pairs of words of 12 x 12 that see each other", int(seen.sum()), 144),
        expect_equal(f"{name}: segment vectors", vectors, 1 if name == "RoBERTa" else 2),
        expect_equal(f"{name}: layers with weights of their own, of 4", own, 1 if name == "ALBERT" else 4),
        expect_equal(f"{name}: features of a word vector, for layers of 12", width, 5 if name == "ALBERT" else 12),
    ]


# ---- T5


TEXT_TO_TEXT = Style(norm=apply_rms_norm, epsilon=1e-6, activation=gelu_tanh, pre_norm=True, scaled=False, gated=True)
BUCKETS, FARTHEST = 8, 20


def compute_bucket(distance: int, *, both: bool) -> int:
    """The bucket of key position - query position: near ones have their own, far ones share by logarithm."""
    half = BUCKETS // 2 if both else BUCKETS
    first = half if both and distance > 0 else 0
    near, exact = abs(distance) if both else max(-distance, 0), half // 2
    if near < exact:
        return first + near
    return first + min(half - 1, exact + int(math.log(near / exact) / math.log(FARTHEST / exact) * (half - exact)))


def build_bias(term: Any, length: int, *, both: bool) -> Tensor:
    """The bias (H, T, T) that is added to the scores."""
    buckets = [[compute_bucket(j - i, both=both) for j in range(length)] for i in range(length)]
    bias: Tensor = term.table.weight[torch.tensor(buckets)].permute(2, 0, 1)
    return bias


def add_bias(head: int, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """Q K^T + B, not scaled."""
    return q @ k.mT + bias[head]


def compute_t5(net: Any, source: Tensor, target: Tensor) -> Tensor:
    """The logits of T5 for one pair; the decoder starts with the vector of padding."""
    tokens, (reader, writer) = net.reader.embedding.tokens.weight, (net.reader.stack, net.writer.stack)
    inside = build_bias(reader.blocks[0].self.heads.term, len(source), both=True)
    before = build_bias(writer.blocks[0].self.heads.term, len(target), both=False)
    states = run_stack(reader, tokens[source], TEXT_TO_TEXT, score=functools.partial(add_bias, bias=inside))
    x, causal = tokens[target.masked_fill(target == START, PAD)], build_causal_mask(len(target))
    score = functools.partial(add_bias, bias=before)
    y = run_stack(writer, x, TEXT_TO_TEXT, allowed=[causal], score=score, memory=states)
    return apply_linear(net.writer.output, y)


def check_t5() -> list[Comparison]:
    """Compare logits for two pairs of different length, all at once and step by step; find biases in the model."""
    keys = (f"positions.buckets={BUCKETS}", f"positions.max_distance={FARTHEST}", "stack.head_dim=5")
    parts = ("reader", "writer")
    net = build_family(load_family("t5", parts, tuple(f"{part}.{key}" for part in parts for key in keys)))
    source, target = sample_ids(2, 26), sample_ids(2, 14)
    target[:, 0], lengths = START, (26, 9)
    keep = torch.arange(26) < torch.tensor(lengths)[:, None]
    memory = net.reader(source.masked_fill(~keep, PAD), keep)
    logits = net.writer.head(net.writer(target, None, memory))
    expected = torch.stack([compute_t5(net, source[row, :length], target[row]) for row, length in enumerate(lengths)])
    biases = [name for name, _ in net.named_parameters() if name.endswith("bias")]
    return [
        compare("T5: logits", logits, expected),
        compare("T5: logits, word by word", decode_stepwise(net, target, memory), expected),
        compare_gradients("T5", net, logits, expected),
        expect_equal("T5: parameters that are added, in norms and linear maps", len(biases), 0),
    ]
