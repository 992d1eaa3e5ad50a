"""T5 (Raffel et al. 2020), versions 1.0 and 1.1: pre-norm RMSNorm, no biases, relative position buckets."""

from typing import Any

from saccade.config.schema import Bucketed, Recipe
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    HEADS,
    IDENTITY,
    NO_OUTPUT_BIAS,
    TOKEN_ROWS,
    Config,
    Family,
    TensorMap,
    map_tensor,
)
from saccade.exchange.families.heads import (
    ENCODER_MODEL,
    SEQUENCE_HEAD,
    TOKEN_HEAD,
    build_seq2seq_head,
    build_seq2seq_map,
    build_seq2seq_tables,
    get_seq2seq_decoder,
)

GATED_GELU = "gated-gelu"  # with the tanh approximation, unlike "gelu"
FEEDFORWARD_KINDS = {  # feed_forward_proj -> activation, gated
    **{theirs: (ours, False) for theirs, ours in ACTIVATIONS.items()},
    GATED_GELU: ("gelu-tanh", True),
    **{f"gated-{theirs}": (ours, True) for theirs, ours in ACTIVATIONS.items() if theirs != "gelu"},
}
DEFAULTS = {"feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1}
SIDES = {"encoder": "reader", "decoder": "writer"}
LABEL_PREFIX = "transformer."  # of the tensor names of a classifier


def build_tensor_map(recipe: Recipe) -> TensorMap:
    found = {
        "reader.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "shared.weight"),
        "writer.output.weight": map_tensor(TOKEN_ROWS, "lm_head.weight"),
        "writer.output.bias": map_tensor(NO_OUTPUT_BIAS),
    }
    reader: Any = recipe.reader
    for theirs, ours in SIDES.items():
        block, last = f"{theirs}.block.{{}}.layer", 1 if ours == "reader" else 2
        up = "wi_0" if reader.stack.gated else "wi"
        inside = {
            "self.project": map_tensor(HEADS, *(f"{block}.0.SelfAttention.{x}" for x in "qkv")),
            "self.heads.out": map_tensor(IDENTITY, f"{block}.0.SelfAttention.o"),
            "self.heads.term.table": map_tensor(IDENTITY, f"{block}.0.SelfAttention.relative_attention_bias"),
            "cross.query": map_tensor(HEADS, f"{block}.1.EncDecAttention.q"),
            "cross.memory": map_tensor(HEADS, *(f"{block}.1.EncDecAttention.{x}" for x in "kv")),
            "cross.heads.out": map_tensor(IDENTITY, f"{block}.1.EncDecAttention.o"),
            "feedforward.up": map_tensor(IDENTITY, f"{block}.{last}.DenseReluDense.{up}"),
            "feedforward.gate": map_tensor(IDENTITY, f"{block}.{last}.DenseReluDense.wi_1"),
            "feedforward.down": map_tensor(IDENTITY, f"{block}.{last}.DenseReluDense.wo"),
            **{f"residuals.{i}.norm": map_tensor(IDENTITY, f"{block}.{i}.layer_norm") for i in range(3)},
        }
        found |= {f"{ours}.stack.blocks.{{}}.{name}": value for name, value in inside.items()}
        found[f"{ours}.stack.norm"] = map_tensor(IDENTITY, f"{theirs}.final_layer_norm")
    return build_seq2seq_map(found, recipe, prefix=LABEL_PREFIX)


def build_t5_recipe(config: Config) -> dict[str, Any]:
    activation, gated = config.take_choice("feed_forward_proj", FEEDFORWARD_KINDS)
    config.require({"is_gated_act": gated})  # is_gated_act and dense_act_fn repeat feed_forward_proj
    if ACTIVATIONS.get(config.take("dense_act_fn", None) or ACTIVATION_NAMES[activation]) != activation:
        raise config.build_error("dense_act_fn", f"feed_forward_proj has {activation}")
    scaled = config.take("scale_decoder_outputs", config.values.get("tie_word_embeddings", True))
    config.take("tie_word_embeddings", True)  # the stored tensors show what is tied
    dropout = config.take("dropout_rate", 0.1)
    stack = {
        "dim": config.take("d_model"), "heads": config.take("num_heads"), "head_dim": config.take("d_kv"),
        "ff": config.take("d_ff"), "norm": "pre", "norm_kind": "rms", "activation": activation, "gated": gated,
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-6), "scale_attention": False, "bias": False,
        "dropout": dropout,
        "attention_dropout": dropout, "ff_dropout": dropout,
    }  # fmt: skip
    layers = config.take("num_layers")
    depths = {"reader": layers, "writer": config.take("num_decoder_layers", None) or layers}
    where = {
        "kind": "bucketed", "buckets": config.take("relative_attention_num_buckets", 32),
        "max_distance": config.take("relative_attention_max_distance", 128),
    }  # fmt: skip
    tables: dict[str, Any] = {
        ours: {"stack": {**stack, "layers": depth}, "positions": where, "scale_embedding": False, "dropout": dropout}
        for ours, depth in depths.items()
    }
    tables["writer"] |= {"output_scale": scaled, "tie": "all"}
    return build_seq2seq_tables(config, tables | {"data": {"max_length": config.take("n_positions", 512)}})


def build_t5_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    writer: Any = get_seq2seq_decoder(recipe) or reader
    stack, where = writer.stack, writer.positions.bucketed_table or Bucketed()
    scaled = recipe.writer.is_head or writer.output_scale
    forward = {value: key for key, value in reversed(FEEDFORWARD_KINDS.items())}
    return {
        "d_model": stack.dim, "d_kv": stack.head_dim or stack.dim // stack.heads, "d_ff": stack.ff,
        "num_layers": reader.stack.layers, "num_decoder_layers": stack.layers, "num_heads": stack.heads,
        "relative_attention_num_buckets": where.buckets, "dropout_rate": stack.dropout,
        "relative_attention_max_distance": where.max_distance, "is_encoder_decoder": True,
        "layer_norm_epsilon": stack.norm_epsilon or 1e-6, "n_positions": recipe.data.max_length,
        "feed_forward_proj": forward.get((stack.activation, stack.gated), stack.activation),
        "scale_decoder_outputs": scaled, "tie_word_embeddings": scaled, **build_seq2seq_head(recipe, "T5"),
    }  # fmt: skip


T5 = Family(
    "t5",
    "T5ForConditionalGeneration",
    build_t5_recipe,
    build_t5_config,
    build_tensor_map,
    duplicates={"lm_head.weight": "shared.weight"}
    | {
        f"{before}{side}.embed_tokens.weight": f"{before}shared.weight"
        for before in ("", LABEL_PREFIX)
        for side in SIDES
    },
    # T5WithLMHeadModel is the name of early releases.
    other_architectures=("T5WithLMHeadModel", f"T5{ENCODER_MODEL}", f"T5{SEQUENCE_HEAD}", f"T5{TOKEN_HEAD}"),
    defaults=DEFAULTS,
    ignored_suffixes=(".EncDecAttention.relative_attention_bias.weight",),
    untied="input",
    added_tokens=tuple(f"<extra_id_{i}>" for i in reversed(range(100))),
)
