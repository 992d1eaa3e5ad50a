"""ALBERT (Lan et al. 2020): all layers share the weights of one block; factorized token embeddings."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from saccade.config.schema import Recipe
from saccade.exchange.families.bert import build_encoder_config, build_encoder_tables, detect_head
from saccade.exchange.families.family import (
    HEADS,
    IDENTITY,
    OUTPUT_BIAS,
    TOKEN_ROWS,
    Config,
    Family,
    TensorMap,
    map_tensor,
)
from saccade.exchange.families.heads import SEQUENCE_HEAD, TOKEN_HEAD, add_label_head

DEFAULTS = {
    "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 2,
    "embedding_size": 128, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
EMBEDDINGS, LAYER = "albert.embeddings", "albert.encoder.albert_layer_groups.0.albert_layers.0"
TENSOR_MAP: TensorMap = {
    "reader.embedding.tokens.weight": map_tensor(TOKEN_ROWS, f"{EMBEDDINGS}.word_embeddings.weight"),
    "reader.embedding.positions.table": map_tensor(IDENTITY, f"{EMBEDDINGS}.position_embeddings"),
    "reader.embedding.segments": map_tensor(IDENTITY, f"{EMBEDDINGS}.token_type_embeddings"),
    "reader.embedding.norm": map_tensor(IDENTITY, f"{EMBEDDINGS}.LayerNorm"),
    "reader.embedding.project": map_tensor(IDENTITY, "albert.encoder.embedding_hidden_mapping_in"),
    "reader.stack.blocks.{}.self.project": map_tensor(
        HEADS, *(f"{LAYER}.attention.{x}" for x in ("query", "key", "value"))
    ),
    "reader.stack.blocks.{}.self.heads.out": map_tensor(IDENTITY, f"{LAYER}.attention.dense"),
    "reader.stack.blocks.{}.residuals.0.norm": map_tensor(IDENTITY, f"{LAYER}.attention.LayerNorm"),
    "reader.stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, f"{LAYER}.ffn"),
    "reader.stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, f"{LAYER}.ffn_output"),
    "reader.stack.blocks.{}.residuals.1.norm": map_tensor(IDENTITY, f"{LAYER}.full_layer_layer_norm"),
    "writer.hidden": map_tensor(IDENTITY, "albert.pooler"),
    "writer.transform": map_tensor(IDENTITY, "predictions.dense"),
    "writer.norm": map_tensor(IDENTITY, "predictions.LayerNorm"),
    "writer.output.weight": map_tensor(TOKEN_ROWS, "predictions.decoder.weight"),
    "writer.output.bias": map_tensor(OUTPUT_BIAS, "predictions.bias"),
    "writer.follows": map_tensor(IDENTITY, "sop_classifier.classifier"),
}


def build_albert_recipe(config: Config) -> dict[str, Any]:
    config.require({"num_hidden_groups": 1, "inner_group_num": 1, "down_scale_factor": 1, "gap_size": 0})
    config.ignore("classifier_dropout_prob", "layers_to_keep", "net_structure_type", "num_memory_blocks")
    width = config.take("embedding_size")
    tables = build_encoder_tables(config, length=config.take("max_position_embeddings"), embedding_dim=width)
    tables["reader"]["stack"]["share_layers"] = True
    return tables


def build_albert_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    return {**build_encoder_config(recipe, "Albert"), "embedding_size": reader.embedding_dim}


def complete_tokenizer(core: Tokenizer, settings: dict[str, Any]) -> None:
    """Add what a SentencePiece file lacks: normalization of quotes, accents and case; mask token, [CLS] and [SEP]."""
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    accents = [] if settings.get("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case", True) else []
    core.normalizer = normalizers.Sequence([*quotes, *accents, *lower, core.normalizer])
    core.add_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip


ALBERT = Family(
    "albert",
    "AlbertForMaskedLM",
    build_albert_recipe,
    build_albert_config,
    lambda recipe: add_label_head(TENSOR_MAP, recipe, hidden="albert.pooler", output="classifier"),
    other_architectures=("AlbertForPreTraining", "AlbertModel", f"Albert{SEQUENCE_HEAD}", f"Albert{TOKEN_HEAD}"),
    is_encoder_only=True,
    prefix="albert.",
    ignored_suffixes=(".position_ids",),
    duplicates={
        "predictions.decoder.weight": f"{EMBEDDINGS}.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    complete_tokenizer=complete_tokenizer,
    refine_recipe=lambda tables, tensors: detect_head(tables, TENSOR_MAP, tensors, pairs="order"),
    defaults=DEFAULTS,
)
