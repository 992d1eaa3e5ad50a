"""Warm start: weights of an earlier run by name and shape, rows of embeddings by the piece that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.config.kinds import Custom
from saccade.config.schema import NoReader, Recipe
from saccade.data.labels import Labels
from saccade.data.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.label_writer import Head
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
        rest = "" if self.tensors == self.of else ", the rest is fresh"
        return f"{self.tensors} of {self.of} tensors{rows} taken over{rest}"


def warm_start(
    model: Model, recipe: Recipe, tokenizers: Tokenizers, *, kinds: Mapping[str, Any] | None = None
) -> list[str]:
    """Takes over weights as `init`, `reader.init` and `writer.init` ask; says how many, the rest stays fresh."""
    parts = {"": recipe.init, "reader.": part_init(recipe.reader), "writer.": part_init(recipe.writer)}
    notes = []
    for prefix, run in parts.items():
        if run:
            taken = take_over(model, tokenizers, run=run, prefix=prefix, kinds=kinds)
            notes.append(f"{prefix}init={run}: {taken}")
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
        theirs = name_in(old.model, name, model)
        source, new, before = weights.get(theirs), rows_of(tokenizers, name), rows_of(old.tokenizers, theirs)
        by_piece = new is not None and before is not None and new.fingerprint() != before.fingerprint()
        taken.of += 1
        if source is None or (isinstance(new, Labels) != isinstance(before, Labels)):
            continue
        if by_piece and source.shape[1:] == tensor.shape[1:]:
            rows = copy_rows(tensor, source, new=new, old=before)  # type: ignore[arg-type]
            taken.tensors, taken.rows, taken.of_rows = taken.tensors + 1, taken.rows + rows, taken.of_rows + len(tensor)
        elif not by_piece and source.shape == tensor.shape:
            tensor.copy_(source)
            taken.tensors += 1
    if not taken.tensors:
        raise SaccadeError(
            f"{prefix}init={run}: no tensor of that run has the name and shape of one here; "
            "use the same reader and writer, or leave init out"
        )
    return taken


def name_in(old: Model, name: str, model: Model) -> str:
    """What a tensor is called in the model of another run; no name where it has no such part.

    A language model's writer may be a reader here. Of what an encoder writes, a head has the layer for first states.
    """
    if name.startswith("reader."):
        return name if old.reader is not None else f"writer.{name.removeprefix('reader.')}"
    if isinstance(model.writer, Head) and not isinstance(old.writer, Head):
        return name if ".hidden." in name else ""
    return name


def rows_of(tokenizers: Tokenizers, name: str) -> Tokenizer | Labels | None:
    """What the rows of a tensor stand for, where they stand for something: pieces, or labels."""
    side = BY_PIECE.get(name)
    if side == "source":
        return tokenizers.source
    return None if side is None else tokenizers.labels or tokenizers.target


def copy_rows(tensor: Tensor, source: Tensor, *, new: Tokenizer | Labels, old: Tokenizer | Labels) -> int:
    """Copies the rows of the pieces, or labels, that both have."""
    known = pieces(old)
    pairs = [(number, known[piece]) for piece, number in pieces(new).items() if piece in known]
    if pairs:
        here, there = zip(*pairs, strict=True)
        tensor[list(here)] = source[list(there)].to(tensor)
    return len(pairs)


def pieces(tokenizer: Tokenizer | Labels) -> dict[str | int, int]:
    """Every piece of the vocabulary with its id; the four special ones go by their id, whatever they are called."""
    if isinstance(tokenizer, Labels):
        return {name: number for number, name in enumerate(tokenizer.names)}
    vocabulary = tokenizer.core.get_vocab()
    numbers = tokenizer.number(list(vocabulary.values()))[len(tokenizer.begin) : -1]
    known: dict[str | int, int] = {number: number for number in range(UNKNOWN + 1)}
    known.update({piece: number for piece, number in zip(vocabulary, numbers, strict=True) if number > UNKNOWN})
    return known
