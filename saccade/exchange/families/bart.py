"""BART (Lewis et al. 2020): post-norm blocks, learned positions, a norm after the embedding; and Marian."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    FINAL_BIAS,
    HEADS,
    IDENTITY,
    POSITIONS_FROM_TWO,
    TOKEN_ROWS,
    Config,
    Family,
    TensorMap,
    map_tensor,
)
from saccade.exchange.families.heads import (
    SEQUENCE_HEAD,
    build_seq2seq_head,
    build_seq2seq_map,
    build_seq2seq_tables,
    get_seq2seq_decoder,
)

SIDES = {"encoder": "reader", "decoder": "writer"}
DEFAULTS = {
    "activation_function": "gelu", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
MARIAN_DEFAULTS = {
    "activation_function": "gelu", "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100,
}  # fmt: skip
LEGACY_VALUES = {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "normalize_before": False,
}  # keys of older files, with their only supported value

TENSOR_MAP: TensorMap = {
    "reader.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "model.shared.weight"),
    "writer.output.bias": map_tensor(FINAL_BIAS, "final_logits_bias"),
    **{
        f"{ours}.{name}": value._replace(names=tuple(f"model.{theirs}.{there}" for there in value.names))
        for theirs, ours in SIDES.items()
        for name, value in {
            "embedding.positions.table": map_tensor(POSITIONS_FROM_TWO, "embed_positions"),
            "embedding.norm": map_tensor(IDENTITY, "layernorm_embedding"),
            "stack.blocks.{}.self.project": map_tensor(HEADS, *(f"layers.{{}}.self_attn.{x}_proj" for x in "qkv")),
            "stack.blocks.{}.self.heads.out": map_tensor(IDENTITY, "layers.{}.self_attn.out_proj"),
            "stack.blocks.{}.cross.query": map_tensor(HEADS, "layers.{}.encoder_attn.q_proj"),
            "stack.blocks.{}.cross.memory": map_tensor(HEADS, *(f"layers.{{}}.encoder_attn.{x}_proj" for x in "kv")),
            "stack.blocks.{}.cross.heads.out": map_tensor(IDENTITY, "layers.{}.encoder_attn.out_proj"),
            "stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, "layers.{}.fc1"),
            "stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, "layers.{}.fc2"),
            "stack.blocks.{}.residuals.0.norm": map_tensor(IDENTITY, "layers.{}.self_attn_layer_norm"),
            "stack.blocks.{}.residuals.1.norm": map_tensor(
                IDENTITY, "layers.{}.final_layer_norm" if ours == "reader" else "layers.{}.encoder_attn_layer_norm"
            ),
            "stack.blocks.{}.residuals.2.norm": map_tensor(IDENTITY, "layers.{}.final_layer_norm"),
        }.items()
    },
}
DUPLICATES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
}


def build_sides(config: Config, *, positions: dict[str, Any], embedding_norm: bool) -> dict[str, Any]:
    """Build the tables of reader and writer from the keys that BART and Marian share."""
    config.require({**LEGACY_VALUES, "tie_word_embeddings": True})
    tables: dict[str, Any] = {"data": {"max_length": config.take("max_position_embeddings")}}
    for theirs, ours in SIDES.items():
        stack = {
            "layers": config.take(f"{theirs}_layers"), "dim": config.take("d_model"),
            "heads": config.take(f"{theirs}_attention_heads"), "ff": config.take(f"{theirs}_ffn_dim"),
            "activation": config.take_choice("activation_function", ACTIVATIONS), "norm": "post",
            "dropout": config.take("dropout", 0.1), "attention_dropout": config.take("attention_dropout", 0.0),
            "ff_dropout": config.take("activation_dropout", 0.0),
        }  # fmt: skip
        tables[ours] = {
            "stack": stack, "positions": positions, "scale_embedding": config.take("scale_embedding", False),
            "embedding_norm": embedding_norm, "dropout": stack["dropout"],
        }  # fmt: skip
    tables["writer"]["tie"] = "all"
    return tables


def build_sides_config(recipe: Recipe) -> dict[str, Any]:
    """Build the entries of config.json that BART and Marian share."""
    values: dict[str, Any] = {"max_position_embeddings": recipe.data.max_length, "is_encoder_decoder": True}
    for theirs, ours in SIDES.items():
        side: Any = recipe.reader if ours == "reader" else get_seq2seq_decoder(recipe) or recipe.reader
        stack: Any = side.stack
        values |= {
            f"{theirs}_layers": stack.layers, f"{theirs}_attention_heads": stack.heads, f"{theirs}_ffn_dim": stack.ff,
            "d_model": stack.dim, "activation_function": ACTIVATION_NAMES.get(stack.activation, stack.activation),
            "dropout": stack.dropout, "attention_dropout": stack.attention_dropout,
            "activation_dropout": stack.ff_dropout, "scale_embedding": side.scale_embedding,
        }  # fmt: skip
    return values


def build_bart_recipe(config: Config) -> dict[str, Any]:
    config.require({"normalize_embedding": True, "static_position_embeddings": False})
    length = config.take("max_position_embeddings")
    positions = {"kind": "learned", "length": length}
    return build_seq2seq_tables(config, build_sides(config, positions=positions, embedding_norm=True))


def build_bart_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    learned = reader.positions.learned_table
    length = {} if learned is None else {"max_position_embeddings": learned.length}
    return build_sides_config(recipe) | length | build_seq2seq_head(recipe, "Bart")


BART = Family(
    "bart",
    "BartForConditionalGeneration",
    build_bart_recipe,
    build_bart_config,
    lambda recipe: build_seq2seq_map(TENSOR_MAP, recipe),
    # BartModel is published for generation, with its embedding as output matrix.
    other_architectures=("BartModel", f"Bart{SEQUENCE_HEAD}"),
    duplicates=DUPLICATES,
    ignored_suffixes=("encoder.version", "decoder.version"),
    untied="",
    prefix="model.",
    defaults=DEFAULTS,
)


# ---- Marian (Junczys-Dowmunt et al. 2018; the OPUS-MT models): the Transformer with concatenated sines and cosines


def build_marian_recipe(config: Config) -> dict[str, Any]:
    config.require({"normalize_embedding": False, "static_position_embeddings": True})
    config.require({"share_encoder_decoder_embeddings": True, "decoder_vocab_size": config.values.get("vocab_size")})
    return build_sides(config, positions={"kind": "sinusoidal", "layout": "concatenated"}, embedding_norm=False)


MARIAN = Family(
    "marian",
    "MarianMTModel",
    build_marian_recipe,
    build_sides_config,
    lambda recipe: TENSOR_MAP,
    duplicates=DUPLICATES,
    ignored_suffixes=(".embed_positions.weight",),
    untied="",
    defaults=MARIAN_DEFAULTS,
)
