"""Llama (Touvron et al. 2023): rotary positions, a gated feed-forward network, RMSNorm, shared keys and values."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.family import NO_BIAS, ROTARY, ROWS, SAME, Config, Family, Names, part

BLOCK = "model.layers.{}"
NAMES: Names = {
    "writer.embedding.tokens.weight": part(ROWS, "model.embed_tokens.weight"),
    "writer.output.weight": part(ROWS, "lm_head.weight"),
    "writer.output.bias": part(NO_BIAS),
    "writer.stack.norm": part(SAME, "model.norm"),
    "writer.stack.blocks.{}.self.project": part(ROTARY, *(f"{BLOCK}.self_attn.{x}_proj" for x in "qkv")),
    "writer.stack.blocks.{}.self.heads.out": part(SAME, f"{BLOCK}.self_attn.o_proj"),
    "writer.stack.blocks.{}.feedforward.up": part(SAME, f"{BLOCK}.mlp.gate_proj"),
    "writer.stack.blocks.{}.feedforward.gate": part(SAME, f"{BLOCK}.mlp.up_proj"),
    "writer.stack.blocks.{}.feedforward.down": part(SAME, f"{BLOCK}.mlp.down_proj"),
    "writer.stack.blocks.{}.residuals.0.norm": part(SAME, f"{BLOCK}.input_layernorm"),
    "writer.stack.blocks.{}.residuals.1.norm": part(SAME, f"{BLOCK}.post_attention_layernorm"),
}


def llama_recipe(config: Config) -> dict[str, Any]:
    config.plain({"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rope_scaling": None})
    config.plain({"rope_interleaved": False})
    config.ignore("pretraining_tp", "is_llama_config", "transformers.js_config")
    base = config.take("rope_theta", 10000.0)  # where older files have it
    turn = config.take("rope_parameters", None) or {"rope_theta": base}
    if turn.get("rope_type", "default") != "default" or not turn.keys() <= {"rope_theta", "rope_type"}:
        raise config.refusal("rope_parameters", "only those of rope_type = 'default' can be imported")
    dim, heads = config.take("hidden_size"), config.take("num_attention_heads")
    shared, head_dim = config.take("num_key_value_heads", None), config.take("head_dim", None)
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": dim, "heads": heads, "ff": config.take("intermediate_size"),
        "kv_heads": None if shared in (None, heads) else shared, "norm": "pre", "norm_kind": "rms",
        "head_dim": None if head_dim in (None, dim / heads) else head_dim, "activation": "silu", "gated": True,
        "norm_epsilon": config.take("rms_norm_eps", 1e-6), "bias": False, "dropout": 0.0,
        "attention_dropout": config.take("attention_dropout", 0.0),
    }  # fmt: skip
    tied = config.take("tie_word_embeddings", False)
    writer = {
        "stack": stack, "positions": {"kind": "rotary", "base": float(turn["rope_theta"])}, "scale": False,
        "dropout": 0.0, "tie": "output" if tied else "none",
    }  # fmt: skip
    return {"writer": writer, "data": {"max_length": config.take("max_position_embeddings")}}


def llama_config(recipe: Recipe) -> dict[str, Any]:
    writer: Any = recipe.writer
    stack = writer.stack
    base = getattr(writer.positions, "base", 10000.0)
    return {
        "hidden_size": stack.dim, "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads, "intermediate_size": stack.ff, "hidden_act": "silu",
        "head_dim": stack.head_dim or stack.dim // stack.heads, "rms_norm_eps": stack.norm_epsilon or 1e-6,
        "max_position_embeddings": recipe.data.max_length, "tie_word_embeddings": writer.tie == "output",
        "rope_theta": base, "rope_parameters": {"rope_theta": base, "rope_type": "default"},
        "attention_dropout": stack.attention_dropout,
    }  # fmt: skip


LLAMA = Family(
    "llama", "LlamaForCausalLM", llama_recipe, llama_config, lambda recipe: NAMES, reads=False,
    copies={"lm_head.weight": "model.embed_tokens.weight"}, unread=(".rotary_emb.inv_freq",),
)  # fmt: skip
