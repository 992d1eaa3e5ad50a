"""Llama (Touvron et al. 2023): rotary positions, a gated feed-forward network, RMSNorm, shared keys and values."""

from typing import Any

from saccade.config.schema import Recipe, Rotary
from saccade.exchange.families.family import NO_BIAS, ROTARY, ROWS, SAME, Config, Family, Names, part
from saccade.exchange.families.heads import TEXTS, WORDS, decoder_head, decoder_names, decoder_of, decoder_tables

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
STRETCH = {  # of Llama 3.1 and later
    "factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high",
    "original_max_position_embeddings": "length",
}  # fmt: skip


def llama_recipe(config: Config) -> dict[str, Any]:
    config.plain({"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"})
    config.plain({"rope_interleaved": False})
    config.ignore("pretraining_tp", "is_llama_config", "transformers.js_config")
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
        "stack": stack, "positions": rotary(config), "scale": False, "dropout": 0.0,
        "tie": "output" if tied else "none",
    }  # fmt: skip
    return decoder_tables(config, {"writer": writer, "data": {"max_length": config.take("max_position_embeddings")}})


def rotary(config: Config) -> dict[str, Any]:
    """How features are turned; older files say it in two places."""
    older, newer = config.take("rope_scaling", None), config.take("rope_parameters", None)
    said = {"rope_theta": config.take("rope_theta", 10000.0), **(older or newer or {})}
    kind = said.pop("rope_type", said.pop("type", "default"))
    places: dict[str, Any] = {"kind": "rotary", "base": float(said.pop("rope_theta"))}
    if kind == "default" and not said:
        return places
    said.setdefault("original_max_position_embeddings", config.take("max_position_embeddings"))
    if kind != "llama3" or said.keys() != STRETCH.keys():
        raise config.refusal(
            "rope_scaling" if older else "rope_parameters",
            f"rope_type can be 'default', or 'llama3' with {', '.join(STRETCH)}",
        )
    return {**places, "stretch": {ours: said[theirs] for theirs, ours in STRETCH.items()}}


def turning(where: Any) -> dict[str, Any]:
    """The way back, for newer and older readers."""
    turning = where.rotary or Rotary()
    base, stretch = turning.base, turning.stretch
    if stretch is None:
        return {"rope_theta": base, "rope_parameters": {"rope_theta": base, "rope_type": "default"}}
    scaling = {"rope_type": "llama3", **{theirs: getattr(stretch, ours) for theirs, ours in STRETCH.items()}}
    return {"rope_theta": base, "rope_parameters": {"rope_theta": base, **scaling}, "rope_scaling": scaling}


def llama_config(recipe: Recipe) -> dict[str, Any]:
    decoder = decoder_of(recipe)
    stack = decoder.stack
    return {
        **decoder_head(recipe, "Llama"), **turning(decoder.positions),
        "hidden_size": stack.dim, "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads, "intermediate_size": stack.ff, "hidden_act": "silu",
        "head_dim": stack.head_dim or stack.dim // stack.heads, "rms_norm_eps": stack.norm_epsilon or 1e-6,
        "max_position_embeddings": recipe.data.max_length,
        "tie_word_embeddings": recipe.writer.tied == "output", "attention_dropout": stack.attention_dropout,
    }  # fmt: skip


LLAMA = Family(
    "llama", "LlamaForCausalLM", llama_recipe, llama_config,
    lambda recipe: decoder_names(NAMES, recipe, of_words="score"), reads=False,
    others=(f"Llama{TEXTS}", f"Llama{WORDS}"),
    copies={"lm_head.weight": "model.embed_tokens.weight"}, unread=(".rotary_emb.inv_freq",),
)  # fmt: skip
