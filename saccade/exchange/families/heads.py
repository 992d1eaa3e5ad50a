"""Heads of foreign models that label texts or words: their settings, the names of their tensors and of the labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import processors

from saccade.config.schema import Recipe
from saccade.config.table import WriterTraits
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.text_pairs import encode_texts, separators
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families.family import SAME, Config, Names, Settings, part
from saccade.exchange.formats.vocabulary import release

TEXTS, WORDS = "ForSequenceClassification", "ForTokenClassification"
OF_PAIRS = ("mnli", "mrpc", "qnli", "qqp", "rte", "stsb", "sts-b", "wnli")  # tasks of GLUE that are about two texts
ENTAILMENT = "entailment"
TEXTS_KEY = "texts_of_a_label"  # only we write it
OBJECTIVES = {"label": "label", "number": "regress", "tags": "tag"}


def label_suffix(writer: WriterTraits) -> str:
    """How the name of an architecture with such a head ends."""
    return WORDS if writer.labels_words else TEXTS


def label_tables(config: Config, stack: Settings) -> dict[str, Any]:
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


# ---- heads of decoders: what would write reads, and its states are asked


LAST = {"pooling": "before-end", "hidden": None, "bias": False, "dropout": 0.0}  # no text of theirs ends with END


def decoder_tables(config: Config, tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of a recipe: those given, or of a folder that labels something, with what would write as its reader."""
    head = label_tables(config, {"dropout": 0.1, "dim": None})
    if not head:
        return tables
    config.ignore("eos_token_id", "pad_token_id")  # `check_ends` looks at the latter
    if head["writer"]["kind"] != "tags":
        head["writer"] |= LAST
    reader = {key: value for key, value in tables["writer"].items() if key != "tie"}
    return {**tables, **head, "reader": {**reader, "causal": True}}


def check_ends(config: Config, found: Tokenizers, *, ended: bool = False) -> None:
    """Theirs ask the last piece that is no padding, ours the one before END: both must be the last one of a text.

    Where texts are `ended` there too, both ask END, which must be the last one.
    """
    source, labels = found.source, found.labels
    added, padding = source.core.get_added_tokens_decoder(), config.values.get("pad_token_id")
    if not ended and padding is not None and padding not in added:
        raise config.refusal("pad_token_id", "texts may end with that piece, which would be taken for padding")
    for count in range(1, 2 if labels is None else labels.texts + 1):
        row = encode_texts(source, [("",) * count])[0]
        last = len(row) - 1 - len(source.after)  # END
        ours = [source.order[number] for number in row[: last + ended]]
        theirs = source.core.encode("", "" if count > 1 else None).ids
        if ours != theirs and not (ended and source.core.post_processor is None):  # where the file says nothing of it
            put, known = (" ".join(map(str, map(source.core.id_to_token, ids))) or "nothing" for ids in (theirs, ours))
            raise SaccadeError(
                f"{config.origin}: around the texts of a label ({count}) its tokenizer puts {put}, and only "
                f"{known} can be imported; is it the tokenizer that the model was trained with?"
            )


def decoder_of(recipe: Recipe) -> Any:
    """The table of what is a decoder there."""
    return recipe.reader if recipe.writer.is_label_head else recipe.writer


def decoder_names(names: Names, recipe: Recipe, *, of_words: str = "classifier") -> Names:
    """The names of a family, or where it labels something, the same of what reads, and those of its head."""
    if not recipe.writer.is_label_head:
        return names
    read = {name.replace("writer.", "reader.", 1): place for name, place in names.items()}
    return {**read, "writer.output": part(SAME, of_words if recipe.writer.labels_words else "score")}


def decoder_head(recipe: Recipe, family: str) -> dict[str, Any]:
    """What config.json says of the head; nothing where texts are written."""
    if not recipe.writer.is_label_head:
        return {}
    writer: Any = recipe.writer
    dropout = {"classifier_dropout": writer.dropout} if writer.labels_words else {}
    return {"architectures": [family + label_suffix(writer)], **dropout}


def release_open(tokenizer: Tokenizer, size: int) -> str:
    """The tokenizer.json of theirs, with nothing behind texts, and END between two of them where it has a row."""
    core = tokenizers.Tokenizer.from_str(release(tokenizer, size, ends=False))
    between = [tokenizer.order[END]] * separators(tokenizer) if tokenizer.order[END] < size else []
    before = [tokenizer.order[number] for number in tokenizer.begin]
    first, middle = ([core.id_to_token(number) for number in part] for part in (before, between))
    core.post_processor = processors.TemplateProcessing(
        single=[*first, "$A"], pair=[*first, "$A", *middle, "$B"],
        special_tokens=[(core.id_to_token(number), number) for number in {*before, *between}],
    )  # fmt: skip
    return str(core.to_str(pretty=True))


# ---- heads of models with two sides: labels by a second reading of a text, and what the reader alone can do


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
