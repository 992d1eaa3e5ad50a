"""ALBERT (Lan et al. 2020): one block's weights for all layers, token vectors that a matrix makes wider."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from saccade.config.schema import Recipe
from saccade.exchange.families.bert import by_tensors, encoder_config, encoder_tables
from saccade.exchange.families.family import HEADS, LOGITS, ROWS, SAME, Config, Family, Names, part
from saccade.exchange.families.heads import TEXTS, WORDS, label_names

TABLE, LAYER = "albert.embeddings", "albert.encoder.albert_layer_groups.0.albert_layers.0"
NAMES: Names = {
    "reader.embedding.tokens.weight": part(ROWS, f"{TABLE}.word_embeddings.weight"),
    "reader.embedding.positions.table": part(SAME, f"{TABLE}.position_embeddings"),
    "reader.embedding.segments": part(SAME, f"{TABLE}.token_type_embeddings"),
    "reader.embedding.norm": part(SAME, f"{TABLE}.LayerNorm"),
    "reader.embedding.project": part(SAME, "albert.encoder.embedding_hidden_mapping_in"),
    "reader.stack.blocks.{}.self.project": part(HEADS, *(f"{LAYER}.attention.{x}" for x in ("query", "key", "value"))),
    "reader.stack.blocks.{}.self.heads.out": part(SAME, f"{LAYER}.attention.dense"),
    "reader.stack.blocks.{}.residuals.0.norm": part(SAME, f"{LAYER}.attention.LayerNorm"),
    "reader.stack.blocks.{}.feedforward.up": part(SAME, f"{LAYER}.ffn"),
    "reader.stack.blocks.{}.feedforward.down": part(SAME, f"{LAYER}.ffn_output"),
    "reader.stack.blocks.{}.residuals.1.norm": part(SAME, f"{LAYER}.full_layer_layer_norm"),
    "writer.hidden": part(SAME, "albert.pooler"),
    "writer.transform": part(SAME, "predictions.dense"),
    "writer.norm": part(SAME, "predictions.LayerNorm"),
    "writer.output.weight": part(ROWS, "predictions.decoder.weight"),
    "writer.output.bias": part(LOGITS, "predictions.bias"),
    "writer.follows": part(SAME, "sop_classifier.classifier"),
}


def albert_recipe(config: Config) -> dict[str, Any]:
    config.plain({"num_hidden_groups": 1, "inner_group_num": 1, "down_scale_factor": 1, "gap_size": 0})
    config.ignore("classifier_dropout_prob", "layers_to_keep", "net_structure_type", "num_memory_blocks")
    width = config.take("embedding_size")
    tables = encoder_tables(config, length=config.take("max_position_embeddings"), embedding_dim=width)
    tables["reader"]["stack"]["share"] = True
    return tables


def albert_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    return {**encoder_config(recipe, "Albert"), "embedding_size": reader.embedding_dim}


def dress(core: Tokenizer, settings: dict[str, Any]) -> None:
    """What a SentencePiece file does not say: quotes, accents and capitals made plain; [CLS] before texts."""
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    accents = [] if settings.get("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case", True) else []
    core.normalizer = normalizers.Sequence([*quotes, *accents, *lower, core.normalizer])
    core.add_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(piece, core.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )  # fmt: skip


ALBERT = Family(
    "albert", "AlbertForMaskedLM", albert_recipe, albert_config,
    lambda recipe: label_names(NAMES, recipe, hidden="albert.pooler", output="classifier"),
    others=("AlbertForPreTraining", "AlbertModel", f"Albert{TEXTS}", f"Albert{WORDS}"),
    encodes=True, prefix="albert.", unread=(".position_ids",),
    copies={
        "predictions.decoder.weight": f"{TABLE}.word_embeddings.weight", "predictions.decoder.bias": "predictions.bias",
    },
    dress=dress, look=lambda tables, tensors: by_tensors(tables, NAMES, tensors, pairs="order"),
)  # fmt: skip
