"""Warm start: weights of an earlier run by name and shape, rows of embeddings by the piece that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import Recipe, TimmReader
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.timm import published_weights
from saccade.model.model import Model
from saccade.model.readers.media import JoinedReader
from saccade.model.run import Run, load_run, named_weights
from saccade.model.writers.labels import Head

# Tensors with one row for each piece of a vocabulary, and whose vocabulary it is.
BY_PIECE = {
    "reader.embedding.tokens.weight": "source",
    "reader.ask.embedding.tokens.weight": "source",
    "writer.embedding.tokens.weight": "target",
    "writer.output.weight": "target",
    "writer.output.bias": "target",
}

LOOK = "reader.look."  # what reads the pictures that are asked about
AGAIN = "reader.again."  # what reads a text a second time


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
    """Takes over weights as `init` of the recipe and of its parts asks; says how many, the rest stays fresh."""
    parts = {"": recipe.init, "reader.": recipe.reader.init_run, "writer.": recipe.writer.init_run}
    if recipe.reader.joined is not None:
        parts[LOOK] = recipe.reader.joined.look.init
    notes = take_published(model, recipe.reader.backbone) if recipe.reader.backbone is not None else []
    for prefix, run in parts.items():
        if run:
            old = load_run(run, kinds=kinds)
            check_kind(recipe, old.recipe, prefix=prefix, run=run)
            if prefix:
                check_width(model, old.model, part=prefix.removesuffix("."), run=run)
            taken = take_over(model, tokenizers, old, run=run, prefix=prefix)
            notes.append(
                f"{prefix}init={run}: {taken}{begin_unseeing(model, old.model) if prefix == 'writer.' else ''}"
            )
    return notes


def take_published(model: Model, reader: TimmReader) -> list[str]:
    """The weights that somebody else has trained, where the recipe asks for them."""
    if not reader.pretrained:
        return []
    found = published_weights(reader)
    model.get_submodule("reader.cells.network").load_state_dict(found)
    return [f"reader: {len(found)} tensors of the published weights of timm's {reader.name} taken over"]


def check_kind(recipe: Recipe, old: Recipe, *, prefix: str, run: str) -> None:
    """Stacks of pictures, sound and texts may have one form, but what one has learned is nothing for another."""
    if prefix == "writer.":
        writes = old.writer.tokens is not None or old.writer.is_filling or old.writer.is_custom
        if recipe.writer.tokens is not None and not writes:
            raise SaccadeError(
                f'writer.init={run}: that run has writer.kind = "{old.writer.kind}", which writes no texts; give one '
                "that does, or leave it out"
            )
        return
    if old.reader.is_custom or recipe.reader.is_custom or recipe.reader.is_none:
        return
    read = [one.reader.medium or "text" for one in (old, recipe)]
    if read[0] != read[1]:
        raise SaccadeError(
            f"{prefix}init={run}: that run reads {read[0]}s, and this recipe {read[1]}s; give one that reads the same, "
            "or leave it out"
        )


def check_width(model: Model, old: Model, *, part: str, run: str) -> None:
    """Some vectors fit by chance where widths differ, and taking over those alone would help nobody."""
    source = old.writer if part == "writer" or old.reader is None else old.reader
    if f"{part}." == LOOK and isinstance(source, JoinedReader):
        source = source.look
    ours, theirs = (getattr(one, "dim", None) for one in (model.get_submodule(part), source))
    if None not in (ours, theirs) and ours != theirs:
        raise SaccadeError(
            f"{part}.init={run}: the {part} of that run is {theirs} wide, and this one {ours}; set {part}.stack.dim = "
            f"{theirs}, or leave it out"
        )


@torch.no_grad()
def begin_unseeing(model: Model, old: Model) -> str:
    """Attention to memory that a language model has never had adds nothing at first: it goes on as it was."""
    blocks = crossing(model)
    if not blocks or crossing(old):
        return ""
    for block in blocks:
        for parameter in block.cross.heads.out.parameters():
            parameter.zero_()
    return "; its attention to what is read is new, and adds nothing at first"


def crossing(model: Model) -> list[Any]:
    """The Transformer blocks of a writer that attend to memory."""
    blocks = getattr(getattr(model.writer, "stack", None), "blocks", ())
    return [block for block in blocks if getattr(block, "cross", None) is not None]


@torch.no_grad()
def take_over(model: Model, tokenizers: Tokenizers, old: Run, *, run: str, prefix: str) -> Taken:
    """Copies what fits from the run into the model, where names begin with `prefix`."""
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

    A language model's writer may be a reader here, what reads pictures a part of one, and what writes about a text its
    second reading. Of what an encoder writes, a head has the layer for first states.
    """
    if name.startswith(AGAIN) and old.reader is not None and getattr(old.reader, "again", None) is None:
        return f"writer.{name.removeprefix(AGAIN)}"
    if name.startswith(LOOK) and not isinstance(old.reader, JoinedReader):
        return f"reader.{name.removeprefix(LOOK)}"
    if name.startswith("reader."):
        return name if old.reader is not None else f"writer.{name.removeprefix('reader.')}"
    if isinstance(model.writer, Head) and not isinstance(old.writer, Head):
        return name if ".hidden." in name else ""
    if old.reader is None and crossing(model):
        return behind_self_attention(name)
    return name


def behind_self_attention(name: str) -> str:
    """Between the norms of a block of a language model there is none for attention to memory, which is the second."""
    before, found, rest = name.partition(".residuals.")
    number, _, last = rest.partition(".")
    if not found or number == "0":
        return name
    return "" if number == "1" else f"{before}{found}{int(number) - 1}.{last}"


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
