"""Masked language modelling (BERT, Devlin et al. 2019): the writer predicts tokens that are masked for the reader.

Each token except special ones is masked with the same probability, so that their number is random. The head computes
logits for a fixed number of positions per batch shape, large enough that a masked token is almost never left out: this
avoids a synchronization with the device, and a step can be a CUDA graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config import schema
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.batching.segments import PAIR_FIELD, ROW_FIELD, TOO_SHORT
from saccade.data.tokenization.special_tokens import find_special_ranges, get_mask_id
from saccade.data.tokenization.tokenizer import UNKNOWN
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.memory import Memory
from saccade.layers.packing import get_batch_layout
from saccade.model.model import Model
from saccade.train.objectives.terms import Context, Objective, Term, compute_token_losses, get_real_tokens

MAX_DEVIATIONS = 6  # standard deviations above the mean number of masked tokens: exceeded once in a billion batches
FLOAT32_STEPS = 2**24  # number of equidistant float32 values from 0 to 1


class Masking(NamedTuple):
    """How tokens are masked.

    Tokens are selected with probability `mask_rate`, alone or as n-grams; of these, `mask_replace_prob` become the
    mask token, `random_replace_prob` a random token, and the rest stay as they are.
    """

    mask_rate: float
    mask_replace_prob: float
    random_replace_prob: float
    mask_id: int
    special: Sequence[tuple[int, int]]  # ranges of special ids above UNKNOWN: the first id and the number of ids
    vocabulary_size: int
    dynamic: bool = True  # sample anew each time; else always the same tokens of a sequence
    max_ngram: int = 1  # largest number of adjacent tokens that are selected together


class MaskedTokens(NamedTuple):
    inputs: Int[Tensor, "B T"]  # ids after masking
    is_target: Bool[Tensor, "B T"]  # which tokens are to be predicted


def masked_token_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    masking: Masking,
    pairs: Literal["none", "next", "order"] = "none",
    pair_weight: float = 1.0,
    label_smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of masked tokens given all others; with `pairs`, also of whether two segments are consecutive."""
    tokens = batch[ROW_FIELD]
    noise = sample_noise(tokens, generator) if masking.dynamic else hash_noise(tokens)
    masked = mask_tokens(tokens, noise, masking)
    memory = model.reader(masked.inputs, tokens.mask)
    positions, keep = gather_targets(masked.is_target, rate=masking.mask_rate, max_ngram=masking.max_ngram)
    states = model.writer(memory.states.flatten(0, 1).index_select(0, positions))
    targets = tokens.ids.flatten().index_select(0, positions)
    smoothed, nll = compute_token_losses(model.writer, states, targets, keep, label_smoothing)
    count = keep.sum().clamp(min=1)  # a short batch may have none; its mean is then 0
    terms = {"masked": Term(smoothed, count, weight), "nll": Term(nll, count, 0.0)}
    return terms if pairs == "none" else {**terms, **compute_pair_terms(model, memory, batch[PAIR_FIELD], pair_weight)}


def build_masked_objective(table: schema.Masked, context: Context) -> Objective:
    """Build the objective from its table for the vocabulary of a tokenizer."""
    tokenizer = context.tokenizer
    if tokenizer is None:
        return functools.partial(masked_token_loss, **table.model_dump(exclude={"kind"}))
    masking_keys = {"mask_rate", "mask_replace_prob", "random_replace_prob", "dynamic_masking", "max_ngram"}
    settings = table.model_dump(exclude={"kind", *masking_keys})
    masking = Masking(
        mask_rate=table.mask_rate,
        mask_replace_prob=table.mask_replace_prob,
        random_replace_prob=table.random_replace_prob,
        mask_id=get_mask_id(tokenizer),
        special=find_special_ranges(tokenizer),
        vocabulary_size=tokenizer.size,
        dynamic=table.dynamic_masking,
        max_ngram=table.max_ngram,
    )
    return functools.partial(masked_token_loss, masking=masking, **settings)


def mask_tokens(tokens: Tokens, noise: Float[Tensor, "3 B T"], masking: Masking) -> MaskedTokens:
    """Mask tokens of a batch; `noise` is uniform from 0 to 1 and selects the tokens and their replacements."""
    maskable = get_real_tokens(tokens) & (tokens.ids > UNKNOWN)
    for first, count in masking.special:
        maskable = maskable & ((tokens.ids < first) | (tokens.ids >= first + count))
    is_target = maskable & select_ngrams(tokens, noise[0], masking.mask_rate, masking.max_ngram)
    random_ids = sample_any_token(noise[2], masking)
    replaced = torch.where(noise[1] < masking.mask_replace_prob, masking.mask_id, random_ids)
    replaced = torch.where(noise[1] < masking.mask_replace_prob + masking.random_replace_prob, replaced, tokens.ids)
    return MaskedTokens(torch.where(is_target, replaced, tokens.ids), is_target)


