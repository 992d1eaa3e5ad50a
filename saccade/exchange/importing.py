"""`saccade import`: a folder of Hugging Face, a model of the Hub or a GGUF file becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer as Core
from torch import Tensor

from saccade.config.load import save, validate
from saccade.config.schema import Recipe
from saccade.config.schema import Tokenizer as Settings
from saccade.config.task import get_task
from saccade.data.tokenization.tokenizer import SHARED, SOURCE, TARGET
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import ALONE, family_named
from saccade.exchange.families.family import Config, Family, Numbering, place_of, unknown_names
from saccade.exchange.families.heads import check_ends, labels_of
from saccade.exchange.formats.gguf import GgufFile, is_gguf
from saccade.exchange.formats.read import CONFIG, SENSE, Named, Tensors, find_folder, read_json
from saccade.exchange.formats.vocabulary import (
    adopt,
    for_chats,
    numbering,
    read_tokenizers,
    start_of,
    start_of_encoder,
    with_prompt,
)
from saccade.files import atomic_write, new_folder
from saccade.model.build.model import build
from saccade.model.run import Undrawn, named_weights, write_tensors
from saccade.runs import CARD, RECIPE, WEIGHTS
from saccade.train.api import named_folder

OUTPUTS = ("lm_head.weight", "cls.predictions.decoder.weight", "lm_head.decoder.weight", "predictions.decoder.weight")
# Newer folders have them in generation_config.json.
LATER = ("decoder_start_token_id", "forced_bos_token_id", "forced_decoder_ids", "is_multilingual")
CLOSE = 2e-3  # float16 knows numbers up to 1 that well
# What has learned already learns on from own data gently and not for long, as everybody fine-tunes.
TUNING = {
    "steps": None, "epochs": 3, "clip": 1.0, "valid_every": 200,
    "optimizer": {"kind": "adam", "betas": [0.9, 0.999], "eps": 1e-8, "decay": 0.01},
    "schedule": {"kind": "linear", "lr": 5e-5, "warmup": 10},
}  # fmt: skip


class Imported(NamedTuple):
    path: Path
    family: str
    parameters: int
    harmless: list[str]  # keys of config.json that change no number


def import_folder(source: str, run: str) -> Imported:
    """Makes a run of a foreign model; nothing is left of it if something cannot be read."""
    path = named_folder(run, resumes=False)
    given = GgufFile(source) if is_gguf(source) else Folder(find_folder(source))
    config = given.config()
    with config.reading():
        family = family_named(config)
        tables = family.recipe(config)
        task, again = get_task(tables.get("task", "translate")), tables.get("reader", {}).get("again")
        writes = task.writes_stepwise
        starts = writes or again is not None
        tokenizers, numbers, start = of_texts(config, given, family, starts=starts) if family.texts else no_texts()
        if family.sense is not None:
            given.sense(family, tables)
    config.check_rest()
    tensors = given.tensors(family)
    if task.predicts_labels:
        tokenizers = replace(tokenizers, labels=labels_of(config, tables["writer"]["kind"], alike=not family.texts))
        if again is not None or (not family.reads and tables["writer"]["kind"] != "tags"):
            check_ends(config, tokenizers, ended=family.reads)  # words are asked where they stand
    if family.look is not None:
        family.look(tables, tensors)
    if writes:
        tables["writer"] |= {"start": start, "output_bias": has_bias(tensors, numbers)}
    elif again is not None:
        again["start"] = start
    if is_apart(tensors, family) and tables["writer"].get("kind") != "states":
        tables["writer"]["tie"] = family.apart
    tables |= ALONE if writes and not family.reads else {}
    recipe = make_recipe(tables, tokenizers, path, family=family, source=source)
    weights = convert(recipe, tokenizers, tensors, numbers, family)
    write_run(path, recipe, tokenizers, weights, about=f"Imported from {source} (family {family.name}).")
    parameters = sum(tensor.numel() for tensor in weights.values())
    return Imported(path, family.name, parameters, sorted(config.values.keys() - config.used))


def of_texts(
    config: Config, given: Folder | GgufFile, family: Family, *, starts: bool
) -> tuple[Tokenizers, Numbering, str]:
    """Its tokenizers, whose rows theirs are, and what is written first, or read, where something `starts` texts."""
    size = int(config.take("vocab_size"))
    cores = given.tokenizers(family, size)
    if starts:
        cores = for_chats(config, cores, family)
    if family.prompt is not None:
        with_prompt(cores[0], family.prompt(config, cores[0]))
    start = start_of(config, cores, family) if starts else start_of_encoder(cores)
    tokenizers = adopt(cores, size=size, start=start)
    check_first(config, tokenizers)
    return tokenizers, numbering(tokenizers.target, size), start


def no_texts() -> tuple[Tokenizers, Numbering, str]:
    """The same of a model that neither reads nor writes any."""
    return train_tokenizers(Settings(kind="bytes"), lambda: ()), Numbering([], [], 0), "own"


class Folder(NamedTuple):
    """A folder of Hugging Face; a GGUF file has the same methods."""

    path: Path

    def config(self) -> Config:
        path = self.path / CONFIG
        if not path.is_file():
            raise SaccadeError(
                f"'{self.path}' has no {CONFIG}; expected a folder of Hugging Face with {CONFIG} and weights"
            )
        later = read_json(self.path / "generation_config.json")
        said = {key: later[key] for key in LATER if later.get(key) is not None}
        return Config({**said, **read_json(path)}, origin=str(path))

    def tokenizers(self, family: Family, size: int) -> list[Core]:
        return read_tokenizers(self.path, family, size)

    def sense(self, family: Family, tables: dict[str, Any]) -> None:
        """How files become numbers, into the tables of the recipe."""
        path = self.path / SENSE
        said = {key: value for key, value in read_json(path).items() if value is not None}
        config = Config(said, origin=str(path))
        assert family.sense is not None, "it was asked"
        with config.reading():
            family.sense(config, tables)
        config.check_rest()

    def tensors(self, family: Family) -> Tensors:
        return Tensors(self.path, prefix=family.prefix)


def check_first(config: Config, tokenizers: Tokenizers) -> None:
    """What must be written first can only be what the tokenizer puts before texts."""
    target = tokenizers.target
    forced = config.take("forced_bos_token_id", None)
    if forced is not None and [forced] != [target.order[number] for number in target.begin]:
        raise config.refusal("forced_bos_token_id", "only the piece that the tokenizer puts before texts can be")


def has_bias(tensors: Named, numbers: Numbering) -> bool:
    """Whether logits have a bias: that of the folder, or what keeps our own pieces from being written."""
    name = "final_logits_bias"
    return bool(numbers.dead) or (name in tensors and bool(tensors[name].any()))


def is_apart(tensors: Named, family: Family) -> bool:
    """Whether the output matrix is another one than the embedding; no other copy may differ from its original."""
    apart = False
    for copy, original in family.copies.items():
        if copy in tensors and not torch.equal(tensors[copy], tensors[original]):
            if copy not in OUTPUTS or not family.apart:
                raise SaccadeError(
                    f"{tensors.where[copy]}: {copy} differs from {original}, but both are one in {family.name}"
                )
            apart = True
    return apart


def make_recipe(
    tables: Mapping[str, Any], tokenizers: Tokenizers, path: Path, *, family: Family, source: str
) -> Recipe:
    """The whole recipe; training from it takes the run's own tokenizer, where there are texts."""
    files = [SHARED] if tokenizers.shared else [SOURCE, TARGET]
    tokenizer = {"kind": "file", "files": [str(path / file) for file in files], "shared": True}
    values = {
        **tables, "name": family.name, "about": f"{family.name}, imported from {source}", "train": TUNING,
        **({"tokenizer": tokenizer} if family.texts else {}),
    }  # fmt: skip
    return validate(values, origin=f"what {CONFIG} says")


