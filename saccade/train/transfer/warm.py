"""Warm start: copies weights of another run by name and shape, and rows of embeddings by their token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import Recipe, TimmReader
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.timm import download_weights
from saccade.model.model import Model
from saccade.model.readers.media import JoinedReader
from saccade.model.run import Run, load_run, named_weights
from saccade.model.writers.labels import Head

# Tensors with one row for each token of a vocabulary, and the side of that vocabulary
VOCABULARY_TENSORS = {
    "reader.embedding.tokens.weight": "source",
    "reader.ask.embedding.tokens.weight": "source",
    "writer.embedding.tokens.weight": "target",
    "writer.output.weight": "target",
    "writer.output.bias": "target",
}

# Prefixes of tensors that differ from their keys in a recipe (reader.image, reader.second_pass)
PICTURE_READER_PREFIX = "reader.look."
SECOND_PASS_PREFIX = "reader.again."


@dataclass
class TransferCounts:
    """How many tensors and embedding rows were copied, and of how many."""

    tensors: int = 0
    total_tensors: int = 0
    rows: int = 0
    total_rows: int = 0

    def __str__(self) -> str:
        rows = f" and {self.rows:,} of {self.total_rows:,} embedding rows by their token" if self.total_rows else ""
        rest = "" if self.tensors == self.total_tensors else ", the rest is newly initialized"
        return f"{self.tensors} of {self.total_tensors} tensors{rows} copied{rest}"


def warm_start(model: Model, recipe: Recipe, tokenizers: Tokenizers) -> list[str]:
    """Copy weights from the `init` runs of the recipe and its parts; return a remark on each."""
    parts = {"": recipe.init, "reader.": recipe.reader.init_run, "writer.": recipe.writer.init_run}
    if recipe.reader.joined_table is not None:
        parts[PICTURE_READER_PREFIX] = recipe.reader.joined_table.image.init
    notes = load_published_weights(model, recipe.reader.backbone) if recipe.reader.backbone is not None else []
    for prefix, run in parts.items():
        if run:
            old = load_run(run, kinds=recipe.kinds)
            check_modality(recipe, old.recipe, prefix=prefix, run=run)
            if prefix:
                check_width(model, old.model, part=prefix.removesuffix("."), run=run)
            counts = copy_matching_weights(model, tokenizers, old, run=run, prefix=prefix)
            remark = zero_new_cross_attention(model, old.model) if prefix == "writer." else ""
            notes.append(f"{to_key(prefix)}init={run}: {counts}{remark}")
    return notes


def to_key(prefix: str) -> str:
    """Return the key of a recipe for a prefix of tensor names."""
    return prefix.replace("reader.look", "reader.image")


def load_published_weights(model: Model, reader: TimmReader) -> list[str]:
    """Load the pretrained weights of a timm network if `reader.pretrained`."""
    if not reader.pretrained:
        return []
    weights = download_weights(reader)
    model.get_submodule("reader.cells.network").load_state_dict(weights)
    return [f"reader: {len(weights)} tensors of the published weights of timm's {reader.name} copied"]


def check_modality(recipe: Recipe, old: Recipe, *, prefix: str, run: str) -> None:
    """Raise a SaccadeError if the run has another modality: shapes may match, but the weights would be useless."""
    if prefix == "writer.":
        writes = old.writer.tokens is not None or old.writer.is_non_autoregressive or old.writer.is_custom
        if recipe.writer.tokens is not None and not writes:
            raise SaccadeError(
                f'writer.init={run}: that run has writer.kind = "{old.writer.kind}", which writes no tokens; give one '
                "that does, or leave it out"
            )
        return
    if old.reader.is_custom or recipe.reader.is_custom or recipe.reader.is_none:
        return
    theirs, ours = (one.reader.medium or "text" for one in (old, recipe))
    if theirs != ours:
        raise SaccadeError(
            f"{to_key(prefix)}init={run}: that run reads {theirs}s, and this recipe {ours}s; give one that reads the "
            "same, or leave it out"
        )


def check_width(model: Model, old: Model, *, part: str, run: str) -> None:
    """Raise a SaccadeError if the widths differ: a few tensors would match by chance, which is no use."""
    source = old.writer if part == "writer" or old.reader is None else old.reader
    if f"{part}." == PICTURE_READER_PREFIX and isinstance(source, JoinedReader):
        source = source.look
    ours, theirs = (getattr(one, "dim", None) for one in (model.get_submodule(part), source))
    if None not in (ours, theirs) and ours != theirs:
        key = to_key(part)
        raise SaccadeError(
            f"{key}.init={run}: the {key} of that run is {theirs} wide, and this one {ours}; set {key}.stack.dim = "
            f"{theirs}, or leave it out"
        )


@torch.no_grad()
def zero_new_cross_attention(model: Model, old: Model) -> str:
    """Zero the output of cross-attention that the run does not have, so that its language model starts unchanged."""
    blocks = get_cross_attention_blocks(model)
    if not blocks or get_cross_attention_blocks(old):
        return ""
    for block in blocks:
        for parameter in block.cross.heads.out.parameters():
            parameter.zero_()
    return "; its cross-attention is new, and adds nothing at first"


def get_cross_attention_blocks(model: Model) -> list[Any]:
    """Return the Transformer blocks of the writer that have cross-attention."""
    blocks = getattr(getattr(model.writer, "stack", None), "blocks", ())
    return [block for block in blocks if getattr(block, "cross", None) is not None]


@torch.no_grad()
def copy_matching_weights(model: Model, tokenizers: Tokenizers, old: Run, *, run: str, prefix: str) -> TransferCounts:
    """Copy the tensors of a run that match by name and shape into the model, for names that start with `prefix`."""
    weights = old.model.state_dict()  # has tied tensors under each of their names
    counts = TransferCounts()
    for short, tensor in named_weights(model.get_submodule(prefix.removesuffix("."))).items():
        name = prefix + short
        theirs = map_tensor_name(old.model, name, model)
        source = weights.get(theirs)
        new, before = get_row_vocabulary(tokenizers, name), get_row_vocabulary(old.tokenizers, theirs)
        by_token = new is not None and before is not None and new.fingerprint() != before.fingerprint()
        counts.total_tensors += 1
        if source is None or (isinstance(new, Labels) != isinstance(before, Labels)):
            continue
        if by_token and source.shape[1:] == tensor.shape[1:]:
            counts.rows += copy_rows(tensor, source, new=new, old=before)  # type: ignore[arg-type]
            counts.total_rows += len(tensor)
            counts.tensors += 1
        elif not by_token and source.shape == tensor.shape:
            tensor.copy_(source)
            counts.tensors += 1
    if not counts.tensors:
        raise SaccadeError(
            f"{to_key(prefix)}init={run}: no tensor of that run has the name and shape of one here; "
            "use the same reader and writer, or leave init out"
        )
    return counts


def map_tensor_name(old: Model, name: str, model: Model) -> str:
    """Return the name of a tensor of `model` in the model of another run; "" if it has no such part.

    The writer of a language model can become a reader, a picture reader part of a joined reader, and a decoder the
    second pass of a reader. A classification head takes the pooler of an encoder.
    """
    if name.startswith(SECOND_PASS_PREFIX) and old.reader is not None and getattr(old.reader, "again", None) is None:
        return f"writer.{name.removeprefix(SECOND_PASS_PREFIX)}"
    if name.startswith(PICTURE_READER_PREFIX) and not isinstance(old.reader, JoinedReader):
        return f"reader.{name.removeprefix(PICTURE_READER_PREFIX)}"
    if name.startswith("reader."):
        return name if old.reader is not None else f"writer.{name.removeprefix('reader.')}"
    if isinstance(model.writer, Head) and not isinstance(old.writer, Head):
        return name if ".hidden." in name else ""
    if old.reader is None and get_cross_attention_blocks(model):
        return skip_cross_attention_norm(name)
    return name


def skip_cross_attention_norm(name: str) -> str:
    """Map the name of a residual norm to a model without cross-attention, whose blocks lack the second norm."""
    before, found, rest = name.partition(".residuals.")
    number, _, last = rest.partition(".")
    if not found or number == "0":
        return name
    return "" if number == "1" else f"{before}{found}{int(number) - 1}.{last}"


def get_row_vocabulary(tokenizers: Tokenizers, name: str) -> Tokenizer | Labels | None:
    """Return the vocabulary or labels that the rows of a tensor belong to; None for other tensors."""
    side = VOCABULARY_TENSORS.get(name)
    if side == "source":
        return tokenizers.source
    return None if side is None else tokenizers.labels or tokenizers.target


def copy_rows(tensor: Tensor, source: Tensor, *, new: Tokenizer | Labels, old: Tokenizer | Labels) -> int:
    """Copy the rows of tokens or labels that both vocabularies have; return their number."""
    known = get_ids_by_token(old)
    pairs = [(number, known[token]) for token, number in get_ids_by_token(new).items() if token in known]
    if pairs:
        target_rows, source_rows = zip(*pairs, strict=True)
        tensor[list(target_rows)] = source[list(source_rows)].to(tensor)
    return len(pairs)


def get_ids_by_token(tokenizer: Tokenizer | Labels) -> dict[str | int, int]:
    """Return the ids of all tokens or labels by name; the four special tokens have their id as key."""
    if isinstance(tokenizer, Labels):
        return {name: number for number, name in enumerate(tokenizer.names)}
    vocabulary = tokenizer.backend.get_vocab()
    numbers = tokenizer.to_model_ids(list(vocabulary.values()))[len(tokenizer.prefix_ids) : -1]
    known: dict[str | int, int] = {number: number for number in range(UNKNOWN + 1)}
    known.update({token: number for token, number in zip(vocabulary, numbers, strict=True) if number > UNKNOWN})
    return known
