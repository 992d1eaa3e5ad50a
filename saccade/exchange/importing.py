"""`saccade import`: convert a Hugging Face folder, a model of the Hub or a GGUF file to a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer as Core
from torch import Tensor

from saccade.config.load import save, validate
from saccade.config.plugins import Kinds
from saccade.config.schema import Recipe
from saccade.config.schema import Tokenizer as Settings
from saccade.config.task import get_task
from saccade.data.tokenization.tokenizer import SHARED_FILE, SOURCE_FILE, TARGET_FILE
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import LANGUAGE_MODEL_TABLES, get_family
from saccade.exchange.families.family import (
    OUTPUT_WEIGHTS,
    Config,
    Family,
    VocabularyMapping,
    find_tensor,
    find_unknown_tensors,
)
from saccade.exchange.families.heads import HEAD_OBJECTIVES, check_final_token, read_labels
from saccade.exchange.formats.gguf import GgufFile, is_gguf
from saccade.exchange.formats.hugging_face import (
    CONFIG_FILE,
    PREPROCESSOR_FILE,
    FolderTensors,
    TensorReader,
    find_folder,
    read_json,
)
from saccade.exchange.formats.vocabulary import (
    add_prompt,
    adopt_tokenizers,
    find_encoder_start,
    find_start,
    find_stop_tokens,
    map_vocabulary,
    read_tokenizers,
    set_chat_tokens,
)
from saccade.files import atomic_write, create_folder
from saccade.model.build.model import build
from saccade.model.run import SkipInit, named_weights, write_tensors
from saccade.runs import CARD, RECIPE, WEIGHTS
from saccade.train.api import resolve_run_folder

UNTIED_WRITERS = ("states", *HEAD_OBJECTIVES)  # have no output matrix over the vocabulary
# Keys of config.json that newer folders store in generation_config.json.
GENERATION_KEYS = ("decoder_start_token_id", "forced_bos_token_id", "forced_decoder_ids", "is_multilingual")
MAX_TOKEN_ID = 2**31
CONSTANT_TOLERANCE = 2e-3  # largest rounding error of float16 for values up to 1, with some margin
# The [train] table of an imported recipe: the usual fine-tuning settings, with a small learning rate and few epochs.
FINE_TUNING = {
    "steps": None, "epochs": 3, "clip": 1.0, "valid_every": 200,
    "optimizer": {"kind": "adam", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    "schedule": {"kind": "linear", "lr": 5e-5, "warmup_steps": 10},
}  # fmt: skip


class ImportResult(NamedTuple):
    path: Path
    family: str
    parameters: int
    ignored_keys: list[str]  # keys of config.json that do not affect the outputs of the model


def import_folder(source: str, run: str, *, kinds: Mapping[str, Any] | None = None) -> ImportResult:
    """Convert a foreign model to a run; a failed import leaves no folder behind. `kinds` may have own families."""
    path = resolve_run_folder(run, resumable=False)
    files = GgufFile(source) if is_gguf(source) else HuggingFaceFolder(find_folder(source))
    config = files.read_config()
    with config.convert_errors():
        family = get_family(config, Kinds(kinds))
        tables = family.to_recipe(config)
        task, second_reading = get_task(tables.get("task", "translate")), tables.get("reader", {}).get("second_pass")
        writes = task.writes_stepwise
        needs_start = writes or second_reading is not None
        tokenizers, mapping, start = (
            read_vocabulary(config, files, family, needs_start=needs_start)
            if family.uses_text
            else build_empty_vocabulary()
        )
        if family.read_preprocessor is not None:
            files.read_preprocessor(family, tables)
    config.check_unused()
    tensors = files.open_tensors(family)
    if task.predicts_labels:
        tokenizers = replace(
            tokenizers, labels=read_labels(config, tables["writer"]["kind"], allow_duplicates=not family.uses_text)
        )
        # Only the label of a whole sequence is read from its last token; tags are read from every token.
        if second_reading is not None or (not family.has_encoder and tables["writer"]["kind"] != "tags"):
            check_final_token(config, tokenizers, with_end=family.has_encoder)
    if family.refine_recipe is not None:
        family.refine_recipe(tables, tensors)
    if writes:
        tables["writer"] |= {"start_token": start, "output_bias": has_output_bias(tensors, mapping)}
    elif second_reading is not None:
        second_reading["start_token"] = start
    untied = config.values.get("tie_word_embeddings") is False and family.untied == "none"
    if (has_untied_output(tensors, family) or untied) and tables["writer"].get("kind") not in UNTIED_WRITERS:
        tables["writer"]["tie"] = family.untied
    if writes and not family.has_encoder:
        stop = find_stop_tokens(config, tokenizers.target.backend)
        tables |= {**LANGUAGE_MODEL_TABLES, "predict": {**LANGUAGE_MODEL_TABLES["predict"], "stop": stop}}
    recipe = build_recipe(tables, tokenizers, path, family=family, source=source)
    weights = convert_weights(recipe, tokenizers, tensors, mapping, family)
    write_run(path, recipe, tokenizers, weights, about=f"Imported from {source} (family {family.name}).")
    parameters = sum(tensor.numel() for tensor in weights.values())
    return ImportResult(path, family.name, parameters, sorted(config.given - config.used))


def read_vocabulary(
    config: Config, source: HuggingFaceFolder | GgufFile, family: Family, *, needs_start: bool
) -> tuple[Tokenizers, VocabularyMapping, str | int]:
    """Return the tokenizers, the mapping of their ids to rows of the foreign tables, and `writer.start_token`.

    `needs_start`: whether a decoder reads a start token.
    """
    size = int(config.take("vocab_size"))
    cores = source.read_tokenizers(family, size)
    if needs_start:
        cores = set_chat_tokens(config, cores, family)
    if family.get_prompt is not None:
        add_prompt(cores[0], family.get_prompt(config, cores[0]))
    start = find_start(config, cores, family) if needs_start else find_encoder_start(cores)
    tokenizers = adopt_tokenizers(cores, size=size, start=start)
    check_forced_bos(config, tokenizers)
    start_token = tokenizers.target.prefix_ids[0] if needs_start and start == "begin" else start
    return tokenizers, map_vocabulary(tokenizers.target, size), start_token


def build_empty_vocabulary() -> tuple[Tokenizers, VocabularyMapping, str | int]:
    """Return what `read_vocabulary` returns, for a model without text."""
    return train_tokenizers(Settings(kind="bytes"), lambda: ()), VocabularyMapping([], [], 0), "own"


class HuggingFaceFolder(NamedTuple):
    """A Hugging Face folder; `GgufFile` has the same methods."""

    path: Path

    def read_config(self) -> Config:
        path = self.path / CONFIG_FILE
        if not path.is_file():
            raise SaccadeError(
                f"'{self.path}' has no {CONFIG_FILE}; expected a Hugging Face folder with {CONFIG_FILE} and weights"
            )
        generation_path = self.path / "generation_config.json"
        generation = read_json(generation_path)
        values = {key: generation[key] for key in GENERATION_KEYS if generation.get(key) is not None}
        values |= read_json(path)
        if "eos_token_id" in values and "eos_token_id" in generation and not values.get("is_encoder_decoder"):
            ends = [*list_ids(values["eos_token_id"], path), *list_ids(generation["eos_token_id"], generation_path)]
            values["eos_token_id"] = ends[0] if len(set(ends)) == 1 else list(dict.fromkeys(ends))
        list_ids(values.get("eos_token_id"), path)
        return Config(values, origin=str(path))

    def read_tokenizers(self, family: Family, size: int) -> list[Core]:
        return read_tokenizers(self.path, family, size)

    def read_preprocessor(self, family: Family, tables: dict[str, Any]) -> None:
        """Add the preprocessing of pictures or sound (preprocessor_config.json) to the tables of the recipe."""
        path = self.path / PREPROCESSOR_FILE
        config = Config({key: value for key, value in read_json(path).items() if value is not None}, origin=str(path))
        assert family.read_preprocessor is not None, "only called for families with a preprocessor"
        with config.convert_errors():
            family.read_preprocessor(config, tables)
        config.check_unused()

    def open_tensors(self, family: Family) -> FolderTensors:
        return FolderTensors(self.path, prefix=family.prefix)


def list_ids(value: Any, path: Path) -> list[int]:
    """Return the ids of the key eos_token_id of a file: one id, several, or none."""
    ids = list(value) if isinstance(value, list) else [] if value is None else [value]
    for found in ids:
        if not isinstance(found, int) or not 0 <= found < MAX_TOKEN_ID:
            raise SaccadeError(f"{path}: eos_token_id: expected ids of tokens, got {str(found)[:60]!r}; is it damaged?")
    return ids


def check_forced_bos(config: Config, tokenizers: Tokenizers) -> None:
    """Check that a forced first target token is the one that the tokenizer puts before a sequence."""
    target = tokenizers.target
    forced = config.take("forced_bos_token_id", None)
    if forced is not None and [forced] != [target.library_ids[token] for token in target.prefix_ids]:
        raise config.build_error(
            "forced_bos_token_id", "it must be the token that the tokenizer puts before a sequence"
        )


def has_output_bias(tensors: TensorReader, mapping: VocabularyMapping) -> bool:
    """Whether logits have a bias: that of the folder, or one that masks tokens which only our vocabulary has."""
    name = "final_logits_bias"
    return bool(mapping.unmapped) or (name in tensors and bool(tensors[name].any()))


def has_untied_output(tensors: TensorReader, family: Family) -> bool:
    """Whether the output matrix differs from the embedding; every other duplicate must equal its original."""
    is_untied = False
    for copy, original in family.duplicates.items():
        if copy in tensors and not torch.equal(tensors[copy], tensors[original]):
            if copy not in OUTPUT_WEIGHTS or not family.untied:
                raise SaccadeError(
                    f"{tensors.files[copy]}: {copy} differs from {original}, but {family.name} ties the two"
                )
            is_untied = True
    return is_untied


def build_recipe(
    tables: Mapping[str, Any], tokenizers: Tokenizers, path: Path, *, family: Family, source: str
) -> Recipe:
    """Build the complete recipe; training with it uses the tokenizer files of the run, if the model has text."""
    files = [SHARED_FILE] if tokenizers.is_shared else [SOURCE_FILE, TARGET_FILE]
    tokenizer = {"kind": "file", "files": [str(path / file) for file in files], "shared": True}
    values = {
        **tables, "name": family.name, "about": f"{family.name}, imported from {source}", "train": FINE_TUNING,
        **({"tokenizer": tokenizer} if family.uses_text else {}),
    }  # fmt: skip
    return validate(values, origin=f"the recipe from {CONFIG_FILE}")


def convert_weights(
    recipe: Recipe, tokenizers: Tokenizers, tensors: TensorReader, mapping: VocabularyMapping, family: Family
) -> dict[str, Tensor]:
    """Convert the foreign tensors to those of our model; a tensor that nothing uses is an error."""
    with torch.device("meta"), SkipInit():
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
    tensor_map, used, weights = family.get_tensor_map(recipe), set(), {}
    for name, ours in named_weights(model).items():
        conversion, theirs = find_tensor(name, tensor_map)
        used.update(theirs)
        if name.endswith(".bias") and any(family.optional_biases in there and there not in tensors for there in theirs):
            weights[name] = torch.zeros(ours.shape)
            continue
        optional = name == "writer.output.bias" and not all(there in tensors for there in theirs)
        stored = [] if optional else [tensors[there] for there in theirs]
        weights[name] = convert_tensor(conversion.to_ours, stored, ours.shape, mapping, theirs, tensors).contiguous()
    for name, expected in ({} if family.compute_constants is None else family.compute_constants(recipe)).items():
        used.add(name)
        if name in tensors:
            check_constant(tensors, name, expected)
    for extra in find_unknown_tensors(tensors.files, used, family):
        raise SaccadeError(f"{tensors.files[extra]} has the tensor {extra!r}, which {family.name} does not have")
    return weights


def check_constant(tensors: TensorReader, name: str, expected: Tensor) -> None:
    """Check a stored constant, such as a table of sinusoids, against the value computed from the settings."""
    found = tensors[name]
    if found.shape != expected.shape or bool((found - expected).abs().max() > CONSTANT_TOLERANCE):
        raise SaccadeError(
            f"{tensors.files[name]}: {name} of shape {tuple(found.shape)} differs from the table of shape "
            f"{tuple(expected.shape)} that follows from {CONFIG_FILE}; only that one can be imported"
        )


def convert_tensor(
    to_ours: Any,
    theirs: list[Tensor],
    shape: torch.Size,
    mapping: VocabularyMapping,
    names: list[str],
    tensors: TensorReader,
) -> Tensor:
    """Convert one tensor to our layout and check its shape."""
    try:
        converted: Tensor = to_ours(theirs, shape, mapping)
    except (RuntimeError, IndexError):
        converted = torch.empty(0)
    if converted.shape != shape:
        got = ", ".join(str(tuple(part.shape)) for part in theirs)
        raise SaccadeError(
            f"{tensors.path}: {' + '.join(names)} of shape {got} cannot become {tuple(shape)}, "
            f"the shape that {CONFIG_FILE} specifies"
        )
    return converted


def write_run(path: Path, recipe: Recipe, tokenizers: Tokenizers, weights: Mapping[str, Tensor], *, about: str) -> None:
    """Write the files of a run into a new folder."""
    with create_folder(path):
        tokenizers.save(path)
        save(recipe, path / RECIPE)
        write_tensors(weights, path / WEIGHTS, vocabulary=tokenizers.hash_vocabulary())
        atomic_write(path / CARD, f"# {path.name}\n\n{about}\n".encode())
