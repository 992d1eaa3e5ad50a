"""T5 (Raffel et al. 2020), both versions: pre-norm without biases, RMSNorm, one table of distances for all layers."""

from typing import Any

from saccade.config.schema import Bucketed, Recipe
from saccade.exchange.families.family import ACTIVATIONS, HEADS, NAMED, NO_BIAS, ROWS, SAME, Config, Family, Names, part
from saccade.exchange.families.heads import STATES, TEXTS, WORDS, second_of, seq2seq_head, seq2seq_names, seq2seq_tables

FORWARD = {
    "relu": ("relu", False), "gated-gelu": ("gelu-tanh", True), "gated-silu": ("silu", True), "gelu": ("gelu", False),
}  # fmt: skip
SIDES = {"encoder": "reader", "decoder": "writer"}
LABELS = "transformer."  # before the names of a model that labels something


def names(recipe: Recipe) -> Names:
    found = {
        "reader.embedding.tokens.weight": part(ROWS, "shared.weight"),
        "writer.output.weight": part(ROWS, "lm_head.weight"),
        "writer.output.bias": part(NO_BIAS),
    }
    reader: Any = recipe.reader
    for theirs, ours in SIDES.items():
        block, last = f"{theirs}.block.{{}}.layer", 1 if ours == "reader" else 2
        up = "wi_0" if reader.stack.gated else "wi"
        inside = {
            "self.project": part(HEADS, *(f"{block}.0.SelfAttention.{x}" for x in "qkv")),
            "self.heads.out": part(SAME, f"{block}.0.SelfAttention.o"),
            "self.heads.term.table": part(SAME, f"{block}.0.SelfAttention.relative_attention_bias"),
            "cross.query": part(HEADS, f"{block}.1.EncDecAttention.q"),
            "cross.memory": part(HEADS, *(f"{block}.1.EncDecAttention.{x}" for x in "kv")),
            "cross.heads.out": part(SAME, f"{block}.1.EncDecAttention.o"),
            "feedforward.up": part(SAME, f"{block}.{last}.DenseReluDense.{up}"),
            "feedforward.gate": part(SAME, f"{block}.{last}.DenseReluDense.wi_1"),
            "feedforward.down": part(SAME, f"{block}.{last}.DenseReluDense.wo"),
            **{f"residuals.{i}.norm": part(SAME, f"{block}.{i}.layer_norm") for i in range(3)},
        }
        found |= {f"{ours}.stack.blocks.{{}}.{name}": value for name, value in inside.items()}
        found[f"{ours}.stack.norm"] = part(SAME, f"{theirs}.final_layer_norm")
    return seq2seq_names(found, recipe, prefix=LABELS)


def t5_recipe(config: Config) -> dict[str, Any]:
    activation, gated = config.among("feed_forward_proj", FORWARD)
    config.plain({"is_gated_act": gated})  # follows from the former, and so does the next
    if ACTIVATIONS.get(config.take("dense_act_fn", None) or NAMED[activation]) != activation:
        raise config.refusal("dense_act_fn", f"feed_forward_proj says {activation}")
    scaled = config.take("scale_decoder_outputs", config.values.get("tie_word_embeddings", True))
    config.take("tie_word_embeddings", True)  # the files of weights tell what is tied
    dropout = config.take("dropout_rate", 0.1)
    stack = {
        "dim": config.take("d_model"), "heads": config.take("num_heads"), "head_dim": config.take("d_kv"),
        "ff": config.take("d_ff"), "norm": "pre", "norm_kind": "rms", "activation": activation, "gated": gated,
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-6), "scale": False, "bias": False, "dropout": dropout,
        "attention_dropout": dropout, "ff_dropout": dropout,
    }  # fmt: skip
    layers = config.take("num_layers")
    depths = {"reader": layers, "writer": config.take("num_decoder_layers", None) or layers}
    where = {
        "kind": "bucketed", "buckets": config.take("relative_attention_num_buckets", 32),
        "distance": config.take("relative_attention_max_distance", 128),
    }  # fmt: skip
    tables: dict[str, Any] = {
        ours: {"stack": {**stack, "layers": depth}, "positions": where, "scale": False, "dropout": dropout}
        for ours, depth in depths.items()
    }
    tables["writer"] |= {"output_scale": scaled, "tie": "all"}
    return seq2seq_tables(config, tables | {"data": {"max_length": config.take("n_positions", 512)}})


def t5_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    writer: Any = second_of(recipe) or reader
    stack, where = writer.stack, writer.positions.bucketed or Bucketed()
    scaled = recipe.writer.is_head or writer.output_scale
    forward = {value: key for key, value in FORWARD.items()}
    return {
        "d_model": stack.dim, "d_kv": stack.head_dim or stack.dim // stack.heads, "d_ff": stack.ff,
        "num_layers": reader.stack.layers, "num_decoder_layers": stack.layers, "num_heads": stack.heads,
        "relative_attention_num_buckets": where.buckets, "dropout_rate": stack.dropout,
        "relative_attention_max_distance": where.distance, "is_encoder_decoder": True,
        "layer_norm_epsilon": stack.norm_epsilon or 1e-6, "n_positions": recipe.data.max_length,
        "feed_forward_proj": forward.get((stack.activation, stack.gated), stack.activation),
        "scale_decoder_outputs": scaled, "tie_word_embeddings": scaled, **seq2seq_head(recipe, "T5"),
    }  # fmt: skip


T5 = Family(
    "t5", "T5ForConditionalGeneration", t5_recipe, t5_config, names,
    copies={"lm_head.weight": "shared.weight"} | {
        f"{before}{side}.embed_tokens.weight": f"{before}shared.weight" for before in ("", LABELS) for side in SIDES
    },
    others=(f"T5{STATES}", f"T5{TEXTS}", f"T5{WORDS}"),
    unread=(".EncDecAttention.relative_attention_bias.weight",), apart="input",
    added=tuple(f"<extra_id_{i}>" for i in reversed(range(100))),
)  # fmt: skip
