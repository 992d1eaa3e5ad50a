"""Classification heads of Hugging Face models: their settings, tensors and labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import processors

from saccade.config.schema import Recipe
from saccade.config.table import WriterTraits
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.text_pairs import count_separators, encode_texts
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families.family import IDENTITY, Config, RecipeTable, TensorMap, map_tensor
from saccade.exchange.formats.vocabulary import export_tokenizer

SEQUENCE_HEAD, TOKEN_HEAD = "ForSequenceClassification", "ForTokenClassification"
PAIR_TASKS = ("mnli", "mrpc", "qnli", "qqp", "rte", "stsb", "sts-b", "wnli")  # GLUE tasks with sentence pairs
ENTAILMENT = "entailment"
LABEL_TEXTS_KEY = "texts_of_a_label"  # key of config.json that only saccade writes: texts per example
HEAD_OBJECTIVES = {"label": "label", "number": "regress", "tags": "tag"}


def get_label_suffix(writer: WriterTraits) -> str:
    """Return the suffix of the architecture's name for such a head."""
    return TOKEN_HEAD if writer.labels_each_word else SEQUENCE_HEAD


def build_label_tables(config: Config, stack: RecipeTable) -> dict[str, Any]:
    """Build task, writer and objectives of a classification architecture; nothing for any other architecture."""
    architecture = (config.values.get("architectures") or [""])[0]
    if not architecture.endswith((SEQUENCE_HEAD, TOKEN_HEAD)):
        return {}
    if config.take("problem_type", None) == "multi_label_classification":
        raise config.build_error("problem_type", "only one label per text is supported")
    config.ignore(LABEL_TEXTS_KEY)
    dropout = config.values.get("classifier_dropout", config.values.get("classifier_dropout_prob"))
    writer: dict[str, Any] = {"dropout": stack["dropout"] if dropout is None else dropout}
    if architecture.endswith(TOKEN_HEAD):
        writer |= {"kind": "tags"}
    else:
        writer |= {"kind": find_label_kind(config), "pooling": "first", "hidden_dim": stack["dim"]}
    return {"task": "classify", "writer": writer, "objectives": [{"kind": HEAD_OBJECTIVES[writer["kind"]]}]}


def find_label_kind(config: Config) -> str:
    regression = config.values.get("problem_type") == "regression"
    return "number" if regression or len(get_label_names(config)) == 1 else "label"


def get_label_names(config: Config) -> Any:
    """Return id2label, or LABEL_0, LABEL_1, ... if it is missing."""
    count = config.values.get("num_labels", config.values.get("_num_labels", 2))
    return config.values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}


def add_label_head(
    tensor_map: TensorMap, recipe: Recipe, *, hidden: str, output: str, token_output: str = "classifier"
) -> TensorMap:
    """Return the tensor map with the head of a labelling recipe instead of the language model's."""
    if not recipe.writer.is_label_head:
        return tensor_map
    plain = {name: value for name, value in tensor_map.items() if not name.startswith("writer.")}
    return {
        **plain, "writer.hidden": map_tensor(IDENTITY, hidden),
        "writer.output": map_tensor(IDENTITY, token_output if recipe.writer.labels_each_word else output),
    }  # fmt: skip


def read_labels(config: Config, kind: str, *, allow_duplicates: bool = False) -> Labels:
    """Read the labels of a head; with `allow_duplicates`, repeated names get their index appended.

    ImageNet has such names: "crane" is a bird and a machine.
    """
    if kind == "number":
        return Labels(kind, num_texts=count_label_texts(config))
    by_index = get_label_names(config)
    try:
        names = [str(by_index[str(i)]) for i in range(len(by_index))]
    except (KeyError, TypeError):
        raise config.build_error("id2label", "expected a name for each index from 0 on") from None
    if kind == "tags" and any(len(name.split()) != 1 for name in names):
        raise config.build_error("id2label", "expected names of tags without spaces")
    if allow_duplicates:
        names = [name if names.index(name) == i else f"{name} ({i})" for i, name in enumerate(names)]
    if len(set(names)) < len(names):
        raise config.build_error("id2label", "expected distinct names, got one name for two labels")
    return Labels(kind, tuple(names), num_texts=1 if kind == "tags" else count_label_texts(config))


