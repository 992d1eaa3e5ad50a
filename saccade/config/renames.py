"""Keys of recipes and names of tasks that were renamed after 0.8. The old ones are read until 1.0.

This is the only list of them. Recipe files, `key=value` overrides, dictionaries in Python and the recipes of stored
runs all go through it. One note per recipe names the new ones on stderr; a stored run is read without a note, since
nobody edits it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from pydantic import BaseModel

TASKS = {
    "write": "language-model",
    "label": "classify",
    "restore": "denoise",
    "describe": "media-to-text",
    "walk": "navigate",
    "interact": "play",
}

# Class of the table: {old key: new key}. Subclasses have the renames of their base classes too.
KEYS: dict[str, dict[str, str]] = {
    "Data": {
        "cut": "truncate", "cross": "cross_document", "hidden": "corruption_rate", "span": "mean_span_length",
    },
    "PlaySettings": {
        "together": "parallel_episodes", "every": "batches_per_round", "explore": "final_epsilon",
        "episodes": "epsilon_episodes",
    },
    "Tokenizer": {"begin": "cls_token", "mask": "mask_token"},
    "TokenReader": {"scale": "scale_embedding", "levels": "concat_embedding", "again": "second_pass"},
    "SecondPass": {"scale": "scale_embedding", "start": "start_token"},
    "JoinedReader": {"look": "image", "ask": "question", "blind": "image_dropout"},
    "PictureReader": {"changes": "augment"},
    "PatchReader": {"patch": "patch_size", "first": "class_token"},
    "GridReader": {"attention": "attention_levels", "flat": "height_only_levels", "columns": "column_lstm_layers"},
    "TimmReader": {"tuned": "trainable", "step": "stride"},
    "FrameReader": {"changes": "augment"},
    "ImageAugmentation": {"operations": "num_ops", "strength": "magnitude"},
    "AudioAugmentation": {
        "time_share": "time_mask_ratio", "band_masks": "freq_masks", "band_share": "freq_mask_ratio",
    },
    "Sound": {
        "rate": "sample_rate", "bands": "mel_bands", "normalise": "normalize", "longest": "max_seconds",
        "pad": "pad_seconds",
    },
    "GlimpsesJoin": {"hidden": "hidden_dim"},
    "TransformerStack": {
        "heads_form": "head_projection", "scale": "scale_attention", "share": "share_layers",
    },
    "Experts": {
        "chosen": "top_k", "hidden": "hidden_dim", "every": "every_n_layers", "balance": "balance_weight",
    },
    "ConvolutionStack": {"hidden": "hidden_dim"},
    "RecurrentWriterStack": {"hard": "hard_attention", "gate": "context_gate", "first": "initial_state"},
    "Sinusoidal": {"how": "combine"},
    "Learned": {"how": "combine"},
    "Axial": {"first": "row_dim"},
    "Rotary": {"stretch": "scaling"},
    "RotaryScaling": {"low": "low_freq_factor", "high": "high_freq_factor", "length": "original_length"},
    "Shaw": {"distance": "max_distance"},
    "Bucketed": {"distance": "max_distance"},
    "TransformerXL": {"content": "content_bias", "segments": "relative_segments"},
    "TokenWriter": {"scale": "scale_embedding", "start": "start_token"},
    "ActionWriter": {"blind": "input_dropout"},
    "FillWriter": {"scale": "scale_embedding", "reach": "max_length_difference"},
    "Head": {"hidden": "hidden_dim"},
    "StatesWriter": {"pool": "pooler"},
    "NextToken": {"smoothing": "label_smoothing"},
    "Scheduled": {"smoothing": "label_smoothing", "sampled": "sampling_probability", "ctc": "ctc_weight"},
    "Reinforce": {
        "smoothing": "label_smoothing", "reward": "reward_weight", "entropy": "entropy_weight",
        "decay": "baseline_decay",
    },
    "RDrop": {"smoothing": "label_smoothing"},
    "Fill": {"smoothing": "label_smoothing", "shown": "reveal_ratio"},
    "Reward": {"smoothing": "label_smoothing"},
    "Label": {"smoothing": "label_smoothing"},
    "Tag": {"smoothing": "label_smoothing"},
    "Masked": {
        "smoothing": "label_smoothing", "rate": "mask_rate", "masked": "mask_replace_prob",
        "replaced": "random_replace_prob", "dynamic": "dynamic_masking",
    },
    "Permuted": {
        "one_in": "tokens_per_prediction", "span": "span_length", "piece": "segment_length", "memory": "memory_length",
    },
    "Patches": {"hidden": "mask_ratio", "normalised": "normalize_pixels"},
    "Train": {
        "residual": "residual_precision", "graphs": "cuda_graphs", "keep": "keep_checkpoints", "start": "weight_init",
    },
    "Optimizer": {"decay": "weight_decay"},
    "Schedule": {"warmup": "warmup_steps", "floor": "min_lr"},
    "WeightInit": {"std": "init_std", "deep": "scale_by_depth"},
    "Lora": {"on": "target_modules"},
    "Decoding": {
        "coverage": "coverage_penalty", "no_repeat": "no_repeat_ngram", "slide": "truncate_prompt",
        "repetition": "repetition_penalty", "frequency": "frequency_penalty", "lengths": "length_candidates",
        "ctc": "ctc_weight",
    },
}  # fmt: skip

Renamed = dict[str, str]  # old dotted key, or old task: the new one


def get_renamed_keys(table: type) -> dict[str, str]:
    """Old and new keys of a table, those of its base classes included."""
    return {old: new for base in table.__mro__ for old, new in KEYS.get(base.__name__, {}).items()}


def rename_keys(table: type, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of one table under their new keys, in the same order."""
    renamed = get_renamed_keys(table)
    if not renamed.keys() & values.keys():
        return dict(values)
    for old, new in renamed.items():
        if old in values and new in values:
            raise SaccadeError(_format_conflict(f"{path}{old}", f"{path}{new}"))
    return {renamed.get(key, key): value for key, value in values.items()}


