"""GPT-2 (Radford et al. 2019), all sizes: pre-norm, learned positions, matrices stored the other way round."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATIONS,
    JOINED,
    NAMED,
    NO_BIAS,
    ROWS,
    SAME,
    TURNED,
    Config,
    Family,
    Names,
    Settings,
    longest,
    part,
)
from saccade.exchange.families.heads import TEXTS, WORDS, decoder_head, decoder_names, decoder_of, decoder_tables

BLOCK = "transformer.h.{}"
AROUND: Names = {  # what stands around the blocks
    "writer.embedding.tokens.weight": part(ROWS, "transformer.wte.weight"),
    "writer.output.weight": part(ROWS, "lm_head.weight"),
    "writer.output.bias": part(NO_BIAS),
    "writer.embedding.positions.table": part(SAME, "transformer.wpe"),
    "writer.stack.norm": part(SAME, "transformer.ln_f"),
}
NORMS: Names = {
    "writer.stack.blocks.{}.residuals.0.norm": part(SAME, f"{BLOCK}.ln_1"),
    "writer.stack.blocks.{}.residuals.1.norm": part(SAME, f"{BLOCK}.ln_2"),
}
NAMES: Names = {
    **AROUND,
    **NORMS,
    "writer.stack.blocks.{}.self.project": part(JOINED, f"{BLOCK}.attn.c_attn"),
    "writer.stack.blocks.{}.self.heads.out": part(TURNED, f"{BLOCK}.attn.c_proj"),
    "writer.stack.blocks.{}.feedforward.up": part(TURNED, f"{BLOCK}.mlp.c_fc"),
    "writer.stack.blocks.{}.feedforward.down": part(TURNED, f"{BLOCK}.mlp.c_proj"),
}
SUMMARY = ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")  # of a head for choices


def gpt2_recipe(config: Config) -> dict[str, Any]:
    config.plain({"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": True})
    config.ignore(*(f"summary_{name}" for name in SUMMARY), "n_ctx", "reorder_and_upcast_attn")  # the last: in float16
    dim, length = config.take("n_embd"), config.take("n_positions")
    stack = {
        "layers": config.take("n_layer"), "dim": dim, "heads": config.take("n_head"), "norm": "pre",
        "ff": config.take("n_inner", None) or 4 * dim, "activation": config.among("activation_function", ACTIVATIONS),
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-5), "dropout": config.take("resid_pdrop", 0.1),
        "attention_dropout": config.take("attn_pdrop", 0.1),
    }  # fmt: skip
    return decoder_tables(config, written_by(stack, length=length, dropout=config.take("embd_pdrop", 0.1)))


def written_by(stack: Settings, *, length: int, dropout: float) -> dict[str, Any]:
    """The tables of a recipe whose writer has this stack, and GPT-2's embedding and output."""
    positions = {"kind": "learned", "length": length}
    writer = {"stack": stack, "positions": positions, "scale": False, "tie": "output", "dropout": dropout}
    return {"writer": writer, "data": {"max_length": length}}


def gpt2_config(recipe: Recipe) -> dict[str, Any]:
    decoder = decoder_of(recipe)
    stack = decoder.stack
    return {
        **decoder_head(recipe, "GPT2"),
        "n_embd": stack.dim, "n_layer": stack.layers, "n_head": stack.heads, "n_inner": stack.ff,
        "n_positions": longest(decoder.positions, recipe),
        "activation_function": NAMED.get(stack.activation, stack.activation),
        "layer_norm_epsilon": stack.norm_epsilon or 1e-5, "resid_pdrop": stack.dropout,
        "attn_pdrop": stack.attention_dropout, "embd_pdrop": decoder.dropout,
    }  # fmt: skip


GPT2 = Family(
    "gpt2", "GPT2LMHeadModel", gpt2_recipe, gpt2_config, lambda recipe: decoder_names(NAMES, recipe), reads=False,
    others=(f"GPT2{TEXTS}", f"GPT2{WORDS}"), prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"}, unread=(".attn.bias", ".attn.masked_bias"),
)  # fmt: skip
