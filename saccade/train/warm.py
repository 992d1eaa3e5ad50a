"""Warm start: weights of an earlier run by name and shape, rows of embeddings by the piece that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.config.kinds import Custom
from saccade.config.schema import NoReader, Recipe
from saccade.data.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.model.run import load_run, named_weights

# Tensors with one row for each piece of a vocabulary, and whose vocabulary it is.
BY_PIECE = {
    "reader.embedding.tokens.weight": "source",
    "writer.embedding.tokens.weight": "target",
    "writer.output.weight": "target",
    "writer.output.bias": "target",
}


@dataclass
class Taken:
    tensors: int = 0
    of: int = 0
    rows: int = 0
    of_rows: int = 0

    def __str__(self) -> str:
        rows = f" and {self.rows:,} of {self.of_rows:,} embedding rows by their piece" if self.of_rows else ""
        return f"{self.tensors} of {self.of} tensors{rows}"


def warm_start(
    model: Model, recipe: Recipe, tokenizers: Tokenizers, *, kinds: Mapping[str, Any] | None = None
) -> list[str]:
    """Takes over weights as `init`, `reader.init` and `writer.init` ask; says how many, the rest stays fresh."""
    parts = {"": recipe.init, "reader.": part_init(recipe.reader), "writer.": part_init(recipe.writer)}
    notes = []
    for prefix, run in parts.items():
        if run:
            taken = take_over(model, tokenizers, run=run, prefix=prefix, kinds=kinds)
            notes.append(f"{prefix}init={run}: {taken} taken over")
    return notes


def part_init(part: Any) -> str:
    return "" if isinstance(part, Custom | NoReader) else str(part.init)


@torch.no_grad()
def take_over(model: Model, tokenizers: Tokenizers, *, run: str, prefix: str, kinds: Mapping[str, Any] | None) -> Taken:
    """Copies what fits from the run into the model, where names begin with `prefix`."""
    old = load_run(run, kinds=kinds)
    weights = old.model.state_dict()  # tied tensors under each of their names
    taken = Taken()
    for short, tensor in named_weights(model.get_submodule(prefix.removesuffix("."))).items():
        name = prefix + short
        side = BY_PIECE.get(name)
        source, new = weights.get(name), tokenizer_of(tokenizers, side)
        before = tokenizer_of(old.tokenizers, side)
        by_piece = new is not None and before is not None and new.fingerprint() != before.fingerprint()
        taken.of += 1
        if by_piece and source is not None and source.shape[1:] == tensor.shape[1:]:
            rows = copy_rows(tensor, source, new=new, old=before)  # type: ignore[arg-type]
            taken.tensors, taken.rows, taken.of_rows = taken.tensors + 1, taken.rows + rows, taken.of_rows + len(tensor)
        elif not by_piece and source is not None and source.shape == tensor.shape:
            tensor.copy_(source)
            taken.tensors += 1
    if not taken.tensors:
        raise SaccadeError(
            f"{prefix}init={run}: no tensor of that run has the name and shape of one here; "
            "use the same reader and writer, or leave init out"
        )
    return taken


def tokenizer_of(tokenizers: Tokenizers, side: str | None) -> Tokenizer | None:
    if side is None:
        return None
    return tokenizers.source if side == "source" else tokenizers.target


def copy_rows(tensor: Tensor, source: Tensor, *, new: Tokenizer, old: Tokenizer) -> int:
    """Copies the rows of the pieces that both vocabularies have."""
    known = pieces(old)
    pairs = [(number, known[piece]) for piece, number in pieces(new).items() if piece in known]
    here, there = zip(*pairs, strict=True)
    tensor[list(here)] = source[list(there)].to(tensor)
    return len(pairs)


def pieces(tokenizer: Tokenizer) -> dict[str | int, int]:
    """Every piece of the vocabulary with its id; the four special ones go by their id, whatever they are called."""
    vocabulary = tokenizer.core.get_vocab()
    numbers = tokenizer.number(list(vocabulary.values()))[len(tokenizer.begin) : -1]
    known: dict[str | int, int] = {number: number for number in range(UNKNOWN + 1)}
    known.update({piece: number for piece, number in zip(vocabulary, numbers, strict=True) if number > UNKNOWN})
    return known
