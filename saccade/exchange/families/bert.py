"""BERT (Devlin et al. 2019): post-norm encoder with learned positions and segments; its heads; and RoBERTa."""

from collections.abc import Mapping
from typing import Any

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizer import PAD, START, Tokenizer
from saccade.exchange.families.family import (
    ACTIVATIONS,
    AFTER_TWO,
    HEADS,
    LOGITS,
    NAMED,
    ROWS,
    SAME,
    Config,
    Family,
    Form,
    Names,
    longest,
    part,
)
from saccade.exchange.families.heads import OBJECTIVES, TEXTS, WORDS, label_names, label_suffix, label_tables

TASKS = {"masked": "ForMaskedLM", "pairs": "ForPreTraining", "states": "Model"}
HARMLESS = (
    "directionality", "eos_token_id", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
)  # fmt: skip


def encoder_names(prefix: str, *, positions: Form = SAME) -> Names:
    """The names of embedding and blocks, which BERT and RoBERTa share."""
    layer, table = f"{prefix}.encoder.layer.{{}}", f"{prefix}.embeddings"
    inside = {
        "self.project": part(HEADS, *(f"{layer}.attention.self.{x}" for x in ("query", "key", "value"))),
        "self.heads.out": part(SAME, f"{layer}.attention.output.dense"),
        "residuals.0.norm": part(SAME, f"{layer}.attention.output.LayerNorm"),
        "feedforward.up": part(SAME, f"{layer}.intermediate.dense"),
        "feedforward.down": part(SAME, f"{layer}.output.dense"),
        "residuals.1.norm": part(SAME, f"{layer}.output.LayerNorm"),
    }
    return {
        "reader.embedding.tokens.weight": part(ROWS, f"{table}.word_embeddings.weight"),
        "reader.embedding.positions.table": part(positions, f"{table}.position_embeddings"),
        "reader.embedding.segments": part(SAME, f"{table}.token_type_embeddings"),
        "reader.embedding.norm": part(SAME, f"{table}.LayerNorm"),
        "writer.hidden": part(SAME, f"{prefix}.pooler.dense"),
        **{f"reader.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }


def encoder_tables(config: Config, *, length: int, embedding_dim: int | None = None) -> dict[str, Any]:
    """The reader, and the writer that the name of the architecture tells."""
    config.plain({"position_embedding_type": "absolute", "tie_word_embeddings": True})
    config.ignore(*HARMLESS)
    dropout = config.take("hidden_dropout_prob", 0.1)
    activation = config.among("hidden_act", ACTIVATIONS)
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": config.take("hidden_size"), "norm": "post",
        "heads": config.take("num_attention_heads"), "ff": config.take("intermediate_size"), "activation": activation,
        "norm_epsilon": config.take("layer_norm_eps", 1e-12), "dropout": dropout,
        "attention_dropout": config.take("attention_probs_dropout_prob", 0.1),
    }  # fmt: skip
    reader = {
        "stack": stack, "positions": {"kind": "learned", "length": length}, "scale": False, "embedding_norm": True,
        "embedding_dim": embedding_dim, "segments": config.take("type_vocab_size"), "dropout": dropout,
    }  # fmt: skip
    made = (config.values.get("architectures") or [""])[0]
    head = next((head for head, name in TASKS.items() if made.endswith(name)), "masked")
    tables = {
        "task": "encode", "reader": reader, "data": {"max_length": length}, "predict": {"beam": 5, "n_best": 5},
        "tokenizer": {"begin": True, "mask": True},
    }  # fmt: skip
    return tables | (label_tables(config, stack) or writer_tables(head, activation))


def writer_tables(head: str, activation: str, *, pool: bool = True, pairs: str = "next") -> dict[str, Any]:
    """One of the heads of an encoder, and the objective that belongs to it."""
    if head == "states":
        return {"writer": {"kind": "states", "pool": pool}, "objectives": [{"kind": "masked"}]}
    writer = {"kind": "masked", "activation": activation, "pairs": head == "pairs"}
    return {"writer": writer, "objectives": [{"kind": "masked", "pairs": pairs if head == "pairs" else "none"}]}


def by_tensors(tables: dict[str, Any], names: Names, tensors: Any, *, pairs: str = "next") -> None:
    """The head that the weights of a folder are for: some have more than their architecture says."""
    if tables["writer"]["kind"] in OBJECTIVES:
        return
    wanted = ("transform", "follows", "hidden")
    places = {name: names.get(f"writer.{name}") for name in wanted}
    there = [name for name, place in places.items() if place and f"{place.names[0]}.weight" in tensors]
    head = "states" if "transform" not in there else "pairs" if "follows" in there else "masked"
    tables |= writer_tables(head, tables["reader"]["stack"]["activation"], pool="hidden" in there, pairs=pairs)


def encoder_config(recipe: Recipe, family: str) -> dict[str, Any]:
    """The way back."""
    reader: Any = recipe.reader
    stack = reader.stack
    return {
        "architectures": [architecture_of(recipe, family)], "hidden_size": stack.dim, "intermediate_size": stack.ff,
        "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads, "type_vocab_size": reader.segments,
        "hidden_act": NAMED.get(stack.activation, stack.activation), "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout, "layer_norm_eps": stack.norm_epsilon or 1e-5,
        "max_position_embeddings": longest(reader.positions, recipe), "tie_word_embeddings": True,
    }  # fmt: skip


def architecture_of(recipe: Recipe, family: str) -> str:
    writer = recipe.writer
    if writer.is_label_head:
        return family + label_suffix(writer)
    return family + TASKS["states" if writer.gives_states else "pairs" if writer.predicts_pairs else "masked"]


NAMES: Mapping[str, Any] = {
    **encoder_names("bert"),
    "writer.transform": part(SAME, "cls.predictions.transform.dense"),
    "writer.norm": part(SAME, "cls.predictions.transform.LayerNorm"),
    "writer.output.weight": part(ROWS, "cls.predictions.decoder.weight"),
    "writer.output.bias": part(LOGITS, "cls.predictions.bias"),
    "writer.follows": part(SAME, "cls.seq_relationship"),
}


def bert_recipe(config: Config) -> dict[str, Any]:
    return encoder_tables(config, length=config.take("max_position_embeddings"))


BERT = Family(
    "bert", "BertForMaskedLM", bert_recipe, lambda recipe: encoder_config(recipe, "Bert"),
    lambda recipe: label_names(NAMES, recipe, hidden="bert.pooler.dense", output="classifier"),
    others=("BertForPreTraining", "BertModel", f"Bert{TEXTS}", f"Bert{WORDS}"),
    encodes=True, prefix="bert.", unread=(".position_ids",),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    look=lambda tables, tensors: by_tensors(tables, NAMES, tensors),
)  # fmt: skip


# ---- RoBERTa (Liu et al. 2019): BERT's blocks under other names; positions count from 2


ROBERTA_NAMES: Names = {
    **encoder_names("roberta", positions=AFTER_TWO),
    "writer.transform": part(SAME, "lm_head.dense"),
    "writer.norm": part(SAME, "lm_head.layer_norm"),
    "writer.output.weight": part(ROWS, "lm_head.decoder.weight"),
    "writer.output.bias": part(LOGITS, "lm_head.bias"),
}


def roberta_recipe(config: Config) -> dict[str, Any]:
    # Positions count from the one behind padding, and its tokenizer tells no parts of a text apart.
    config.plain({"pad_token_id": 1, "type_vocab_size": 1})
    return encoder_tables(config, length=config.take("max_position_embeddings") - 2)


def roberta_config(recipe: Recipe) -> dict[str, Any]:
    values = encoder_config(recipe, "Roberta")
    return {**values, "max_position_embeddings": values["max_position_embeddings"] + 2, "pad_token_id": 1}


def refuses(tokenizer: Tokenizer) -> str:
    """Positions there count pieces other than 1, which must therefore be one that no text has."""
    return "" if tokenizer.order.index(1) in (PAD, START) else "piece 1 of the tokenizer is neither padding nor start"


ROBERTA = Family(
    "roberta", "RobertaForMaskedLM", roberta_recipe, roberta_config,
    lambda recipe: label_names(ROBERTA_NAMES, recipe, hidden="classifier.dense", output="classifier.out_proj"),
    others=("RobertaModel", f"Roberta{TEXTS}", f"Roberta{WORDS}"),
    encodes=True, prefix="roberta.", unread=(".position_ids",),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias",
    },
    look=lambda tables, tensors: by_tensors(tables, ROBERTA_NAMES, tensors), refuses=refuses,
)  # fmt: skip