def convert(
    recipe: Recipe, tokenizers: Tokenizers, tensors: Named, numbers: Numbering, family: Family
) -> dict[str, Tensor]:
    """Every tensor of our model, from theirs; all of theirs must be used."""
    with torch.device("meta"), Undrawn():
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
    names, used, weights = family.names(recipe), set(), {}
    for name, ours in named_weights(model).items():
        form, theirs = place_of(name, names)
        optional = name == "writer.output.bias" and not all(there in tensors for there in theirs)
        given = [] if optional else [tensors[there] for there in theirs]
        used.update(theirs)
        weights[name] = shaped(form.into, given, ours.shape, numbers, theirs, tensors).contiguous()
    for name, known in ({} if family.fixed is None else family.fixed(recipe)).items():
        used.add(name)
        if name in tensors:
            check_fixed(tensors, name, known)
    for extra in unknown_names(tensors.where, used, family):
        raise SaccadeError(f"{tensors.where[extra]} has the tensor {extra!r}, of which {family.name} knows nothing")
    return weights


def check_fixed(tensors: Named, name: str, known: Tensor) -> None:
    """A table that follows from settings must be the one that does."""
    found = tensors[name]
    if found.shape != known.shape or bool((found - known).abs().max() > CLOSE):
        raise SaccadeError(
            f"{tensors.where[name]}: {name} of shape {tuple(found.shape)} is not the table {tuple(known.shape)} that "
            f"{CONFIG} asks for, and nothing else can be imported"
        )


def shaped(
    into: Any, given: list[Tensor], shape: torch.Size, numbers: Numbering, names: list[str], tensors: Named
) -> Tensor:
    """One tensor in our form; theirs must have had the shape for it."""
    try:
        made: Tensor = into(given, shape, numbers)
    except (RuntimeError, IndexError):
        made = torch.empty(0)
    if made.shape != shape:
        got = ", ".join(str(tuple(part.shape)) for part in given)
        raise SaccadeError(
            f"{tensors.folder}: {' + '.join(names)} of shape {got} cannot become {tuple(shape)}, "
            f"which {CONFIG} asks for"
        )
    return made


def write_run(path: Path, recipe: Recipe, tokenizers: Tokenizers, weights: Mapping[str, Tensor], *, about: str) -> None:
    """The files of a run."""
    with new_folder(path):
        tokenizers.save(path)
        save(recipe, path / RECIPE)
        write_tensors(weights, path / WEIGHTS, vocabulary=tokenizers.vocabulary())
        atomic_write(path / CARD, f"# {path.name}\n\n{about}\n".encode())
