"""BART (Lewis et al. 2020): post-norm blocks, learned positions from 2 on, a norm after the embedding; and Marian."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATIONS,
    AFTER_TWO,
    BIAS,
    HEADS,
    NAMED,
    ROWS,
    SAME,
    Config,
    Family,
    Names,
    part,
)
from saccade.exchange.families.heads import TEXTS, second_of, seq2seq_head, seq2seq_names, seq2seq_tables

SIDES = {"encoder": "reader", "decoder": "writer"}
LEGACY = {"add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False}  # of older files

NAMES: Names = {
    "reader.embedding.tokens.weight": part(ROWS, "model.shared.weight"),
    "writer.output.bias": part(BIAS, "final_logits_bias"),
    **{
        f"{ours}.{name}": value._replace(names=tuple(f"model.{theirs}.{there}" for there in value.names))
        for theirs, ours in SIDES.items()
        for name, value in {
            "embedding.positions.table": part(AFTER_TWO, "embed_positions"),
            "embedding.norm": part(SAME, "layernorm_embedding"),
            "stack.blocks.{}.self.project": part(HEADS, *(f"layers.{{}}.self_attn.{x}_proj" for x in "qkv")),
            "stack.blocks.{}.self.heads.out": part(SAME, "layers.{}.self_attn.out_proj"),
            "stack.blocks.{}.cross.query": part(HEADS, "layers.{}.encoder_attn.q_proj"),
            "stack.blocks.{}.cross.memory": part(HEADS, *(f"layers.{{}}.encoder_attn.{x}_proj" for x in "kv")),
            "stack.blocks.{}.cross.heads.out": part(SAME, "layers.{}.encoder_attn.out_proj"),
            "stack.blocks.{}.feedforward.up": part(SAME, "layers.{}.fc1"),
            "stack.blocks.{}.feedforward.down": part(SAME, "layers.{}.fc2"),
            "stack.blocks.{}.residuals.0.norm": part(SAME, "layers.{}.self_attn_layer_norm"),
            "stack.blocks.{}.residuals.1.norm": part(
                SAME, "layers.{}.final_layer_norm" if ours == "reader" else "layers.{}.encoder_attn_layer_norm"
            ),
            "stack.blocks.{}.residuals.2.norm": part(SAME, "layers.{}.final_layer_norm"),
        }.items()
    },
}
COPIES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
}


def sides(config: Config, *, positions: dict[str, Any], embedding_norm: bool) -> dict[str, Any]:
    """Reader and writer, as BART and Marian have them."""
    config.plain({**LEGACY, "tie_word_embeddings": True})
    tables: dict[str, Any] = {"data": {"max_length": config.take("max_position_embeddings")}}
    for theirs, ours in SIDES.items():
        stack = {
            "layers": config.take(f"{theirs}_layers"), "dim": config.take("d_model"),
            "heads": config.take(f"{theirs}_attention_heads"), "ff": config.take(f"{theirs}_ffn_dim"),
            "activation": config.among("activation_function", ACTIVATIONS), "norm": "post",
            "dropout": config.take("dropout", 0.1), "attention_dropout": config.take("attention_dropout", 0.0),
            "ff_dropout": config.take("activation_dropout", 0.0),
        }  # fmt: skip
        tables[ours] = {
            "stack": stack, "positions": positions, "scale": config.take("scale_embedding", False),
            "embedding_norm": embedding_norm, "dropout": stack["dropout"],
        }  # fmt: skip
    tables["writer"]["tie"] = "all"
    return tables


def config_of(recipe: Recipe) -> dict[str, Any]:
    """The way back."""
    values: dict[str, Any] = {"max_position_embeddings": recipe.data.max_length, "is_encoder_decoder": True}
    for theirs, ours in SIDES.items():
        side: Any = recipe.reader if ours == "reader" else second_of(recipe) or recipe.reader
        stack: Any = side.stack
        values |= {
            f"{theirs}_layers": stack.layers, f"{theirs}_attention_heads": stack.heads, f"{theirs}_ffn_dim": stack.ff,
            "d_model": stack.dim, "activation_function": NAMED.get(stack.activation, stack.activation),
            "dropout": stack.dropout, "attention_dropout": stack.attention_dropout,
            "activation_dropout": stack.ff_dropout, "scale_embedding": side.scale,
        }  # fmt: skip
    return values


def bart_recipe(config: Config) -> dict[str, Any]:
    config.plain({"normalize_embedding": True, "static_position_embeddings": False})
    length = config.take("max_position_embeddings")
    positions = {"kind": "learned", "length": length}
    return seq2seq_tables(config, sides(config, positions=positions, embedding_norm=True))


def bart_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    learned = reader.positions.learned
    length = {} if learned is None else {"max_position_embeddings": learned.length}
    return config_of(recipe) | length | seq2seq_head(recipe, "Bart")


BART = Family(
    "bart", "BartForConditionalGeneration", bart_recipe, bart_config, lambda recipe: seq2seq_names(NAMES, recipe),
    others=("BartModel", f"Bart{TEXTS}"),  # the former is published for writing, with its embedding as output
    copies=COPIES, unread=("encoder.version", "decoder.version"), apart="", prefix="model.",
)  # fmt: skip


# ---- Marian (Junczys-Dowmunt et al. 2018; the OPUS-MT models): the Transformer of the paper, sines beside cosines


def marian_recipe(config: Config) -> dict[str, Any]:
    config.plain({"normalize_embedding": False, "static_position_embeddings": True})
    config.plain({"share_encoder_decoder_embeddings": True, "decoder_vocab_size": config.values.get("vocab_size")})
    return sides(config, positions={"kind": "sinusoidal", "layout": "concatenated"}, embedding_norm=False)


MARIAN = Family(
    "marian", "MarianMTModel", marian_recipe, config_of, lambda recipe: NAMES, copies=COPIES,
    unread=(".embed_positions.weight",), apart="",
)  # fmt: skip
