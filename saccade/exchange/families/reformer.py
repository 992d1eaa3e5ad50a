"""Reformer (Kitaev et al. 2020) as a language model: local and LSH attention, reversible layers, axial positions."""

from itertools import cycle, islice
from math import isqrt, prod
from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    HEADS,
    IDENTITY,
    NO_OUTPUT_BIAS,
    TOKEN_ROWS,
    Config,
    Family,
    TensorConversion,
    TensorMap,
    get_max_length,
    map_tensor,
)

ROW_POSITIONS = TensorConversion(lambda theirs, shape, mapping: theirs[0][:, 0], lambda ours, mapping: [ours[:, None]])
COLUMN_POSITIONS = TensorConversion(lambda theirs, shape, mapping: theirs[0][0], lambda ours, mapping: [ours[None]])
OUTPUT_HEAD = TensorConversion(  # the folder also stores a bias, which the original never adds
    lambda theirs, shape, mapping: mapping.to_ours(theirs[0], fill=0.0),
    lambda ours, mapping: [mapping.to_theirs(ours), ours.new_zeros(mapping.size)],
)
POSITIONS, LAYER = "reformer.embeddings.position_embeddings", "reformer.encoder.layers.{}"
DEFAULTS = {
    "attn_layers": ["local", "lsh"] * 3, "attention_head_size": 64, "hidden_act": "relu", "eos_token_id": 2,
    "is_decoder": False,
}  # fmt: skip
IGNORED_KEYS = (  # those with the names of other architectures are in published files
    "attention_probs_dropout_prob", "axial_norm_std", "chunk_size_lm_head", "intermediate_size",
    "local_attention_probs_dropout_prob", "num_chunks_after", "num_chunks_before", "pad_token_id", "seed",
)  # fmt: skip
CHUNK_SIDES = ("before", "after")
PROJECTIONS = {"lsh": ("query_key", "value"), "local": ("query", "key", "value")}


def build_tensor_map(recipe: Recipe) -> TensorMap:
    stack: Any = recipe.writer.stack  # type: ignore[union-attr]
    found = {
        "writer.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "reformer.embeddings.word_embeddings.weight"),
        "writer.embedding.positions.table": map_tensor(IDENTITY, f"{POSITIONS}.embedding"),
        "writer.embedding.positions.rows.weight": map_tensor(ROW_POSITIONS, f"{POSITIONS}.weights.0"),
        "writer.embedding.positions.columns.weight": map_tensor(COLUMN_POSITIONS, f"{POSITIONS}.weights.1"),
        "writer.output.weight": map_tensor(OUTPUT_HEAD, "lm_head.decoder.weight", "lm_head.bias"),
        "writer.output.bias": map_tensor(NO_OUTPUT_BIAS),
        "writer.stack.norm": map_tensor(IDENTITY, "reformer.encoder.layer_norm"),
        "writer.stack.blocks.{}.attention.out": map_tensor(IDENTITY, f"{LAYER}.attention.output.dense"),
        "writer.stack.blocks.{}.norms.0": map_tensor(IDENTITY, f"{LAYER}.attention.layer_norm"),
        "writer.stack.blocks.{}.norms.1": map_tensor(IDENTITY, f"{LAYER}.feed_forward.layer_norm"),
        "writer.stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, f"{LAYER}.feed_forward.dense.dense"),
        "writer.stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, f"{LAYER}.feed_forward.output.dense"),
    }
    for layer, kind in enumerate(islice(cycle(stack.attention), stack.layers)):
        inside = f"{LAYER.format(layer)}.attention.self_attention"
        parts = (f"{inside}.{name}.weight" for name in PROJECTIONS[kind])
        found[f"writer.stack.blocks.{layer}.attention.project.weight"] = map_tensor(HEADS, *parts)
    return found


