"""`saccade export`: convert a run to a folder that Hugging Face transformers loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.data.tokenization.special_tokens import find_mask_id
from saccade.data.tokenization.tokenizer import (
    END,
    PAD,
    SHARED_FILE,
    SPECIAL_TOKENS,
    START,
    TARGET_FILE,
    UNKNOWN,
    Tokenizer,
)
from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import find_family
from saccade.exchange.families.family import MASKED_LOGIT, OUTPUT_WEIGHTS, Family, VocabularyMapping, find_tensor
from saccade.exchange.families.heads import build_label_config, export_decoder_tokenizer
from saccade.exchange.formats.hugging_face import CONFIG_FILE, PREPROCESSOR_FILE, WEIGHTS_FILE
from saccade.exchange.formats.vocabulary import export_tokenizer, map_vocabulary
from saccade.files import atomic_write, create_folder
from saccade.model.run import Run, load_run, named_weights


def export_run(run: str | Path, folder: str | Path, *, kinds: Mapping[str, Any] | None = None) -> tuple[Path, str]:
    """Write the folder, which must be new or empty; return its path and the `model_type`."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not an empty folder; choose another one")
    loaded = load_run(run, kinds=kinds)
    family = find_family(loaded.recipe, loaded.tokenizers.source)
    weights = named_weights(loaded.model)
    labels = loaded.tokenizers.labels
    mapping = map_run_vocabulary(loaded, weights, labelled=labels is not None or not family.uses_text)
    tensors = convert_weights(loaded, weights, mapping, family)
    with create_folder(path):
        write_configs(path, loaded, mapping.size, family)
        if family.uses_text:
            write_tokenizers(path, loaded, mapping.size, family)
        atomic_write(path / WEIGHTS_FILE, to_bytes(tensors, metadata={"format": "pt"}))
    return path, family.name


def map_run_vocabulary(run: Run, weights: dict[str, Tensor], *, labelled: bool = False) -> VocabularyMapping:
    """Map our token ids to rows of the exported tables, without tokens that only an import added."""
    target, bias = run.tokenizers.target, None if labelled else weights.get("writer.output.bias")
    if bias is not None:
        size = int((bias > MASKED_LOGIT).sum())
    else:  # a decoder without this bias has a logit for each token
        size = target.size if is_autoregressive(run) else count_original_tokens(target)
    return map_vocabulary(target, size)


def count_original_tokens(tokenizer: Tokenizer) -> int:
    """Count the tokens before the special tokens that saccade appended to the vocabulary."""
    ours = {tokenizer.backend.token_to_id(token) for token in SPECIAL_TOKENS}
    return next(size for size in range(tokenizer.size, 0, -1) if size - 1 not in ours)


def convert_weights(
    run: Run, weights: dict[str, Tensor], mapping: VocabularyMapping, family: Family
) -> dict[str, Tensor]:
    """Convert all tensors to the names and layouts of the foreign model."""
    tensor_map, tensors = family.get_tensor_map(run.recipe), {}
    for name, ours in weights.items():
        conversion, theirs = find_tensor(name, tensor_map)
        converted = conversion.to_theirs(ours, mapping)
        if not converted and bool((ours > MASKED_LOGIT).logical_and(ours != 0).any()):
            raise SaccadeError(
                f"{run.path}: {name} is not 0, but {family.name} has no such tensor; the run cannot be exported"
            )
        tensors.update({there: part.contiguous() for there, part in zip(theirs, converted, strict=True)})
    if any(name in tensors for name in OUTPUT_WEIGHTS):  # without tying, transformers does not tie the biases either
        copies = {copy: tensors.get(original) for copy, original in family.duplicates.items() if copy.endswith(".bias")}
        tensors |= {copy: bias.clone() for copy, bias in copies.items() if bias is not None}
    for compute in (family.compute_constants, family.unused_tensors):
        tensors |= {} if compute is None else dict(compute(run.recipe))
    return tensors


def write_configs(path: Path, run: Run, size: int, family: Family) -> None:
    """Write config.json and, where the model has them, generation_config.json and preprocessor_config.json."""
    values = {
        "model_type": family.name, "architectures": [family.architecture], "dtype": "float32",
        **family.to_config(run.recipe),
        **({} if run.tokenizers.labels is None else build_label_config(run.tokenizers.labels)),
    }  # fmt: skip
    files = {CONFIG_FILE: values}
    if family.uses_text:
        ids, generation = get_special_token_ids(run, size, family)
        files = {CONFIG_FILE: {**ids, "vocab_size": size, **values}}
        if is_autoregressive(run):
            files["generation_config.json"] = generation
    if family.to_preprocessor is not None:
        files[PREPROCESSOR_FILE] = family.to_preprocessor(run.recipe)
    for name, content in files.items():
        atomic_write(path / name, (json.dumps(content, indent=2) + "\n").encode())


