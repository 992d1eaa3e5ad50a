"""GPT-Neo (Black et al. 2021): GPT-2 with dense and banded layers in turn, and scores that are not divided."""

from typing import Any

import torch

from saccade.config.schema import Recipe
from saccade.exchange.families.family import ACTIVATIONS, HEADS, NAMED, SAME, Config, Family, Form, Names, longest, part
from saccade.exchange.families.gpt2 import AROUND, BLOCK, NORMS, written_by
from saccade.exchange.families.heads import TEXTS, WORDS, decoder_head, decoder_names, decoder_of, decoder_tables

NOTHING = Form(lambda given, shape, numbering: torch.zeros(shape), lambda ours, numbering: [])  # where theirs has none
NAMES: Names = {
    **AROUND,
    **NORMS,
    "writer.stack.blocks.{}.self.project.weight": part(
        HEADS, *(f"{BLOCK}.attn.attention.{name}_proj.weight" for name in "qkv")
    ),
    "writer.stack.blocks.{}.self.project.bias": part(NOTHING),
    "writer.stack.blocks.{}.self.heads.out": part(SAME, f"{BLOCK}.attn.attention.out_proj"),
    "writer.stack.blocks.{}.feedforward.up": part(SAME, f"{BLOCK}.mlp.c_fc"),
    "writer.stack.blocks.{}.feedforward.down": part(SAME, f"{BLOCK}.mlp.c_proj"),
}
KINDS = ("global", "local")


def gptneo_recipe(config: Config) -> dict[str, Any]:
    config.plain({"tie_word_embeddings": True})
    dim, length = config.take("hidden_size"), config.take("max_position_embeddings")
    types = config.take("attention_types", [[list(KINDS), 12]])
    layers = [kind for kinds, times in types for _ in range(times) for kind in kinds]
    if len(layers) != config.take("num_layers") or not set(layers) <= set(KINDS):
        raise config.refusal("attention_types", "expected 'global' or 'local' for each of num_layers")
    config.plain({"attention_layers": layers})  # follow from the types
    reach = config.take("window_size", 256) - 1  # of theirs, a position itself is one
    stack = {
        "layers": len(layers), "dim": dim, "heads": config.take("num_heads"), "norm": "pre", "scale": False,
        "ff": config.take("intermediate_size", None) or 4 * dim, "dropout": config.take("resid_dropout", 0.0),
        "activation": config.among("activation_function", ACTIVATIONS),
        "window": tuple(reach if kind == "local" else "none" for kind in layers) if "local" in layers else None,
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-5),
        "attention_dropout": config.take("attention_dropout", 0.0),
    }  # fmt: skip
    return decoder_tables(config, written_by(stack, length=length, dropout=config.take("embed_dropout", 0.0)))


def gptneo_config(recipe: Recipe) -> dict[str, Any]:
    decoder = decoder_of(recipe)
    stack, given = decoder.stack, decoder.stack.window or ("none",)
    reaches: list[Any] = [given[number % len(given)] for number in range(stack.layers)]
    return {
        **decoder_head(recipe, "GPTNeo"),
        "hidden_size": stack.dim, "num_layers": stack.layers, "num_heads": stack.heads, "intermediate_size": stack.ff,
        "attention_types": [[["global" if reach == "none" else "local" for reach in reaches], 1]],
        "window_size": max((reach for reach in reaches if reach != "none"), default=255) + 1,
        "max_position_embeddings": longest(decoder.positions, recipe),
        "activation_function": NAMED.get(stack.activation, stack.activation),
        "layer_norm_epsilon": stack.norm_epsilon or 1e-5, "resid_dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout, "embed_dropout": decoder.dropout,
    }  # fmt: skip


GPTNEO = Family(
    "gpt_neo", "GPTNeoForCausalLM", gptneo_recipe, gptneo_config, lambda recipe: decoder_names(NAMES, recipe),
    reads=False, others=(f"GPTNeo{TEXTS}", f"GPTNeo{WORDS}"), prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"}, unread=(".attn.attention.bias", ".attn.attention.masked_bias"),
)  # fmt: skip
