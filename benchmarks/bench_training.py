"""One training step of a translation model, by saccade and by others: the training cases of `bench.py`.

The model, the batches, the loss (smoothed by 0.1), the dropout (0.1) and fused AdamW are the same for all.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.config import schema
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.model.build.model import build
from saccade.model.writers.tokens import shift_right
from saccade.train.batches.layout import choose_transform, should_pack
from saccade.train.loss import MicroBatchLoss
from saccade.train.objectives.objectives import build_objectives

if TYPE_CHECKING:
    from bench import Case, Size, Step

SMOOTHING = DROPOUT = 0.1
Pairs = list[tuple[np.ndarray, np.ndarray]]  # source and target ids, END last


def build_training_cases(size: "Size") -> Iterable["Case"]:
    """A step on one batch of equal lengths, and one on each of three batches of mixed lengths."""
    from bench import OURS, Case

    for what, batches in (("one length", [build_equal_batches(size)]), ("mixed lengths", build_mixed_batches(size))):
        makers = {
            OURS: lambda batches=batches: ours(size, batches),
            "nn.Transformer": lambda batches=batches: plain(size, batches),
            "Hugging Face": lambda batches=batches: marian(size, batches),
        }
        tokens = sum(len(source) + len(target) for batch in batches for source, target in batch)
        yield Case(f"train a {size.layers} + {size.layers} x {size.dim} model, {what}", makers, tokens)


# ---- batches


def build_equal_batches(size: "Size") -> Pairs:
    draw = np.random.default_rng(1)
    length = min(25, size.tokens // 4)
    return [sample_pair(draw, size, length, length) for _ in range(size.tokens // length)]


def build_mixed_batches(size: "Size", batches: int = 3) -> list[Pairs]:
    """Build a short, a middle and a long batch of sentences with similar lengths, as bucketing makes them."""
    draw = np.random.default_rng(2)
    longest = min(80, size.tokens // 4)
    sources = np.clip(draw.lognormal(math.log(min(22, longest / 2)), 0.55, size=size.tokens), 3, longest).astype(int)
    targets = np.clip(sources * draw.uniform(0.8, 1.2, size=len(sources)), 3, longest).astype(int)
    order = np.argsort(np.maximum(sources, targets), kind="stable")
    chosen = []
    for share in np.linspace(0.25, 0.9, batches):
        rows = order[int(share * len(order)) :]
        rows = rows[: max(1, size.tokens // int(max(sources[rows[0]], targets[rows[0]])))]
        chosen.append([sample_pair(draw, size, int(sources[row]), int(targets[row])) for row in rows])
    return chosen


def sample_pair(draw: np.random.Generator, size: "Size", source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    first, second = (np.append(draw.integers(5, size.words, length - 1), END) for length in (source, target))
    return first, second


# ---- contenders


def ours(size: "Size", batches: list[Pairs]) -> "Step":
    """Build the step of saccade with the model, objective and packed batches of `saccade train`."""
    stack = schema.TransformerStack(layers=size.layers, dim=size.dim, heads=size.heads, ff=size.ff, dropout=DROPOUT)
    reader, writer = schema.TokenReader(stack=stack), schema.TokenWriter(stack=stack)
    recipe = schema.Recipe(reader=reader, writer=writer, objectives=(schema.NextToken(label_smoothing=SMOOTHING),))
    model, device = build(recipe, source_size=size.words, target_size=size.words).train(), torch.device("cpu")
    loss = MicroBatchLoss(model, objectives=build_objectives(recipe), settings=recipe.train, device=device)
    shape = choose_transform(recipe.train, packed=should_pack(recipe.train, model, device), device=device)
    made = [Batch({"source": pad([s for s, _ in one]), "target": pad([t for _, t in one])}) for one in batches]
    made = [shape(batch) if shape else batch for batch in made]
    generator = torch.Generator()

    def losses() -> Iterable[Tensor]:
        for batch in made:
            sums = loss(batch, generator)
            yield sums.total / sums.count

    return build_training_step(model, losses)


def plain(size: "Size", batches: list[Pairs]) -> "Step":
    """`nn.Transformer` with embeddings around it, as its documentation shows."""
    model = Plain(size).train()
    tensors = [pad_batch(batch) for batch in batches]

    def losses() -> Iterable[Tensor]:
        for source, target in tensors:
            yield compute_smoothed_loss(model(source, shift_right(target, START)), target)

    return build_training_step(model, losses)


def marian(size: "Size", batches: list[Pairs]) -> "Step":
    """Hugging Face's Marian, the Transformer of its translation models."""
    from transformers import MarianMTModel

    model = MarianMTModel(marian_settings(size)).train()
    tensors = [pad_batch(batch) for batch in batches]

    def losses() -> Iterable[Tensor]:
        for source, target in tensors:
            inputs = shift_right(target, START)
            found = model(input_ids=source, attention_mask=source != PAD, decoder_input_ids=inputs, use_cache=False)
            yield compute_smoothed_loss(found.logits, target)

    return build_training_step(model, losses)


def marian_settings(size: "Size") -> Any:
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=size.words, d_model=size.dim, encoder_layers=size.layers, decoder_layers=size.layers,
        encoder_attention_heads=size.heads, decoder_attention_heads=size.heads, encoder_ffn_dim=size.ff,
        decoder_ffn_dim=size.ff, activation_function="relu", dropout=DROPOUT, attention_dropout=0.0,
        scale_embedding=True, max_position_embeddings=128, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=START, forced_eos_token_id=None,
    )  # fmt: skip


class Plain(nn.Module):
    def __init__(self, size: "Size") -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.words, size.dim)
        self.places = nn.Embedding(128, size.dim)
        self.dropout = nn.Dropout(DROPOUT)
        self.body = nn.Transformer(size.dim, size.heads, size.layers, size.layers, size.ff, DROPOUT, batch_first=True)
        self.scale = math.sqrt(size.dim)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.places.weight[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length, padding = target.shape[1], source == PAD
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.body(
            self.embed(source), self.embed(target), tgt_mask=later, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return hidden @ self.embedding.weight.T


def pad_batch(batch: Pairs) -> tuple[Tensor, Tensor]:
    return pad([source for source, _ in batch]).ids, pad([target for _, target in batch]).ids


def compute_smoothed_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


def build_training_step(model: nn.Module, losses: Any) -> "Step":
    """Build a step that performs one optimizer update for each loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        for loss in losses():
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step
