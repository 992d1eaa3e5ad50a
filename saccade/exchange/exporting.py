"""`saccade export`: a run becomes a folder that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.data.tokenization.special_tokens import find_mask
from saccade.data.tokenization.tokenizer import END, PAD, PIECES, SHARED, START, TARGET, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import family_of
from saccade.exchange.families.family import NEVER, Family, Numbering, place_of
from saccade.exchange.families.heads import label_config, release_open
from saccade.exchange.formats.read import CONFIG, SENSE, WHOLE
from saccade.exchange.formats.vocabulary import numbering, release
from saccade.files import atomic_write, new_folder
from saccade.model.run import Run, load_run, named_weights


def export_run(run: str | Path, folder: str | Path) -> tuple[Path, str]:
    """Writes the folder, which must be new or empty, and says of which family it is."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not an empty folder; choose another one")
    loaded = load_run(run)
    family = family_of(loaded.recipe, loaded.tokenizers.source)
    weights = named_weights(loaded.model)
    labels = loaded.tokenizers.labels
    numbers = numbering_of(loaded.tokenizers.target, weights, labelled=labels is not None or not family.texts)
    tensors = back(loaded, weights, numbers, family)
    with new_folder(path):
        write_settings(path, loaded, numbers.size, family)
        if family.texts:
            write_tokenizers(path, loaded, numbers.size, family)
        atomic_write(path / WHOLE, to_bytes(tensors, metadata={"format": "pt"}))
    return path, family.name


def numbering_of(target: Tokenizer, weights: dict[str, Tensor], *, labelled: bool = False) -> Numbering:
    """All rows, but for those that are never written: they were added when the model was imported."""
    bias = None if labelled else weights.get("writer.output.bias")
    size = rows_of_others(target) if bias is None else int((bias > NEVER).sum())
    return numbering(target, size)


def rows_of_others(tokenizer: Tokenizer) -> int:
    """How many pieces stand before those that were added here, behind all others."""
    ours = {tokenizer.core.token_to_id(piece) for piece in PIECES}
    return next(size for size in range(tokenizer.size, 0, -1) if size - 1 not in ours)


def back(run: Run, weights: dict[str, Tensor], numbers: Numbering, family: Family) -> dict[str, Tensor]:
    """Every tensor under their name and in their form."""
    names, tensors = family.names(run.recipe), {}
    for name, ours in weights.items():
        form, theirs = place_of(name, names)
        made = form.back(ours, numbers)
        if not made and bool((ours > NEVER).logical_and(ours != 0).any()):
            raise SaccadeError(
                f"{run.path}: {name} is not 0, but {family.name} has no such tensor; it cannot be exported"
            )
        tensors.update({there: part.contiguous() for there, part in zip(theirs, made, strict=True)})
    return tensors | ({} if family.fixed is None else dict(family.fixed(run.recipe)))


def write_settings(path: Path, run: Run, size: int, family: Family) -> None:
    """config.json, and what else such a folder has: how texts are written, how files of pictures or sound are read."""
    values = {
        "model_type": family.name, "architectures": [family.architecture], "dtype": "float32",
        **family.config(run.recipe),
        **({} if run.tokenizers.labels is None else label_config(run.tokenizers.labels)),
    }  # fmt: skip
    files = {CONFIG: values}
    if family.texts:
        ids, generation = numbers_of_roles(run, size, family)
        files = {CONFIG: {**ids, "vocab_size": size, **values}}
        if writes(run):
            files["generation_config.json"] = generation
    if family.senses is not None:
        files[SENSE] = family.senses(run.recipe)
    for name, content in files.items():
        atomic_write(path / name, (json.dumps(content, indent=2) + "\n").encode())


def numbers_of_roles(run: Run, size: int, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Which pieces begin, end and fill up, and how outputs are searched there."""
    target = run.tokenizers.target
    second: Any = run.recipe.writer if writes(run) else run.recipe.reader.second_reading
    first = (*target.begin, START)[0] if second is None else {"own": START, "pad": PAD, "end": END}[second.start]
    ids = {
        "pad_token_id": padding(run, size, family),
        "eos_token_id": END,
        "decoder_start_token_id" if family.reads and second is not None else "bos_token_id": first,
    }
    if family.prompt is not None:
        ids |= {"pad_token_id": END, "bos_token_id": END}
    elif target.begin and second is not None:
        ids |= {"bos_token_id": target.begin[0], "forced_bos_token_id": target.begin[0]}
    # A piece of our own has no number there.
    numbers = {key: target.order[number] if target.order[number] < size else None for key, number in ids.items()}
    generation: dict[str, Any] = {
        **numbers,
        "num_beams": run.recipe.predict.beam,
        "max_length": run.recipe.data.max_length,
    }
    if family.prompt is not None:
        generation["forced_decoder_ids"] = [[at, target.order[number]] for at, number in enumerate(target.begin, 1)]
    return {key: there for key, there in numbers.items() if key != "forced_bos_token_id"}, generation


def writes(run: Run) -> bool:
    """Whether one token is written after another."""
    return run.recipe.task.writes_stepwise


def padding(run: Run, size: int, family: Family) -> int:
    """What fills texts up; where a decoder labels them, their last piece is found by it, so that there must be one."""
    tokenizer, decodes = run.tokenizers.source, run.tokenizers.labels is not None and not family.reads
    return END if decodes and tokenizer.order[PAD] >= size else PAD


def write_tokenizers(path: Path, run: Run, size: int, family: Family) -> None:
    """tokenizer.json, and where the target has another one, that too; of what reads, with the end behind every text.

    Where a model encodes, the pieces around texts and the one for hidden text are told too, whether it wants to know
    which part of a text a piece is in, and on which side texts are filled up.
    """
    tokenizers, source, parts = run.tokenizers, run.tokenizers.source, has_parts(run.recipe)
    decodes = not family.reads and tokenizers.labels is not None
    text = release_open(source, size) if decodes else release(source, size, ends=family.reads, parts=parts)
    atomic_write(path / SHARED, text.encode())
    if not tokenizers.shared:
        atomic_write(path / TARGET, release(tokenizers.target, size, ends=family.reads).encode())
    first = START if writes(run) else (*source.begin, START)[0]
    roles = {"pad_token": padding(run, size, family), "bos_token": first, "eos_token": END, "unk_token": UNKNOWN}
    theirs = {role: source.order[number] for role, number in roles.items()}
    names = {role: source.core.id_to_token(number) for role, number in theirs.items() if number < size}
    if family.encodes:
        extra = {"cls_token": (source.begin or source.after)[:1], "sep_token": [END], "mask_token": [find_mask(source)]}
        numbers = {role: number for role, ids in extra.items() for number in ids if number is not None}
        names |= {role: source.core.id_to_token(source.order[number]) for role, number in numbers.items()}
    told: dict[str, Any] = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if parts else {}
    if family.encodes and run.recipe.writer.pooled == "last":  # which would be that of padding
        told["padding_side"] = "left"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names, **told}
    atomic_write(path / "tokenizer_config.json", (json.dumps(settings, indent=2) + "\n").encode())


def has_parts(recipe: Recipe) -> bool:
    """Whether the reader tells the second part of a text from the first one, at its input or inside of attention."""
    return recipe.reader.tells_segments