def build_reformer_recipe(config: Config) -> dict[str, Any]:
    config.require({"is_decoder": True, "tie_word_embeddings": False, "sinusoidal_pos_embds": False})
    config.require({f"{kind}_num_chunks_{side}": int(side == "before") for kind in PROJECTIONS for side in CHUNK_SIDES})
    config.ignore(*IGNORED_KEYS)
    dim, heads, layers = config.take("hidden_size"), config.take("num_attention_heads"), config.take("attn_layers")
    if not layers or not set(layers) <= set(PROJECTIONS):
        raise config.build_error("attn_layers", "expected a list of 'lsh' and 'local'")
    dropout, length = config.take("hidden_dropout_prob", 0.05), config.take("lsh_attn_chunk_length", 64)
    local, buckets = config.take("local_attn_chunk_length", 64), config.take("num_buckets", None) or ()
    if not buckets and "lsh" in layers and isqrt(config.take("max_position_embeddings") // length) > length:
        raise config.build_error("num_buckets", "expected a number: its default depends on max_position_embeddings")
    chunks = {
        "length": length, "local": None if local == length else local, "hashes": config.take("num_hashes", 1),
        "buckets": (buckets,) if isinstance(buckets, int) else tuple(buckets), "seed": config.take("hash_seed", None),
        "feedforward": config.take("chunk_size_feed_forward", 0) or None,
    }  # fmt: skip
    stack = {
        "layers": len(layers), "dim": dim, "heads": heads, "head_dim": config.take("attention_head_size"),
        "ff": config.take("feed_forward_size"), "norm": "pre", "residual": "reversible", "attention": tuple(layers),
        "chunks": chunks, "activation": config.take_choice("hidden_act", ACTIVATIONS), "dropout": dropout,
        "norm_epsilon": config.take("layer_norm_eps", 1e-12), "ff_dropout": dropout,
        "attention_dropout": config.take("lsh_attention_probs_dropout_prob", None) or 0.0,
    }  # fmt: skip
    longest, shape = config.take("max_position_embeddings"), config.take("axial_pos_shape", [64, 64])
    first, *_ = config.take("axial_pos_embds_dim", [64, 192])
    positions: dict[str, Any] = {"kind": "learned", "length": longest}
    if config.take("axial_pos_embds", True):
        positions = {"kind": "axial", "shape": tuple(shape), "row_dim": None if first == dim // 4 else first}
        longest = min(longest, prod(shape))
    writer = {"stack": stack, "positions": positions, "scale_embedding": False, "dropout": dropout, "tie": "none"}
    return {"writer": writer, "data": {"max_length": longest}}


def build_reformer_config(recipe: Recipe) -> dict[str, Any]:
    writer: Any = recipe.writer
    stack, where = writer.stack, writer.positions
    chunks, axial = stack.chunks, where.axial_table is not None
    values = {
        "is_decoder": True, "hidden_size": stack.dim, "num_attention_heads": stack.heads, "axial_pos_embds": axial,
        "attention_head_size": stack.head_dim or stack.dim // stack.heads, "feed_forward_size": stack.ff,
        "attn_layers": list(islice(cycle(stack.attention), stack.layers)), "num_hashes": chunks.hashes,
        "lsh_attn_chunk_length": chunks.length, "local_attn_chunk_length": chunks.local or chunks.length,
        "num_buckets": list(chunks.buckets) or None, "hash_seed": chunks.seed, "tie_word_embeddings": False,
        "chunk_size_feed_forward": chunks.feedforward or 0, "layer_norm_eps": stack.norm_epsilon or 1e-5,
        "hidden_act": ACTIVATION_NAMES.get(stack.activation, stack.activation), "hidden_dropout_prob": stack.dropout,
        "lsh_attention_probs_dropout_prob": stack.attention_dropout,
        "max_position_embeddings": prod(where.shape) if axial else get_max_length(where, recipe),
    }  # fmt: skip
    if axial:
        first = where.row_dim or stack.dim // 4
        values |= {"axial_pos_shape": list(where.shape), "axial_pos_embds_dim": [first, stack.dim - first]}
    return values


REFORMER = Family(
    "reformer",
    "ReformerModelWithLMHead",
    build_reformer_recipe,
    build_reformer_config,
    build_tensor_map,
    has_encoder=False,
    needs_padding=True,
    defaults=DEFAULTS,
    ignored_suffixes=(
        ".mask_value_float16",
        ".mask_value_float32",
        ".self_mask_value_float16",
        ".self_mask_value_float32",
    ),
)
