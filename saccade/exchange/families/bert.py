"""BERT (Devlin et al. 2019): post-norm encoder with learned positions and segment embeddings; and RoBERTa."""

from collections.abc import Mapping
from typing import Any

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizer import PAD, START, Tokenizer
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    HEADS,
    IDENTITY,
    OUTPUT_BIAS,
    POSITIONS_FROM_TWO,
    TOKEN_ROWS,
    Config,
    Family,
    TensorConversion,
    TensorMap,
    get_max_length,
    map_tensor,
)
from saccade.exchange.families.heads import (
    HEAD_OBJECTIVES,
    SEQUENCE_HEAD,
    TOKEN_HEAD,
    add_label_head,
    build_label_tables,
    get_label_suffix,
)

HEAD_SUFFIXES = {"masked": "ForMaskedLM", "pairs": "ForPreTraining", "states": "Model"}
ENCODER_IGNORED_KEYS = (
    "directionality", "eos_token_id", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
)  # fmt: skip


BERT_DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu", "type_vocab_size": 2, "pad_token_id": 0}


def build_encoder_map(prefix: str, *, positions: TensorConversion = IDENTITY) -> TensorMap:
    """Build the tensor map of embedding and blocks, which BERT and RoBERTa share."""
    layer, table = f"{prefix}.encoder.layer.{{}}", f"{prefix}.embeddings"
    inside = {
        "self.project": map_tensor(HEADS, *(f"{layer}.attention.self.{x}" for x in ("query", "key", "value"))),
        "self.heads.out": map_tensor(IDENTITY, f"{layer}.attention.output.dense"),
        "residuals.0.norm": map_tensor(IDENTITY, f"{layer}.attention.output.LayerNorm"),
        "feedforward.up": map_tensor(IDENTITY, f"{layer}.intermediate.dense"),
        "feedforward.down": map_tensor(IDENTITY, f"{layer}.output.dense"),
        "residuals.1.norm": map_tensor(IDENTITY, f"{layer}.output.LayerNorm"),
    }
    return {
        "reader.embedding.tokens.weight": map_tensor(TOKEN_ROWS, f"{table}.word_embeddings.weight"),
        "reader.embedding.positions.table": map_tensor(positions, f"{table}.position_embeddings"),
        "reader.embedding.segments": map_tensor(IDENTITY, f"{table}.token_type_embeddings"),
        "reader.embedding.norm": map_tensor(IDENTITY, f"{table}.LayerNorm"),
        "writer.hidden": map_tensor(IDENTITY, f"{prefix}.pooler.dense"),
        **{f"reader.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }


def build_encoder_tables(
    config: Config, *, length: int, embedding_dim: int | None = None, head_activation: str | None = None
) -> dict[str, Any]:
    """Build the reader, and the writer that belongs to the name of the architecture.

    `head_activation` is that of the masked-language-model head, if it is not the one of the blocks.
    """
    config.require({"position_embedding_type": "absolute"})
    config.ignore(*ENCODER_IGNORED_KEYS, "tie_word_embeddings")  # the stored tensors show what is tied
    dropout = config.take("hidden_dropout_prob", 0.1)
    activation = config.take_choice("hidden_act", ACTIVATIONS)
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": config.take("hidden_size"), "norm": "post",
        "heads": config.take("num_attention_heads"), "ff": config.take("intermediate_size"), "activation": activation,
        "norm_epsilon": config.take("layer_norm_eps", 1e-12), "dropout": dropout,
        "attention_dropout": config.take("attention_probs_dropout_prob", 0.1),
    }  # fmt: skip
    reader = {
        "stack": stack, "positions": {"kind": "learned", "length": length}, "scale_embedding": False,
        "embedding_norm": True,
        "embedding_dim": embedding_dim, "segments": config.take("type_vocab_size"), "dropout": dropout,
    }  # fmt: skip
    architecture = (config.values.get("architectures") or [""])[0]
    head = next((head for head, name in HEAD_SUFFIXES.items() if architecture.endswith(name)), "masked")
    tables = {
        "task": "encode", "reader": reader, "data": {"max_length": length}, "predict": {"beam": 5, "n_best": 5},
        "tokenizer": {"cls_token": True, "mask_token": True},
    }  # fmt: skip
    return tables | (build_label_tables(config, stack) or build_writer_tables(head, head_activation or activation))


def build_writer_tables(head: str, activation: str, *, pool: bool = True, pairs: str = "next") -> dict[str, Any]:
    """Build the table of an encoder's head ("states", "masked" or "pairs") and of its objective."""
    if head == "states":
        return {"writer": {"kind": "states", "pooler": pool}, "objectives": [{"kind": "masked"}]}
    writer = {"kind": "masked", "activation": activation, "pairs": head == "pairs"}
    return {"writer": writer, "objectives": [{"kind": "masked", "pairs": pairs if head == "pairs" else "none"}]}


def detect_head(
    tables: dict[str, Any],
    tensor_map: TensorMap,
    tensors: Any,
    *,
    pairs: str = "next",
    head_activation: str | None = None,
) -> None:
    """Choose the head by the stored tensors: some folders contain more than `architectures` says."""
    if tables["writer"]["kind"] in HEAD_OBJECTIVES:
        return
    wanted = ("transform", "follows", "hidden")
    places = {name: tensor_map.get(f"writer.{name}") for name in wanted}
    there = [name for name, place in places.items() if place and f"{place.names[0]}.weight" in tensors]
    head = "states" if "transform" not in there else "pairs" if "follows" in there else "masked"
    activation = head_activation or tables["reader"]["stack"]["activation"]
    tables |= build_writer_tables(head, activation, pool="hidden" in there, pairs=pairs)


def build_encoder_config(recipe: Recipe, family: str) -> dict[str, Any]:
    """Build the entries of config.json."""
    reader: Any = recipe.reader
    stack = reader.stack
    return {
        "architectures": [get_architecture(recipe, family)], "hidden_size": stack.dim, "intermediate_size": stack.ff,
        "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads, "type_vocab_size": reader.segments,
        "hidden_act": ACTIVATION_NAMES.get(stack.activation, stack.activation), "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout, "layer_norm_eps": stack.norm_epsilon or 1e-5,
        "max_position_embeddings": get_max_length(reader.positions, recipe),
        "tie_word_embeddings": recipe.writer.is_label_head or recipe.writer.gives_states or recipe.writer.tied == "all",
    }  # fmt: skip


def get_architecture(recipe: Recipe, family: str) -> str:
    writer = recipe.writer
    if writer.is_label_head:
        return family + get_label_suffix(writer)
    return family + HEAD_SUFFIXES["states" if writer.gives_states else "pairs" if writer.predicts_pairs else "masked"]


TENSOR_MAP: Mapping[str, Any] = {
    **build_encoder_map("bert"),
    "writer.transform": map_tensor(IDENTITY, "cls.predictions.transform.dense"),
    "writer.norm": map_tensor(IDENTITY, "cls.predictions.transform.LayerNorm"),
    "writer.output.weight": map_tensor(TOKEN_ROWS, "cls.predictions.decoder.weight"),
    "writer.output.bias": map_tensor(OUTPUT_BIAS, "cls.predictions.bias"),
    "writer.follows": map_tensor(IDENTITY, "cls.seq_relationship"),
}


def build_bert_recipe(config: Config) -> dict[str, Any]:
    return build_encoder_tables(config, length=config.take("max_position_embeddings"))


BERT = Family(
    "bert",
    "BertForMaskedLM",
    build_bert_recipe,
    lambda recipe: build_encoder_config(recipe, "Bert"),
    lambda recipe: add_label_head(TENSOR_MAP, recipe, hidden="bert.pooler.dense", output="classifier"),
    other_architectures=("BertForPreTraining", "BertModel", f"Bert{SEQUENCE_HEAD}", f"Bert{TOKEN_HEAD}"),
    is_encoder_only=True,
    prefix="bert.",
    ignored_suffixes=(".position_ids",),
    duplicates={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    refine_recipe=lambda tables, tensors: detect_head(tables, TENSOR_MAP, tensors),
    defaults=BERT_DEFAULTS,
)


# ---- RoBERTa (Liu et al. 2019): BERT with other tensor names; the first two rows of its positions are unused


ROBERTA_DEFAULTS = {**BERT_DEFAULTS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ROBERTA_HEAD_ACTIVATION = "gelu"  # whatever hidden_act is
FIRST_SEGMENT = TensorConversion(lambda theirs, shape, mapping: theirs[0][:1], lambda ours, mapping: [ours])
ROBERTA_TENSOR_MAP: TensorMap = {
    **build_encoder_map("roberta", positions=POSITIONS_FROM_TWO),
    "reader.embedding.segments": map_tensor(FIRST_SEGMENT, "roberta.embeddings.token_type_embeddings"),
    "writer.transform": map_tensor(IDENTITY, "lm_head.dense"),
    "writer.norm": map_tensor(IDENTITY, "lm_head.layer_norm"),
    "writer.output.weight": map_tensor(TOKEN_ROWS, "lm_head.decoder.weight"),
    "writer.output.bias": map_tensor(OUTPUT_BIAS, "lm_head.bias"),
}


def build_roberta_recipe(config: Config) -> dict[str, Any]:
    config.require({"pad_token_id": 1})  # positions start at pad_token_id + 1
    tables = build_encoder_tables(
        config, length=config.take("max_position_embeddings") - 2, head_activation=ROBERTA_HEAD_ACTIVATION
    )
    tables["reader"]["segments"] = 1  # its tokenizer gives all tokens the first segment
    return tables


def build_roberta_config(recipe: Recipe) -> dict[str, Any]:
    values = build_encoder_config(recipe, "Roberta")
    return {**values, "max_position_embeddings": values["max_position_embeddings"] + 2, "pad_token_id": 1}


def check_roberta_tokenizer(tokenizer: Tokenizer) -> str:
    """Check that token 1 cannot occur in a text: RoBERTa counts positions over the tokens whose id is not 1."""
    return (
        ""
        if tokenizer.library_ids.index(1) in (PAD, START)
        else "token 1 of the tokenizer is neither padding nor start"
    )


ROBERTA = Family(
    "roberta",
    "RobertaForMaskedLM",
    build_roberta_recipe,
    build_roberta_config,
    lambda recipe: add_label_head(ROBERTA_TENSOR_MAP, recipe, hidden="classifier.dense", output="classifier.out_proj"),
    other_architectures=("RobertaModel", f"Roberta{SEQUENCE_HEAD}", f"Roberta{TOKEN_HEAD}"),
    is_encoder_only=True,
    prefix="roberta.",
    ignored_suffixes=(".position_ids",),
    duplicates={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    refine_recipe=lambda tables, tensors: detect_head(
        tables, ROBERTA_TENSOR_MAP, tensors, head_activation=ROBERTA_HEAD_ACTIVATION
    ),
    defaults=ROBERTA_DEFAULTS,
    check_tokenizer=check_roberta_tokenizer,
)