def get_special_token_ids(run: Run, size: int, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ids of the special tokens for config.json, and the values of generation_config.json."""
    target = run.tokenizers.target
    second: Any = run.recipe.writer if is_autoregressive(run) else run.recipe.reader.second_pass_table
    first = (
        (*target.prefix_ids, START)[0]
        if second is None
        else {"own": START, "pad": PAD, "end": END}.get(second.start_token, second.start_token)
    )
    ids = {
        "pad_token_id": get_padding_token(run, size, family),
        "eos_token_id": END,
        "decoder_start_token_id" if family.has_encoder and second is not None else "bos_token_id": first,
    }
    if family.get_prompt is not None:
        ids |= {"pad_token_id": END, "bos_token_id": END}
    elif target.prefix_ids and second is not None:
        ids |= {"bos_token_id": target.prefix_ids[0], "forced_bos_token_id": target.prefix_ids[0]}
    # Tokens that only our vocabulary has have no id in the exported folder.
    theirs: dict[str, Any] = {
        key: target.library_ids[ours] if target.library_ids[ours] < size else None for key, ours in ids.items()
    }
    if stops := find_stop_ids(run):
        theirs["eos_token_id"] = [theirs["eos_token_id"], *stops]
    generation: dict[str, Any] = {
        **theirs,
        "num_beams": run.recipe.predict.beam,
        "max_length": run.recipe.data.max_length,
    }
    if family.get_prompt is not None:
        generation["forced_decoder_ids"] = [
            [i, target.library_ids[token]] for i, token in enumerate(target.prefix_ids, 1)
        ]
    return {key: token for key, token in theirs.items() if key != "forced_bos_token_id"}, generation


def find_stop_ids(run: Run) -> list[int]:
    """Return the foreign ids of the tokens that end outputs besides END: strings of `predict.stop` that are tokens."""
    added = run.tokenizers.target.backend.get_added_tokens_decoder()
    stops = run.recipe.predict.stop if run.recipe.task.is_language_model else ()
    return [token_id for token_id, token in added.items() if token.content in stops]


def is_autoregressive(run: Run) -> bool:
    """Whether the model generates token by token."""
    return run.recipe.task.writes_stepwise


def get_padding_token(run: Run, size: int, family: Family) -> int:
    """Return our id of the padding token; END where the model needs one and the vocabulary has none.

    Sequence classifiers over a decoder find the last token of a sequence by the padding after it, and Reformer pads
    sequences itself.
    """
    tokenizer, decodes = run.tokenizers.source, run.tokenizers.labels is not None and not family.has_encoder
    return END if (decodes or family.needs_padding) and tokenizer.library_ids[PAD] >= size else PAD


def write_tokenizers(path: Path, run: Run, size: int, family: Family) -> None:
    """Write tokenizer.json (and the target's file, if it has its own) and tokenizer_config.json.

    The tokenizer of a model with an encoder appends the end token. For encoders, tokenizer_config.json also names
    the CLS, SEP and mask tokens, whether the model expects `token_type_ids`, and the padding side.
    """
    tokenizers, source, segments = run.tokenizers, run.tokenizers.source, uses_segments(run.recipe)
    decodes = not family.has_encoder and tokenizers.labels is not None
    text = (
        export_decoder_tokenizer(source, size)
        if decodes
        else export_tokenizer(source, size, append_end=family.has_encoder, segments=segments)
    )
    atomic_write(path / SHARED_FILE, text.encode())
    if not tokenizers.is_shared:
        target = export_tokenizer(tokenizers.target, size, append_end=family.has_encoder)
        atomic_write(path / TARGET_FILE, target.encode())
    first = START if is_autoregressive(run) else (*source.prefix_ids, START)[0]
    roles = {
        "pad_token": get_padding_token(run, size, family),
        "bos_token": first,
        "eos_token": END,
        "unk_token": UNKNOWN,
    }
    theirs = {role: source.library_ids[ours] for role, ours in roles.items()}
    names = {role: source.backend.id_to_token(token) for role, token in theirs.items() if token < size}
    if family.is_encoder_only:
        cls_ids = (source.prefix_ids or source.suffix_ids)[:1]
        extra = {"cls_token": cls_ids, "sep_token": [END], "mask_token": [find_mask_id(source)]}
        ours = {role: token for role, ids in extra.items() for token in ids if token is not None}
        names |= {role: source.backend.id_to_token(source.library_ids[token]) for role, token in ours.items()}
    inputs: dict[str, Any] = (
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if segments else {}
    )
    if family.is_encoder_only and run.recipe.writer.pooling_kind == "last":  # padded on the right, the last is padding
        inputs["padding_side"] = "left"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names, **inputs}
    atomic_write(path / "tokenizer_config.json", (json.dumps(settings, indent=2) + "\n").encode())


def uses_segments(recipe: Recipe) -> bool:
    """Whether the reader uses segment ids, in its embedding or in relative attention."""
    return recipe.reader.uses_segments
