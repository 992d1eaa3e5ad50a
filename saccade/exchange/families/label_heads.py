"""Heads of encoders that label texts or words: their settings, their names, and the names of the labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from saccade.config.schema import Recipe
from saccade.config.table import WriterTraits
from saccade.data.tokenization.labels import Labels
from saccade.exchange.families.family import SAME, Config, Names, part

TEXTS, WORDS = "ForSequenceClassification", "ForTokenClassification"
OF_PAIRS = ("mnli", "mrpc", "qnli", "qqp", "rte", "stsb", "sts-b", "wnli")  # tasks of GLUE that are about two texts
ENTAILMENT = "entailment"
TEXTS_KEY = "texts_of_a_label"  # only we write it
OBJECTIVES = {"label": "label", "number": "regress", "tags": "tag"}


def label_suffix(writer: WriterTraits) -> str:
    """How the name of an architecture with such a head ends."""
    return WORDS if writer.labels_words else TEXTS


def label_tables(config: Config, stack: dict[str, Any]) -> dict[str, Any]:
    """Task, writer and objective of a folder whose architecture labels something; nothing of any other."""
    made = (config.values.get("architectures") or [""])[0]
    if not made.endswith((TEXTS, WORDS)):
        return {}
    if config.take("problem_type", None) == "multi_label_classification":
        raise config.refusal("problem_type", "a text can have one label here")
    config.ignore(TEXTS_KEY)
    dropout = config.values.get("classifier_dropout", config.values.get("classifier_dropout_prob"))
    writer: dict[str, Any] = {"dropout": stack["dropout"] if dropout is None else dropout}
    if made.endswith(WORDS):
        writer |= {"kind": "tags"}
    else:
        writer |= {"kind": kind_of_text_labels(config), "pooling": "first", "hidden": stack["dim"]}
    return {"task": "label", "writer": writer, "objectives": [{"kind": OBJECTIVES[writer["kind"]]}]}


def kind_of_text_labels(config: Config) -> str:
    regression = config.values.get("problem_type") == "regression"
    return "number" if regression or len(said(config)) == 1 else "label"


def said(config: Config) -> Any:
    """The names of labels by their numbers, as they stand there; without names, they are called by their numbers."""
    count = config.values.get("num_labels", config.values.get("_num_labels", 2))
    return config.values.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}


def label_names(names: Names, recipe: Recipe, *, hidden: str, output: str, of_words: str = "classifier") -> Names:
    """The names of a family, with those of its head in the place of others."""
    if not recipe.writer.is_label_head:
        return names
    plain = {name: value for name, value in names.items() if not name.startswith("writer.")}
    return {
        **plain, "writer.hidden": part(SAME, hidden),
        "writer.output": part(SAME, of_words if recipe.writer.labels_words else output),
    }  # fmt: skip


def labels_of(config: Config, kind: str, *, alike: bool = False) -> Labels:
    """What the numbers of a head stand for; where two may be called `alike`, the later ones have their number too.

    So it is with pictures: ImageNet has a crane that flies and one that lifts.
    """
    if kind == "number":
        return Labels(kind, texts=texts_of(config))
    given = said(config)
    try:
        names = [str(given[str(number)]) for number in range(len(given))]
    except (KeyError, TypeError):
        raise config.refusal("id2label", "expected a name for each number from 0 on") from None
    if kind == "tags" and any(len(name.split()) != 1 for name in names):
        raise config.refusal("id2label", "the name of a tag is one word")
    if alike:
        names = [name if names.index(name) == i else f"{name} ({i})" for i, name in enumerate(names)]
    if len(set(names)) < len(names):
        raise config.refusal("id2label", "two labels have one name")
    return Labels(kind, tuple(names), texts=1 if kind == "tags" else texts_of(config))


def texts_of(config: Config) -> int:
    """How many texts a label is about: what we said ourselves, or else what the names of task and labels tell."""
    names = said(config)
    told = follows(names.values()) if isinstance(names, dict) else False
    paired = told or str(config.values.get("finetuning_task")).lower() in OF_PAIRS
    return int(config.values.get(TEXTS_KEY, 2 if paired else 1))


def follows(names: Iterable[Any]) -> bool:
    """Whether labels say that one text follows from another."""
    return ENTAILMENT in {str(name).lower() for name in names}


def label_config(labels: Labels) -> dict[str, Any]:
    """What config.json says of labels."""
    names = labels.names or ("LABEL_0",)
    values: dict[str, Any] = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if not labels.per_word:
        values["problem_type"] = "regression" if labels.is_number else "single_label_classification"
    return values | ({TEXTS_KEY: labels.texts} if labels.texts > 1 or follows(names) else {})
