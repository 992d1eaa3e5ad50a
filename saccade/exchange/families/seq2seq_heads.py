"""Heads of models with two sides: labels by a second reading of a text, and what its reader alone can do."""

from __future__ import annotations

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import SAME, Config, Names, part
from saccade.exchange.families.label_heads import TEXTS, WORDS, label_suffix, label_tables

STATES = "EncoderModel"
READS_ALONE = ("decoder_start_token_id", "eos_token_id", "pad_token_id")  # nothing is written
OF_AGAIN = ("stack", "positions", "scale", "embedding_norm", "dropout")


def seq2seq_tables(config: Config, tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of a recipe: those given, or of a folder that labels something, or that has nothing but a reader."""
    made = (config.values.get("architectures") or [""])[0]
    if made.endswith((STATES, WORDS)):
        config.ignore(*READS_ALONE)
    if made.endswith(STATES):
        return {**tables, "task": "encode", "writer": {"kind": "states"}, "objectives": [{"kind": "masked"}]}
    head = label_tables(config, {"dropout": 0.0, "dim": tables["reader"]["stack"]["dim"]})
    if not head:
        return tables
    reader = tables["reader"]
    if made.endswith(TEXTS):
        head["writer"]["pooling"] = "last"
        reader = {**reader, "again": {key: tables["writer"][key] for key in OF_AGAIN if key in tables["writer"]}}
    return {**tables, **head, "reader": reader}


def second_of(recipe: Recipe) -> Any:
    """The table of what is a decoder there; None where there is none."""
    return recipe.reader.second_reading if recipe.writer.is_head else recipe.writer


def seq2seq_names(names: Names, recipe: Recipe, *, prefix: str = "") -> Names:
    """The names of a family; of a model that labels something, `prefix` stands before all but those of its head."""
    if not recipe.writer.is_head:
        return names
    before = prefix if recipe.writer.is_label_head else ""
    found = {
        name.replace("writer.", "reader.again.", 1): place._replace(
            names=tuple(before + there for there in place.names)
        )
        for name, place in names.items()
        if not name.startswith("writer.output")
    }
    if recipe.writer.labels_words:
        return {**found, "writer.output": part(SAME, "classifier")}
    head = {"hidden": "classification_head.dense", "output": "classification_head.out_proj"}
    return {**found, **{f"writer.{ours}": part(SAME, theirs) for ours, theirs in head.items()}}


def seq2seq_head(recipe: Recipe, family: str) -> dict[str, Any]:
    """What config.json says of the head; nothing where texts are written."""
    if recipe.writer.gives_states:
        return {"architectures": [family + STATES], "is_encoder_decoder": False}
    if not recipe.writer.is_label_head:
        return {}
    writer: Any = recipe.writer
    return {"architectures": [family + label_suffix(writer)], "classifier_dropout": writer.dropout}