def count_label_texts(config: Config) -> int:
    """Return the number of texts per example: as saccade stored it, else guessed from the task's and labels' names."""
    names = get_label_names(config)
    is_inference = is_entailment(names.values()) if isinstance(names, dict) else False
    paired = is_inference or str(config.values.get("finetuning_task")).lower() in PAIR_TASKS
    return int(config.values.get(LABEL_TEXTS_KEY, 2 if paired else 1))


def is_entailment(names: Iterable[Any]) -> bool:
    """Whether the labels are those of natural language inference."""
    return ENTAILMENT in {str(name).lower() for name in names}


def build_label_config(labels: Labels) -> dict[str, Any]:
    """Build the entries of config.json for the labels."""
    names = labels.names or ("LABEL_0",)
    values: dict[str, Any] = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if not labels.per_word:
        values["problem_type"] = "regression" if labels.is_number else "single_label_classification"
    return values | ({LABEL_TEXTS_KEY: labels.num_texts} if labels.num_texts > 1 or is_entailment(names) else {})


# ---- heads over decoders: the decoder becomes a causal reader


LAST_TOKEN_HEAD = {
    "pooling": "before-end",
    "hidden_dim": None,
    "bias": False,
    "dropout": 0.0,
}  # the Hugging Face decoders see no END token