def translate(values: Any, base: Any, kinds: Mapping[str, Any], renamed: Renamed) -> Any:
    """The values of a whole recipe, or of a layer that is merged into `base`, under their new names.

    What was renamed is added to `renamed`. `base` has new names already; it knows the kind of a table that the layer
    changes. Settings of a user's own kinds keep their names.
    """
    from saccade.config.schema import Recipe

    translated = _translate(values, base, [Recipe], ("", ""), renamed)
    if isinstance(translated, dict) and (task := _find_old_task(translated.get("task"), kinds)):
        renamed[f'task = "{task}"'] = f'"{TASKS[task]}"'
        translated["task"] = TASKS[task]
    return translated


def _translate(values: Any, base: Any, tables: list[type[BaseModel]], paths: tuple[str, str], renamed: Renamed) -> Any:
    """The same for the tables at a place of the recipe; `paths` are its old and its new dotted key."""
    before, after = paths
    if isinstance(values, list | tuple):
        return type(values)(
            _translate(item, {}, tables, (f"{before}{i}.", f"{after}{i}."), renamed) for i, item in enumerate(values)
        )
    if not isinstance(values, Mapping):
        return values
    if isinstance(base, list) and values and all(key.isdigit() for key in values):  # objectives.0.weight
        items = {key: base[int(key)] if int(key) < len(base) else {} for key in values}
        return {
            key: _translate(item, items[key], tables, (f"{before}{key}.", f"{after}{key}."), renamed)
            for key, item in values.items()
        }
    base = base if isinstance(base, Mapping) else {}
    table = choose_table(tables, values.get("kind", base.get("kind")))
    if table is None:
        return dict(values)
    found = {}
    for old, (new, item) in zip(values, rename_keys(table, values, before).items(), strict=True):
        if old != new:
            renamed[f"{before}{old}"] = f"{after}{new}"
        inner = list_tables_of(table, new)
        found[new] = _translate(item, base.get(new), inner, (f"{before}{old}.", f"{after}{new}."), renamed)
    return found


def _find_old_task(name: Any, kinds: Mapping[str, Any]) -> str:
    """The name itself where it is an old one, and not that of a user's own task."""
    return name if isinstance(name, str) and name in TASKS and name not in kinds else ""


def choose_table(tables: list[type[BaseModel]], kind: Any) -> type[BaseModel] | None:
    """The table of a kind, the first one without a kind; None for a user's own kind."""
    from saccade.config.kinds import get_kind_name

    named = {get_kind_name(table): table for table in tables if "kind" in table.model_fields}
    if len(tables) <= 1 or not named or kind is None:
        return tables[0] if tables else None
    return named.get(str(kind))


def list_tables_of(table: type[BaseModel], key: str) -> list[type[BaseModel]]:
    """The tables that a key of a table may hold."""
    from saccade.config.kinds import OwnKind, list_tables

    found = list_tables(table.model_fields[key].annotation) if key in table.model_fields else []
    return [each for each in found if not issubclass(each, OwnKind)]


def check_overrides(keys: list[str], renamed: Renamed) -> None:
    """Refuses overrides that give one setting under its old and its new name."""
    for old, new in renamed.items():
        if old in keys and new in keys:
            raise SaccadeError(_format_conflict(old, new))


def _format_conflict(old: str, new: str) -> str:
    return f"{new} is given twice, also under its old name {old}; leave {old} out"


def report_renames(origin: str, renamed: Renamed) -> None:
    """Print one note with all old names of a recipe, and the new ones, to stderr."""
    if renamed:
        names = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
        print(f"note: {origin}: {names}; old names are read until 1.0", file=sys.stderr, flush=True)


@cache
def get_renamed_paths() -> dict[str, str]:
    """Old dotted keys of a recipe, and the new ones, wherever they may stand; `objectives` without an index."""
    from saccade.config.schema import Recipe

    return dict(_walk(Recipe, "", ""))


def get_new_path(key: str) -> str:
    """The new dotted key for an old one; any other key as it is."""
    return get_renamed_paths().get(key, key)


def _walk(table: type[BaseModel], old_path: str, new_path: str) -> Iterator[tuple[str, str]]:
    old_names = {new: old for old, new in get_renamed_keys(table).items()}
    for key in table.model_fields:
        old, new = f"{old_path}{old_names.get(key, key)}", f"{new_path}{key}"
        if old != new:
            yield old, new
        for inner in list_tables_of(table, key):
            yield from _walk(inner, f"{old}.", f"{new}.")
