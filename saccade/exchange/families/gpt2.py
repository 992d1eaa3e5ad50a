"""GPT-2 (Radford et al. 2019), all sizes: pre-norm, learned positions, transposed matrices (Conv1D)."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    IDENTITY,
    JOINED_HEADS,
    NO_OUTPUT_BIAS,
    TOKEN_ROWS,
    TRANSPOSED,
    Config,
    Family,
    RecipeTable,
    TensorMap,
    get_max_length,
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

BLOCK = "transformer.h.{}"
OUTER_TENSORS: TensorMap = {  # outside the blocks
    "writer.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "transformer.wte.weight"),
    "writer.output.weight": map_tensor(TOKEN_ROWS, "lm_head.weight"),
    "writer.output.bias": map_tensor(NO_OUTPUT_BIAS),
    "writer.embedding.positions.table": map_tensor(IDENTITY, "transformer.wpe"),
    "writer.stack.norm": map_tensor(IDENTITY, "transformer.ln_f"),
}
BLOCK_NORMS: TensorMap = {
    "writer.stack.blocks.{}.residuals.0.norm": map_tensor(IDENTITY, f"{BLOCK}.ln_1"),
    "writer.stack.blocks.{}.residuals.1.norm": map_tensor(IDENTITY, f"{BLOCK}.ln_2"),
}
TENSOR_MAP: TensorMap = {
    **OUTER_TENSORS,
    **BLOCK_NORMS,
    "writer.stack.blocks.{}.self.project": map_tensor(JOINED_HEADS, f"{BLOCK}.attn.c_attn"),
    "writer.stack.blocks.{}.self.heads.out": map_tensor(TRANSPOSED, f"{BLOCK}.attn.c_proj"),
    "writer.stack.blocks.{}.feedforward.up": map_tensor(TRANSPOSED, f"{BLOCK}.mlp.c_fc"),
    "writer.stack.blocks.{}.feedforward.down": map_tensor(TRANSPOSED, f"{BLOCK}.mlp.c_proj"),
}
SUMMARY_KEYS = tuple(  # of the multiple-choice head
    f"summary_{name}" for name in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
)
DEFAULTS = {"activation_function": "gelu_new", "bos_token_id": 50256, "eos_token_id": 50256}


def build_gpt2_recipe(config: Config) -> dict[str, Any]:
    config.require({"scale_attn_by_inverse_layer_idx": False})
    # reorder_and_upcast_attn matters in float16 only; the stored tensors show whether the output matrix is tied.
    config.ignore(
        *SUMMARY_KEYS, "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "tie_word_embeddings"
    )
    dim, length = config.take("n_embd"), config.take("n_positions")
    stack = {
        "layers": config.take("n_layer"), "dim": dim, "heads": config.take("n_head"), "norm": "pre",
        "ff": config.take("n_inner", None) or 4 * dim, "scale_attention": config.take("scale_attn_weights", True),
        "activation": config.take_choice("activation_function", ACTIVATIONS),
        "norm_epsilon": config.take("layer_norm_epsilon", 1e-5), "dropout": config.take("resid_pdrop", 0.1),
        "attention_dropout": config.take("attn_pdrop", 0.1),
    }  # fmt: skip
    return build_decoder_tables(
        config, build_language_model_tables(stack, length=length, dropout=config.take("embd_pdrop", 0.1))
    )


def build_language_model_tables(stack: RecipeTable, *, length: int, dropout: float) -> dict[str, Any]:
    """Build the tables of a language model with this stack, learned positions and a tied output matrix."""
    positions = {"kind": "learned", "length": length}
    writer = {"stack": stack, "positions": positions, "scale_embedding": False, "tie": "output", "dropout": dropout}
    return {"writer": writer, "data": {"max_length": length}}


def build_gpt2_config(recipe: Recipe) -> dict[str, Any]:
    decoder = get_decoder(recipe)
    stack = decoder.stack
    return {
        **build_decoder_head(recipe, "GPT2"),
        "n_embd": stack.dim, "n_layer": stack.layers, "n_head": stack.heads, "n_inner": stack.ff,
        "n_positions": get_max_length(decoder.positions, recipe),
        "activation_function": ACTIVATION_NAMES.get(stack.activation, stack.activation),
        "layer_norm_epsilon": stack.norm_epsilon or 1e-5, "resid_pdrop": stack.dropout,
        "attn_pdrop": stack.attention_dropout, "embd_pdrop": decoder.dropout,
        "scale_attn_weights": stack.scale_attention is True,
        "tie_word_embeddings": recipe.writer.is_label_head or recipe.writer.tied == "output",
    }  # fmt: skip


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    build_gpt2_recipe,
    build_gpt2_config,
    lambda recipe: build_decoder_map(TENSOR_MAP, recipe),
    has_encoder=False,
    other_architectures=(f"GPT2{SEQUENCE_HEAD}", f"GPT2{TOKEN_HEAD}"),
    prefix="transformer.",
    duplicates={"lm_head.weight": "transformer.wte.weight"},
    ignored_suffixes=(".attn.bias", ".attn.masked_bias"),
    defaults=DEFAULTS,
)