def build_decoder_tables(config: Config, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables; for a classifier, with the decoder as a causal reader and a labelling writer."""
    head = build_label_tables(config, {"dropout": 0.1, "dim": None})
    if not head:
        return tables
    config.ignore("eos_token_id", "pad_token_id")  # `check_final_token` checks the latter
    if head["writer"]["kind"] != "tags":
        head["writer"] |= LAST_TOKEN_HEAD
    reader = {key: value for key, value in tables["writer"].items() if key != "tie"}
    return {**tables, **head, "reader": {**reader, "causal": True}}


def check_final_token(config: Config, found: Tokenizers, *, with_end: bool = False) -> None:
    """Check that both models pool the same token: Hugging Face the last that is not padding, ours the one before END.

    `with_end`: the Hugging Face model sees END as well, and both pool the state of END, which must be last.
    """
    source, labels = found.source, found.labels
    added, padding = source.backend.get_added_tokens_decoder(), config.values.get("pad_token_id")
    if not with_end and padding is not None and padding not in added:
        raise config.build_error("pad_token_id", "a text may end with that token, which would be taken for padding")
    for count in range(1, 2 if labels is None else labels.num_texts + 1):
        row = encode_texts(source, [("",) * count])[0]
        last = len(row) - 1 - len(source.suffix_ids)  # END
        ours = [source.library_ids[token] for token in row[: last + with_end]]
        theirs = source.backend.encode("", "" if count > 1 else None).ids
        if ours != theirs and not (with_end and source.backend.post_processor is None):  # no template to compare with
            put, known = (
                " ".join(map(str, map(source.backend.id_to_token, ids))) or "nothing" for ids in (theirs, ours)
            )
            raise SaccadeError(
                f"{config.origin}: its tokenizer adds {put} to an example with {count} text(s), and only "
                f"{known} can be imported; is it the tokenizer that the model was trained with?"
            )


def get_decoder(recipe: Recipe) -> Any:
    """Return the table that is exported as decoder: the reader of a classifier, else the writer."""
    return recipe.reader if recipe.writer.is_label_head else recipe.writer


def build_decoder_map(tensor_map: TensorMap, recipe: Recipe, *, token_output: str = "classifier") -> TensorMap:
    """Return the tensor map; for a classifier, with the decoder's tensors in the reader and those of the head."""
    if not recipe.writer.is_label_head:
        return tensor_map
    read = {name.replace("writer.", "reader.", 1): place for name, place in tensor_map.items()}
    return {**read, "writer.output": map_tensor(IDENTITY, token_output if recipe.writer.labels_each_word else "score")}


def build_decoder_head(recipe: Recipe, family: str) -> dict[str, Any]:
    """Build the entries of config.json for the head; nothing for a language modelling head."""
    if not recipe.writer.is_label_head:
        return {}
    writer: Any = recipe.writer
    dropout = {"classifier_dropout": writer.dropout} if writer.labels_each_word else {}
    return {"architectures": [family + get_label_suffix(writer)], **dropout}


def export_decoder_tokenizer(tokenizer: Tokenizer, size: int) -> str:
    """Return a tokenizer.json that appends no END, and puts END between two texts if the vocabulary has it."""
    core = tokenizers.Tokenizer.from_str(export_tokenizer(tokenizer, size, append_end=False))
    between = [tokenizer.library_ids[END]] * count_separators(tokenizer) if tokenizer.library_ids[END] < size else []
    before = [tokenizer.library_ids[token] for token in tokenizer.prefix_ids]
    first, middle = ([core.id_to_token(token) for token in part] for part in (before, between))
    core.post_processor = processors.TemplateProcessing(
        single=[*first, "$A"], pair=[*first, "$A", *middle, "$B"],
        special_tokens=[(core.id_to_token(token), token) for token in {*before, *between}],
    )  # fmt: skip
    return str(core.to_str(pretty=True))


# ---- heads over encoder-decoder models: the decoder as pooler of a classifier, or the encoder alone


ENCODER_MODEL = "EncoderModel"
ENCODER_IGNORED_KEYS = ("decoder_start_token_id", "eos_token_id", "pad_token_id")  # irrelevant without generation
SECOND_READING_KEYS = ("stack", "positions", "scale_embedding", "embedding_norm", "dropout")


def build_seq2seq_tables(config: Config, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables, adapted for a classifier (decoder becomes the reader's second pass) or an encoder alone."""
    architecture = (config.values.get("architectures") or [""])[0]
    if architecture.endswith((ENCODER_MODEL, TOKEN_HEAD)):
        config.ignore(*ENCODER_IGNORED_KEYS)
    if architecture.endswith(ENCODER_MODEL):
        return {**tables, "task": "encode", "writer": {"kind": "states"}, "objectives": [{"kind": "masked"}]}
    head = build_label_tables(config, {"dropout": 0.0, "dim": tables["reader"]["stack"]["dim"]})
    if not head:
        return tables
    reader = tables["reader"]
    if architecture.endswith(SEQUENCE_HEAD):
        head["writer"]["pooling"] = "last"
        reader = {
            **reader,
            "second_pass": {key: tables["writer"][key] for key in SECOND_READING_KEYS if key in tables["writer"]},
        }
    return {**tables, **head, "reader": reader}


def get_seq2seq_decoder(recipe: Recipe) -> Any:
    """Return the table that is exported as decoder; None if there is none."""
    return recipe.reader.second_pass_table if recipe.writer.is_head else recipe.writer


def build_seq2seq_map(tensor_map: TensorMap, recipe: Recipe, *, prefix: str = "") -> TensorMap:
    """Return the tensor map; for a head, the decoder's tensors move into the reader.

    `prefix` precedes the foreign names of a classifier, except those of the head.
    """
    if not recipe.writer.is_head:
        return tensor_map
    before = prefix if recipe.writer.is_label_head else ""
    found = {
        name.replace("writer.", "reader.again.", 1): place._replace(
            names=tuple(before + there for there in place.names)
        )
        for name, place in tensor_map.items()
        if not name.startswith("writer.output")
    }
    if recipe.writer.labels_each_word:
        return {**found, "writer.output": map_tensor(IDENTITY, "classifier")}
    head = {"hidden": "classification_head.dense", "output": "classification_head.out_proj"}
    return {**found, **{f"writer.{ours}": map_tensor(IDENTITY, theirs) for ours, theirs in head.items()}}


def build_seq2seq_head(recipe: Recipe, family: str) -> dict[str, Any]:
    """Build the entries of config.json for the head; nothing for a language modelling head."""
    if recipe.writer.gives_states:
        return {"architectures": [family + ENCODER_MODEL], "is_encoder_decoder": False}
    if not recipe.writer.is_label_head:
        return {}
    writer: Any = recipe.writer
    return {"architectures": [family + get_label_suffix(writer)], "classifier_dropout": writer.dropout}
