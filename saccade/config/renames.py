"""Keys of recipes and names of tasks that were renamed after 0.8. The old ones are read until 1.0.

This is the only list of them. Recipe files, `key=value` overrides, dictionaries in Python and the recipes of stored
runs all go through it. One note per recipe names the new ones on stderr; a stored run is read without a note, since
nobody edits it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.bounds import is_index
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from saccade.config.plugins import Kinds

TASKS = {
    "write": "language-model",
    "label": "classify",
    "restore": "denoise",
    "describe": "media-to-text",
}  # a task of a plugin has its own old names, see `Task.former_names`

# Class of the table: {old key: new key}. Subclasses have the renames of their base classes too.
KEYS: dict[str, dict[str, str]] = {
    "Data": {
        "cut": "truncate", "cross": "cross_document", "hidden": "corruption_rate", "span": "mean_span_length",
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

# Keys that only the tables of some tasks have today. Recipes of runs of 0.8 have them with their defaults in all tasks.
MOVED = {"Data": ("play",)}

# Flags that are items of a list today: {old flag: (key of the list, item)}
FLAGS = {"Train": {"tensorboard": ("loggers", "tensorboard")}}

Renamed = dict[str, str]  # old dotted key, or old task: the new one


def get_renamed_keys(table: type) -> dict[str, str]:
    """Old and new keys of a table, those of its base classes included."""
    known = (KEYS.get(base.__name__, {}) | dict(base.__dict__.get("renamed_keys", {})) for base in table.__mro__)
    return {old: new for keys in known for old, new in keys.items()}


def rename_keys(table: type[BaseModel], values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of one table under their new keys, in the same order, without keys that other tables have today."""
    renamed, values = get_renamed_keys(table), convert_flags(table, drop_moved(table, values))
    if not renamed.keys() & values.keys():
        return values
    for old, new in renamed.items():
        if old in values and new in values:
            raise SaccadeError(_format_conflict(f"{path}{old}", f"{path}{new}"))
    return {renamed.get(key, key): value for key, value in values.items()}


def drop_moved(table: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table without keys that only tables of other tasks have today."""
    moved = {key for base in table.__mro__ for key in MOVED.get(base.__name__, ())} - table.model_fields.keys()
    return {key: value for key, value in values.items() if key not in moved}


def get_flags(table: type) -> dict[str, tuple[str, str]]:
    """Old flags of a table, with the list and the item that they are today."""
    return {old: new for base in table.__mro__ for old, new in FLAGS.get(base.__name__, {}).items()}


def convert_flags(table: type[BaseModel], values: Mapping[str, Any], base: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The values of a table with its old flags as items of lists; `base` has the list that a layer changes."""
    found = dict(values)
    for old, (key, item) in get_flags(table).items():
        if old not in found:
            continue
        flag, items = found.pop(old), list(values.get(key, base.get(key, ())))
        if flag not in (True, False):
            raise SaccadeError(f'{old} is now the item "{item}" of {key}; expected true or false, got {flag!r}')
        others = [other for other in items if other != item]
        if flag or others != items:
            found[key] = [*others, item] if flag else others
    return found


def translate(values: Any, base: Any, kinds: Mapping[str, Any], renamed: Renamed) -> Any:
    """The values of a whole recipe, or of a layer that is merged into `base`, under their new names.

    What was renamed is added to `renamed`. `base` has new names already; it knows the kind of a table that the layer
    changes. Settings of a user's own kinds keep their names, except in tables that declare `renamed_keys`.
    """
    from saccade.config.plugins import Kinds
    from saccade.config.schema import Recipe
    from saccade.config.task import find_new_name, find_task

    own = kinds if isinstance(kinds, Kinds) else Kinds(kinds)
    name = values.get("task", base.get("task", "translate")) if isinstance(values, Mapping) else None
    task = find_task(name, own)
    data_tables = [task.data_table] if task is not None and task.data_table is not None else []
    translated = _Translation(own, data_tables, renamed).translate(values, base, [Recipe], ("", ""))
    if isinstance(translated, dict) and (new := find_new_name(translated.get("task"), own)):
        renamed[f'task = "{translated["task"]}"'] = f'"{new}"'
        translated["task"] = new
    return translated


class _Translation(NamedTuple):
    """Translates the values of the tables of a recipe."""

    kinds: Kinds
    data_tables: Sequence[type[BaseModel]]  # the table [data] of the recipe's task, if it has its own
    renamed: Renamed

    def translate(self, values: Any, base: Any, tables: Sequence[type[BaseModel]], paths: tuple[str, str]) -> Any:
        """Translate the tables at a place of the recipe; `paths` are its old and its new dotted key."""
        before, after = paths
        if isinstance(values, list | tuple):
            return type(values)(
                self.translate(item, {}, tables, (f"{before}{i}.", f"{after}{i}.")) for i, item in enumerate(values)
            )
        if not isinstance(values, Mapping):
            return values
        if isinstance(base, list) and values and all(map(is_index, values)):  # objectives.0.weight
            items = {key: base[int(key)] if int(key) < len(base) else {} for key in values}
            return {
                key: self.translate(item, items[key], tables, (f"{before}{key}.", f"{after}{key}."))
                for key, item in values.items()
            }
        base = base if isinstance(base, Mapping) else {}
        table = self.choose_table(tables, values.get("kind", base.get("kind")))
        return dict(values) if table is None else self.translate_table(values, base, table, paths)

    def translate_table(
        self, values: Mapping[str, Any], base: Mapping[str, Any], table: type[BaseModel], paths: tuple[str, str]
    ) -> dict[str, Any]:
        before, after = paths
        self.renamed.update(
            {f"{before}{old}": f"{after}{key}" for old, (key, _) in get_flags(table).items() if old in values}
        )
        found, values = {}, convert_flags(table, drop_moved(table, values), base)
        for old, (new, item) in zip(values, rename_keys(table, values, before).items(), strict=True):
            if old != new:
                self.renamed[f"{before}{old}"] = f"{after}{new}"
            inner = (new == "data" and not before and self.data_tables) or list_tables_of(table, new)
            found[new] = self.translate(item, base.get(new), inner, (f"{before}{old}.", f"{after}{new}."))
        return found

    def choose_table(self, tables: Sequence[type[BaseModel]], kind: Any) -> type[BaseModel] | None:
        """The table of a kind, the first one without a kind; None for a user's own kind that is no table."""
        from saccade.config.kinds import get_kind_name, is_table_class

        named = {get_kind_name(table): table for table in tables if "kind" in table.model_fields}
        if len(tables) <= 1 or not named or kind is None:
            return tables[0] if tables else None
        if str(kind) in named:
            return named[str(kind)]
        own = self.kinds.peek(str(kind))
        return own if is_table_class(own) else None


@cache
def list_tables_of(table: type[BaseModel], key: str) -> Sequence[type[BaseModel]]:
    """The tables that a key of a table may hold, without users' own kinds."""
    from saccade.config.kinds import OwnKind, list_tables

    found = list_tables(table.model_fields[key].annotation) if key in table.model_fields else []
    return tuple(each for each in found if not issubclass(each, OwnKind))


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
    yield from ((f"{old_path}{old}", f"{new_path}{key}") for old, (key, _) in get_flags(table).items())
    for key in table.model_fields:
        old, new = f"{old_path}{old_names.get(key, key)}", f"{new_path}{key}"
        if old != new:
            yield old, new
        for inner in list_tables_of(table, key):
            yield from _walk(inner, f"{old}.", f"{new}.")
