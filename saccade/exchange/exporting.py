"""`saccade export`: a run becomes a folder that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from saccade.data.tokenizer import END, PAD, SHARED, START, TARGET, UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families import family_of
from saccade.exchange.family import NEVER, Family, Numbering, place_of
from saccade.exchange.read import CONFIG, WHOLE
from saccade.exchange.vocabulary import numbering, release
from saccade.files import atomic_write
from saccade.model.run import Run, load_run, named_weights


def export_run(run: str | Path, folder: str | Path) -> tuple[Path, str]:
    """Writes the folder, which must be new or empty, and says of which family it is."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not an empty folder; choose another one")
    loaded = load_run(run)
    family = family_of(loaded.recipe)
    weights = named_weights(loaded.model)
    numbers = numbering_of(loaded.tokenizers.target, weights)
    tensors = back(loaded, weights, numbers, family)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(f"cannot make the folder '{path}': {error.strerror or error}") from None
    write_settings(path, loaded, numbers.size, family)
    write_tokenizers(path, loaded.tokenizers, numbers.size, ends=family.reads)
    atomic_write(path / WHOLE, to_bytes(tensors, metadata={"format": "pt"}))
    return path, family.name


def numbering_of(target: Tokenizer, weights: dict[str, Tensor]) -> Numbering:
    """All rows, but for those that are never written: they were added when the model was imported."""
    bias = weights.get("writer.output.bias")
    size = target.size if bias is None else int((bias > NEVER).sum())
    return numbering(target, size)


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
    return tensors


def write_settings(path: Path, run: Run, size: int, family: Family) -> None:
    """config.json and generation_config.json."""
    target = run.tokenizers.target
    writer: Any = run.recipe.writer
    first = {"own": START, "pad": PAD, "end": END}[writer.start]
    ids = {
        "pad_token_id": PAD,
        "eos_token_id": END,
        "decoder_start_token_id" if family.reads else "bos_token_id": first,
    }
    if target.begin:
        ids |= {"bos_token_id": target.begin[0], "forced_bos_token_id": target.begin[0]}
    # A piece of our own has no number there.
    numbers = {key: target.order[number] if target.order[number] < size else None for key, number in ids.items()}
    values = {
        "model_type": family.name, "architectures": [family.architecture], "vocab_size": size, "dtype": "float32",
        **family.config(run.recipe), **{key: there for key, there in numbers.items() if key != "forced_bos_token_id"},
    }  # fmt: skip
    generation = {**numbers, "num_beams": run.recipe.predict.beam, "max_length": run.recipe.data.max_length}
    for name, content in ((CONFIG, values), ("generation_config.json", generation)):
        atomic_write(path / name, (json.dumps(content, indent=2) + "\n").encode())


def write_tokenizers(path: Path, tokenizers: Tokenizers, size: int, *, ends: bool) -> None:
    """tokenizer.json, and where the target has another one, that too; `ends`: with the end behind every text."""
    atomic_write(path / SHARED, release(tokenizers.source, size, ends=ends).encode())
    if not tokenizers.shared:
        atomic_write(path / TARGET, release(tokenizers.target, size, ends=ends).encode())
    source = tokenizers.source
    roles = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    theirs = {role: source.order[number] for role, number in roles.items()}
    names = {role: source.core.id_to_token(number) for role, number in theirs.items() if number < size}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    atomic_write(path / "tokenizer_config.json", (json.dumps(settings, indent=2) + "\n").encode())
