"""GPT-Neo (Black et al. 2021): GPT-2 with alternating global and local attention, whose scores are not scaled."""

from typing import Any

import torch

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    HEADS,
    IDENTITY,
    Config,
    Family,
    TensorConversion,
    TensorMap,
    get_max_length,
    map_tensor,
)
from saccade.exchange.families.gpt2 import (
    BLOCK,
    BLOCK_NORMS,
    DEFAULTS,
    OUTER_TENSORS,
    SUMMARY_KEYS,
    build_language_model_tables,
)
from saccade.exchange.families.heads import (
    SEQUENCE_HEAD,
    TOKEN_HEAD,
    build_decoder_head,
    build_decoder_map,
    build_decoder_tables,
    get_decoder,
)

# for biases that GPT-Neo does not have
ZEROS = TensorConversion(lambda theirs, shape, mapping: torch.zeros(shape), lambda ours, mapping: [])
TENSOR_MAP: TensorMap = {
    **OUTER_TENSORS,
    **BLOCK_NORMS,
    "writer.stack.blocks.{}.self.project.weight": map_tensor(
        HEADS, *(f"{BLOCK}.attn.attention.{name}_proj.weight" for name in "qkv")
    ),
    "writer.stack.blocks.{}.self.project.bias": map_tensor(ZEROS),
    "writer.stack.blocks.{}.self.heads.out": map_tensor(IDENTITY, f"{BLOCK}.attn.attention.out_proj"),
    "writer.stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, f"{BLOCK}.mlp.c_fc"),
    "writer.stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, f"{BLOCK}.mlp.c_proj"),
}
ATTENTION_KINDS = ("global", "local")


def build_gptneo_recipe(config: Config) -> dict[str, Any]:
    config.ignore(*SUMMARY_KEYS, "tie_word_embeddings")  # the stored tensors show what is tied
    dim, length = config.take("hidden_size"), config.take("max_position_embeddings")
    types = config.take("attention_types", [[list(ATTENTION_KINDS), 12]])
    layers = [kind for kinds, times in types for _ in range(times) for kind in kinds]
    if len(layers) != config.take("num_layers") or not set(layers) <= set(ATTENTION_KINDS):
        raise config.build_error("attention_types", "expected 'global' or 'local' for each of num_layers")
    config.require({"attention_layers": layers})  # repeats attention_types
    window = config.take("window_size", 256) - 1  # Hugging Face counts the query's own position too
    stack = {
        "layers": len(layers), "dim": dim, "heads": config.take("num_heads"), "norm": "pre", "scale_attention": False,
        "ff": config.take("intermediate_size", None) or 4 * dim, "dropout": config.take("resid_dropout", 0.0),
        "activation": config.take_choice("activation_function", ACTIVATIONS),
        "window": tuple(window if kind == "local" else "none" for kind in layers) if "local" in layers else None,
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-5),
        "attention_dropout": config.take("attention_dropout", 0.0),
    }  # fmt: skip
    return build_decoder_tables(
        config, build_language_model_tables(stack, length=length, dropout=config.take("embed_dropout", 0.0))
    )


def build_gptneo_config(recipe: Recipe) -> dict[str, Any]:
    decoder = get_decoder(recipe)
    stack, pattern = decoder.stack, decoder.stack.window or ("none",)
    windows: list[Any] = [pattern[layer % len(pattern)] for layer in range(stack.layers)]
    return {
        **build_decoder_head(recipe, "GPTNeo"),
        "hidden_size": stack.dim, "num_layers": stack.layers, "num_heads": stack.heads, "intermediate_size": stack.ff,
        "attention_types": [[["global" if window == "none" else "local" for window in windows], 1]],
        "window_size": max((window for window in windows if window != "none"), default=255) + 1,
        "max_position_embeddings": get_max_length(decoder.positions, recipe),
        "activation_function": ACTIVATION_NAMES.get(stack.activation, stack.activation),
        "layer_norm_epsilon": stack.norm_epsilon or 1e-5, "resid_dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout, "embed_dropout": decoder.dropout,
        "tie_word_embeddings": recipe.writer.is_label_head or recipe.writer.tied == "output",
    }  # fmt: skip


GPTNEO = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    build_gptneo_recipe,
    build_gptneo_config,
    lambda recipe: build_decoder_map(TENSOR_MAP, recipe),
    has_encoder=False,
    other_architectures=(f"GPTNeo{SEQUENCE_HEAD}", f"GPTNeo{TOKEN_HEAD}"),
    prefix="transformer.",
    duplicates={"lm_head.weight": "transformer.wte.weight"},
    ignored_suffixes=(".attn.attention.bias", ".attn.attention.masked_bias"),
    defaults=DEFAULTS,
)