def select_ngrams(tokens: Tokens, noise: Float[Tensor, "B T"], rate: float, max_ngram: int) -> Bool[Tensor, "B T"]:
    """Select n-grams that cover a share `rate` of the tokens, n with p(n) ~ 1/n (ALBERT, Lan et al. 2020, section 4.1).

    The noise of a token decides whether an n-gram begins there, and how long it is. N-grams may overlap, and end with
    their sequence.
    """
    if max_ngram == 1:
        return noise < rate
    positions = get_batch_layout(tokens.mask).token_positions
    positions = torch.arange(noise.shape[1], device=noise.device) if positions is None else positions
    selected = torch.zeros_like(noise, dtype=torch.bool)
    for offset, start_prob in enumerate(compute_start_probs(rate, max_ngram)):
        begins = F.pad(noise[:, : noise.shape[1] - offset] < start_prob, (offset, 0))
        selected |= begins & (positions >= offset)
    return selected


@functools.cache
def compute_start_probs(rate: float, max_ngram: int) -> tuple[float, ...]:
    """For k = 0, 1 ...: the probability that an n-gram begins at a token and covers the k-th token after it.

    A token is then covered with probability `rate`: by none of those that begin up to max_ngram - 1 tokens before it,
    with probability prod_k (1 - p_k). At the beginning of a sequence, where fewer can reach, it is less.
    """
    total = sum(1 / n for n in range(1, max_ngram + 1))
    longer = [sum(1 / n for n in range(k + 1, max_ngram + 1)) / total for k in range(max_ngram)]  # P(n > k)
    low, high = 0.0, rate
    for _ in range(60):  # bisection to the precision of a float
        middle = (low + high) / 2
        covered = 1 - math.prod(1 - middle * share for share in longer)
        low, high = (middle, high) if covered < rate else (low, middle)
    return tuple(low * share for share in longer)


def sample_any_token(noise: Float[Tensor, "B T"], masking: Masking) -> Int[Tensor, "B T"]:
    """Map uniform noise to ids of tokens that are not special, all equally likely."""
    special = sum(count for _, count in masking.special)
    ordinary = masking.vocabulary_size - UNKNOWN - 1 - special
    ids = UNKNOWN + 1 + (noise * ordinary).long().clamp(max=ordinary - 1)
    for first, count in masking.special:  # in ascending order: ids from the start of a range on skip it
        ids = torch.where(ids >= first, ids + count, ids)
    return ids


def sample_noise(tokens: Tokens, generator: torch.Generator) -> Float[Tensor, "3 B T"]:
    return torch.rand(3, *tokens.ids.shape, generator=generator, device=tokens.ids.device)


def hash_noise(tokens: Tokens) -> Float[Tensor, "3 B T"]:
    """Hash each sequence and position to noise in [0, 1), so that masks are the same in every epoch and batch."""
    layout = get_batch_layout(tokens.mask)
    positions = torch.arange(tokens.ids.shape[1], device=tokens.ids.device).expand_as(tokens.ids)
    positions = positions if layout.token_positions is None else layout.token_positions
    hashes = mix_bits(tokens.ids * 0x10001 + positions) * layout.keep
    sequence_hash = layout.broadcast_to_tokens(layout.sum_per_sequence(hashes))
    index = torch.arange(3, device=hashes.device)[:, None, None]
    mixed = mix_bits(sequence_hash + 0x9E3779B9 * (3 * positions + index))
    return ((mixed >> 16) & (FLOAT32_STEPS - 1)).float() / FLOAT32_STEPS


def mix_bits(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Mix the bits of integers, so that each depends on all others (products overflow, as intended)."""
    for factor in (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15):
        x = (x ^ (x >> 29)) * factor
    return x ^ (x >> 32)


def gather_targets(
    is_target: Bool[Tensor, "B T"], *, rate: float, max_ngram: int = 1
) -> tuple[Int[Tensor, " K"], Bool[Tensor, " K"]]:
    """Return the flat indices of target tokens in K slots, and which slots are used; K depends on the shape alone."""
    flat = is_target.flatten()
    size = count_target_slots(len(flat), rate, max_ngram)
    slots = torch.where(flat, flat.cumsum(0) - 1, size).clamp(max=size)  # an extra last slot takes all other tokens
    indices = torch.zeros(size + 1, dtype=torch.long, device=flat.device)
    indices.scatter_(0, slots, torch.arange(len(flat), device=flat.device))
    return indices[:size], torch.arange(size, device=flat.device) < flat.sum()


def count_target_slots(tokens: int, rate: float, max_ngram: int = 1) -> int:
    """Number of slots for the masked ones among `tokens` tokens: the mean plus MAX_DEVIATIONS standard deviations.

    Tokens that are selected together vary as `max_ngram` times fewer tokens would, at most.
    """
    deviation = math.sqrt(rate * (1 - rate) * tokens * max_ngram)
    return min(tokens, math.ceil(rate * tokens + MAX_DEVIATIONS * deviation))


def compute_pair_terms(model: Model, memory: Memory, pair: Tokens, weight: float) -> dict[str, Term]:
    """Cross-entropy and accuracy of whether two segments are consecutive, over the sequences that have two."""
    logits = to_loss_dtype(model.writer.compute_pair_logits(memory))
    layout = get_batch_layout(pair.mask)
    labels = pair.ids.flatten().index_select(0, layout.starts)
    counted = layout.real_sequences & (labels != TOO_SHORT)
    classes = labels.clamp(max=1)
    losses = F.cross_entropy(logits, classes, reduction="none")
    right = (logits.argmax(-1) == classes) & counted
    count, total = counted.sum(), (losses * counted).sum()
    return {"pairs": Term(total, count, weight), "pairs_right": Term(right.sum().float(), count, 0.0)}
