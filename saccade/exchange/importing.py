"""`saccade import`: a folder of Hugging Face, or a model of the Hub, becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saccade.config.load import save, validate
from saccade.config.schema import Recipe
from saccade.data.tokenizer import SHARED, SOURCE, TARGET, Tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families import ALONE, family_named
from saccade.exchange.family import Config, Family, Numbering, place_of, unknown_names
from saccade.exchange.read import CONFIG, Tensors, find_folder, read_json
from saccade.exchange.vocabulary import adopt, numbering, read_tokenizers, start_of
from saccade.files import atomic_write
from saccade.model.build import build
from saccade.model.run import named_weights, write_tensors
from saccade.runs import CARD, RECIPE, WEIGHTS
from saccade.train.api import named_folder

LATER = ("decoder_start_token_id", "forced_bos_token_id")  # newer folders have them in generation_config.json


class Imported(NamedTuple):
    path: Path
    family: str
    parameters: int
    harmless: list[str]  # keys of config.json that change no number


def import_folder(source: str, run: str) -> Imported:
    """Makes a run of a foreign model; nothing is left of it if something cannot be read."""
    path = named_folder(run)
    folder = find_folder(source)
    config = read_config(folder)
    family = family_named(config)
    tables, size = family.recipe(config), int(config.take("vocab_size"))
    cores = read_tokenizers(folder, family, size)
    start = start_of(config, cores, family)
    tokenizers = adopt(cores, size=size, start=start)
    check_first(config, tokenizers)
    config.check_rest()
    tensors, numbers = Tensors(folder, prefix=family.prefix), numbering(tokenizers.target, size)
    tables["writer"] |= {"start": start, "output_bias": has_bias(tensors, numbers)}
    if is_apart(tensors, family):
        tables["writer"]["tie"] = family.apart
    tables |= {} if family.reads else ALONE
    recipe = make_recipe(tables, tokenizers, path, name=family.name, source=source)
    weights = convert(recipe, tokenizers, tensors, numbers, family)
    write_run(path, recipe, tokenizers, weights, about=f"Imported from {source} (family {family.name}).")
    parameters = sum(tensor.numel() for tensor in weights.values())
    return Imported(path, family.name, parameters, sorted(config.values.keys() - config.used))


def read_config(folder: Path) -> Config:
    path = folder / CONFIG
    if not path.is_file():
        raise SaccadeError(f"'{folder}' has no {CONFIG}; expected a folder of Hugging Face with {CONFIG} and weights")
    later = read_json(folder / "generation_config.json")
    return Config({**{key: later[key] for key in LATER if key in later}, **read_json(path)}, origin=str(path))


def check_first(config: Config, tokenizers: Tokenizers) -> None:
    """What must be written first can only be what the tokenizer puts before texts."""
    target = tokenizers.target
    forced = config.take("forced_bos_token_id", None)
    if forced is not None and [forced] != [target.order[number] for number in target.begin]:
        raise config.refusal("forced_bos_token_id", "only the piece that the tokenizer puts before texts can be")


def has_bias(tensors: Tensors, numbers: Numbering) -> bool:
    """Whether logits have a bias: that of the folder, or what keeps our own pieces from being written."""
    name = "final_logits_bias"
    return bool(numbers.dead) or (name in tensors and bool(tensors[name].any()))


def is_apart(tensors: Tensors, family: Family) -> bool:
    """Whether the output matrix is another one than the embedding; no other copy may differ from its original."""
    apart = False
    for copy, original in family.copies.items():
        if copy in tensors and not torch.equal(tensors[copy], tensors[original]):
            if copy != "lm_head.weight" or not family.apart:
                raise SaccadeError(
                    f"{tensors.where[copy]}: {copy} differs from {original}, but both are one in {family.name}"
                )
            apart = True
    return apart


def make_recipe(tables: Mapping[str, Any], tokenizers: Tokenizers, path: Path, *, name: str, source: str) -> Recipe:
    """The whole recipe; training from it takes the run's own tokenizer."""
    files = [SHARED] if tokenizers.shared else [SOURCE, TARGET]
    values = {
        **tables, "name": name, "about": f"{name}, imported from {source}",
        "tokenizer": {"kind": "file", "files": [str(path / file) for file in files], "shared": True},
    }  # fmt: skip
    return validate(values, origin=f"what {CONFIG} says")


class NoNumbers(TorchFunctionMode):
    """Where tensors have no numbers none are drawn: even that would load torch's compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def convert(
    recipe: Recipe, tokenizers: Tokenizers, tensors: Tensors, numbers: Numbering, family: Family
) -> dict[str, Tensor]:
    """Every tensor of our model, from theirs; all of theirs must be used."""
    with torch.device("meta"), NoNumbers():
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    names, used, weights = family.names(recipe), set(), {}
    for name, ours in named_weights(model).items():
        form, theirs = place_of(name, names)
        optional = name == "writer.output.bias" and not all(there in tensors for there in theirs)
        given = [] if optional else [tensors[there] for there in theirs]
        used.update(theirs)
        weights[name] = shaped(form.into, given, ours.shape, numbers, theirs, tensors).contiguous()
    for extra in unknown_names(tensors.where, used, family):
        raise SaccadeError(f"{tensors.where[extra]} has the tensor {extra!r}, of which {family.name} knows nothing")
    return weights


def shaped(
    into: Any, given: list[Tensor], shape: torch.Size, numbers: Numbering, names: list[str], tensors: Tensors
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
    """The files of a run, the weights last."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(f"cannot make the folder '{path}': {error.strerror or error}") from None
    tokenizers.save(path)
    save(recipe, path / RECIPE)
    write_tensors(weights, path / WEIGHTS, vocabulary=tokenizers.vocabulary())
    atomic_write(path / CARD, f"# {path.name}\n\n{about}\n".encode())
