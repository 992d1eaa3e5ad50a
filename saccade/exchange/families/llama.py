"""Llama (Touvron et al. 2023): rotary positions, a gated feed-forward network, RMSNorm, grouped-query attention."""

from typing import Any

from saccade.config.schema import Recipe, Rotary
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    IDENTITY,
    NO_OUTPUT_BIAS,
    ROTARY_HEADS,
    TOKEN_ROWS,
    Config,
    Family,
    TensorMap,
    map_tensor,
)
from saccade.exchange.families.heads import (
    SEQUENCE_HEAD,
    TOKEN_HEAD,
    build_decoder_head,
    build_decoder_map,
    build_decoder_tables,
    get_decoder,
)

BLOCK = "model.layers.{}"
TENSOR_MAP: TensorMap = {
    "writer.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "model.embed_tokens.weight"),
    "writer.output.weight": map_tensor(TOKEN_ROWS, "lm_head.weight"),
    "writer.output.bias": map_tensor(NO_OUTPUT_BIAS),
    "writer.stack.norm": map_tensor(IDENTITY, "model.norm"),
    "writer.stack.blocks.{}.self.project": map_tensor(ROTARY_HEADS, *(f"{BLOCK}.self_attn.{x}_proj" for x in "qkv")),
    "writer.stack.blocks.{}.self.heads.out": map_tensor(IDENTITY, f"{BLOCK}.self_attn.o_proj"),
    "writer.stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, f"{BLOCK}.mlp.gate_proj"),
    "writer.stack.blocks.{}.feedforward.gate": map_tensor(IDENTITY, f"{BLOCK}.mlp.up_proj"),
    "writer.stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, f"{BLOCK}.mlp.down_proj"),
    "writer.stack.blocks.{}.residuals.0.norm": map_tensor(IDENTITY, f"{BLOCK}.input_layernorm"),
    "writer.stack.blocks.{}.residuals.1.norm": map_tensor(IDENTITY, f"{BLOCK}.post_attention_layernorm"),
}
DEFAULTS = {"hidden_act": "silu", "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2}
# The scaling of Llama 3.1 with these factors divides all frequencies, as rope_type "linear" does (Chen et al. 2023).
LINEAR_SCALING = {"low_freq_factor": 1e9, "high_freq_factor": 2e9, "original_max_position_embeddings": 1}
ROPE_SCALING_KEYS = {  # Llama 3.1 and later: key of rope_scaling -> ours
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_length",
}  # fmt: skip


def build_llama_recipe(config: Config) -> dict[str, Any]:
    attention_bias, mlp_bias = config.take("attention_bias", False), config.take("mlp_bias", False)
    config.require({"rope_interleaved": False, "partial_rotary_factor": 1.0, "sliding_window": None})
    config.ignore("pretraining_tp", "is_llama_config", "max_sequence_length", "transformers.js_config")
    dim, heads = config.take("hidden_size"), config.take("num_attention_heads")
    shared, head_dim = config.take("num_key_value_heads", None), config.take("head_dim", None)
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": dim, "heads": heads, "ff": config.take("intermediate_size"),
        "kv_heads": None if shared in (None, heads) else shared, "norm": "pre", "norm_kind": "rms",
        "head_dim": None if head_dim in (None, dim / heads) else head_dim, "gated": True,
        "activation": config.take_choice("hidden_act", ACTIVATIONS),
        "norm_epsilon": config.take("rms_norm_eps", 1e-6), "dropout": 0.0,
        # Without biases in the feed-forward network but in attention, the former are 0.
        "bias": attention_bias or mlp_bias, "attention_bias": attention_bias or not mlp_bias,
        "attention_dropout": config.take("attention_dropout", 0.0),
    }  # fmt: skip
    tied = config.take("tie_word_embeddings", False)
    writer = {
        "stack": stack, "positions": build_rotary_table(config), "scale_embedding": False, "dropout": 0.0,
        "tie": "output" if tied else "none",
    }  # fmt: skip
    return build_decoder_tables(
        config, {"writer": writer, "data": {"max_length": config.take("max_position_embeddings")}}
    )


def build_rotary_table(config: Config) -> dict[str, Any]:
    """Build the positions table; older files store it in rope_theta and rope_scaling, newer ones in rope_parameters."""
    older, newer = config.take("rope_scaling", None), config.take("rope_parameters", None)
    values = {"rope_theta": config.take("rope_theta", 10000.0), **(older or newer or {})}
    kind = values.pop("rope_type", values.pop("type", "default"))
    positions: dict[str, Any] = {"kind": "rotary", "base": float(values.pop("rope_theta"))}
    if kind == "default" and not values:
        return positions
    values.setdefault("original_max_position_embeddings", config.take("max_position_embeddings"))
    if kind == "linear":
        kind, values = "llama3", {**values, **LINEAR_SCALING}
    if kind != "llama3" or values.keys() != ROPE_SCALING_KEYS.keys():
        raise config.build_error(
            "rope_scaling" if older else "rope_parameters",
            f"expected rope_type 'default', 'linear', or 'llama3' with {', '.join(ROPE_SCALING_KEYS)}",
        )
    return {**positions, "scaling": {ours: values[theirs] for theirs, ours in ROPE_SCALING_KEYS.items()}}


def build_rope_config(positions: Any) -> dict[str, Any]:
    """Build the keys of config.json for rotary positions, for old and new versions of transformers."""
    rotary = positions.rotary_table or Rotary()
    base, scale = rotary.base, rotary.scaling
    if scale is None:
        return {"rope_theta": base, "rope_parameters": {"rope_theta": base, "rope_type": "default"}}
    scaling = {theirs: getattr(scale, ours) for theirs, ours in ROPE_SCALING_KEYS.items()}
    if scaling.items() >= LINEAR_SCALING.items():
        scaling = {"rope_type": "linear", "factor": scale.factor}
    else:
        scaling = {"rope_type": "llama3", **scaling}
    return {"rope_theta": base, "rope_parameters": {"rope_theta": base, **scaling}, "rope_scaling": scaling}


def build_llama_config(recipe: Recipe) -> dict[str, Any]:
    decoder = get_decoder(recipe)
    stack = decoder.stack
    return {
        **build_decoder_head(recipe, "Llama"), **build_rope_config(decoder.positions),
        "hidden_size": stack.dim, "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads, "intermediate_size": stack.ff,
        "hidden_act": ACTIVATION_NAMES.get(stack.activation, stack.activation),
        "head_dim": stack.head_dim or stack.dim // stack.heads, "rms_norm_eps": stack.norm_epsilon or 1e-6,
        "max_position_embeddings": recipe.data.max_length, "mlp_bias": stack.bias,
        "attention_bias": stack.bias and stack.attention_bias,
        "tie_word_embeddings": recipe.writer.tied == "output", "attention_dropout": stack.attention_dropout,
    }  # fmt: skip


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    build_llama_recipe,
    build_llama_config,
    lambda recipe: build_decoder_map(TENSOR_MAP, recipe, token_output="score"),
    has_encoder=False,
    other_architectures=(f"Llama{SEQUENCE_HEAD}", f"Llama{TOKEN_HEAD}"),
    duplicates={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_suffixes=(".rotary_emb.inv_freq",),
    optional_biases=".mlp.",
    defaults=DEFAULTS,
)
