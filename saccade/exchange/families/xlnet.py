"""XLNet (Yang et al. 2019): post-norm, relative positions and segments in attention, two streams; CLS comes last."""

from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, processors
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.config.table import WriterTraits
from saccade.errors import SaccadeError
from saccade.exchange.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    IDENTITY,
    OUTPUT_BIAS,
    TOKEN_ROWS,
    Config,
    Family,
    RecipeTable,
    TensorConversion,
    TensorMap,
    map_tensor,
)
from saccade.exchange.families.heads import (
    SEQUENCE_HEAD,
    TOKEN_HEAD,
    add_label_head,
    build_label_tables,
    get_label_suffix,
)

LAYER = "transformer.layer.{}"
UNUSED_KEYS = (  # heads for other tasks, and the memory between segments, which has no weights
    "end_n_top", "mem_len", "n_token", "reuse_len", "start_n_top", "summary_activation", "summary_last_dropout",
    "summary_type", "summary_use_proj", "use_mems_eval", "use_mems_train",
)  # fmt: skip
DEFAULTS = {
    "ff_activation": "gelu", "summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh",
}  # fmt: skip
HEAD_ACTIVATIONS = {**ACTIVATIONS, "tanh": "tanh"}
NO_ACTIVATION = "linear"  # in transformers
FINAL_TOKENS = ("<sep>", "<cls>")
OBJECTIVES = {"states": {"objectives": [{"kind": "masked"}]}, "permuted": {"objectives": [{"kind": "permuted"}]}}
MAX_LENGTH = 512  # tokens of a sequence; XLNet itself has no limit


def _to_interleaved_sinusoids(theirs: Tensor) -> Tensor:
    """Convert a projection of sinusoids of i - j (all sines first) to one of j - i (sines and cosines interleaved)."""
    sines, cosines = theirs.flatten(1).T.chunk(2, 1)
    return torch.stack((-sines, cosines), -1).flatten(1)


def _to_joined_sinusoids(ours: Tensor) -> Tensor:
    sines, cosines = ours.unflatten(1, (-1, 2)).unbind(-1)
    return torch.cat((-sines, cosines), 1).T


def build_tensor_map(recipe: Recipe) -> TensorMap:
    stack: Any = recipe.reader.stack  # type: ignore[union-attr]
    heads, width = stack.heads, stack.head_dim or stack.dim // stack.heads
    scale = width**-0.5  # saccade adds these biases to queries that are already scaled
    project = TensorConversion(
        lambda theirs, shape, mapping: torch.stack([part.permute(1, 2, 0) for part in theirs], 1),
        lambda ours, mapping: [part.permute(2, 0, 1) for part in ours.unbind(1)],
    )
    out = TensorConversion(lambda theirs, *_: theirs[0].flatten(1), lambda ours, _: [ours.unflatten(1, (heads, width))])
    place = TensorConversion(
        lambda theirs, *_: _to_interleaved_sinusoids(theirs[0]),
        lambda ours, _: [_to_joined_sinusoids(ours).unflatten(1, (heads, width))],
    )
    bias = TensorConversion(lambda theirs, *_: theirs[0][:, None] * scale, lambda ours, _: [ours[:, 0] / scale])
    turned = TensorConversion(lambda theirs, *_: theirs[0].transpose(0, 1), lambda ours, _: [ours.transpose(0, 1)])
    flat = TensorConversion(lambda theirs, *_: theirs[0].flatten(), lambda ours, _: [ours[None, None]])
    inside = {
        "self.project.weight": map_tensor(project, *(f"{LAYER}.rel_attn.{x}" for x in "qkv")),
        "self.heads.out.weight": map_tensor(out, f"{LAYER}.rel_attn.o"),
        "self.heads.term.project.weight": map_tensor(place, f"{LAYER}.rel_attn.r"),
        "self.heads.term.bias": map_tensor(bias, f"{LAYER}.rel_attn.r_r_bias"),
        "self.heads.term.content": map_tensor(bias, f"{LAYER}.rel_attn.r_w_bias"),
        "self.heads.term.segment_bias": map_tensor(bias, f"{LAYER}.rel_attn.r_s_bias"),
        "self.heads.term.segments": map_tensor(turned, f"{LAYER}.rel_attn.seg_embed"),
        "residuals.0.norm": map_tensor(IDENTITY, f"{LAYER}.rel_attn.layer_norm"),
        "residuals.1.norm": map_tensor(IDENTITY, f"{LAYER}.ff.layer_norm"),
        "feedforward.up": map_tensor(IDENTITY, f"{LAYER}.ff.layer_1"),
        "feedforward.down": map_tensor(IDENTITY, f"{LAYER}.ff.layer_2"),
    }
    found = {
        "reader.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "transformer.word_embedding.weight"),
        "writer.query": map_tensor(flat, "transformer.mask_emb"),
        "writer.output.weight": map_tensor(TOKEN_ROWS, "lm_loss.weight"),
        "writer.output.bias": map_tensor(OUTPUT_BIAS, "lm_loss.bias"),
        **{f"reader.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }
    return add_label_head(found, recipe, hidden="sequence_summary.summary", output="logits_proj")


def build_xlnet_recipe(config: Config) -> dict[str, Any]:
    config.require({"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False, "untie_r": True})
    # A sequence ends with <sep>; the stored tensors show what is tied.
    config.ignore(*UNUSED_KEYS, "eos_token_id", "pad_token_id", "tie_word_embeddings")
    dim, heads, dropout = config.take("d_model"), config.take("n_head"), config.take("dropout", 0.1)
    stack = {
        "layers": config.take("n_layer"), "dim": dim, "heads": heads, "ff": config.take("d_inner"),
        "head_dim": config.take("d_head", None) or dim // heads, "norm": "post", "attention_bias": False,
        "activation": config.take_choice("ff_activation", ACTIVATIONS),
        "norm_epsilon": config.take("layer_norm_eps", 1e-12),
        "dropout": dropout, "attention_dropout": dropout, "ff_dropout": dropout,
    }  # fmt: skip
    where = {"kind": "transformer-xl", "content_bias": True, "relative_segments": True}
    reader = {"stack": stack, "positions": where, "scale_embedding": False, "dropout": dropout}
    head = "states" if config.values.get("architectures") == ["XLNetModel"] else "permuted"
    tables = {"reader": reader, "data": {"max_length": MAX_LENGTH}, "predict": {"beam": 5, "n_best": 5}}
    return tables | (
        build_label_head(config, stack) or {"task": "encode", "writer": {"kind": head}, **OBJECTIVES[head]}
    )


def build_label_head(config: Config, stack: RecipeTable) -> dict[str, Any]:
    """Build task, writer and objectives of a classifier, which usually pools the last state, that of <cls>."""
    tables = build_label_tables(config, stack)
    if tables and tables["writer"]["kind"] != "tags":
        between, activation = config.take("summary_use_proj", True), config.take("summary_activation", "tanh")
        if between:  # without a projection, `writer.activation` has no effect
            activation = config.take_choice("summary_activation", HEAD_ACTIVATIONS, "tanh")
        elif activation not in (None, NO_ACTIVATION):  # transformers applies it to the state itself
            raise config.build_error("summary_activation", "without summary_use_proj, only 'linear' can be imported")
        tables["writer"] |= {
            "pooling": config.take_choice("summary_type", {"last": "last", "first": "first"}, "last"),
            "hidden_dim": stack["dim"] if between else None, "dropout": config.take("summary_last_dropout", 0.1),
            **({"activation": activation} if between else {}),
        }  # fmt: skip
    return tables


def build_xlnet_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    stack = reader.stack
    writer: Any = recipe.writer
    head: dict[str, Any] = {"architectures": [f"XLNet{get_architecture(writer)}"]}
    if writer.pooling_kind:
        between = writer.hidden_dim is not None  # without a projection, an activation would be applied to the state
        head |= {
            "summary_type": writer.pooling, "summary_use_proj": between,
            "summary_activation": (
                ACTIVATION_NAMES.get(writer.activation, writer.activation) if between else NO_ACTIVATION
            ),
            "summary_last_dropout": writer.dropout,
        }  # fmt: skip
    return head | {
        "d_model": stack.dim, "n_layer": stack.layers, "n_head": stack.heads, "d_inner": stack.ff,
        "d_head": stack.head_dim or stack.dim // stack.heads, "dropout": stack.dropout, "attn_type": "bi",
        "ff_activation": ACTIVATION_NAMES.get(stack.activation, stack.activation), "untie_r": True,
        "layer_norm_eps": stack.norm_epsilon or 1e-5, "mem_len": None,
        "tie_word_embeddings": writer.is_label_head or writer.gives_states or writer.tied == "all",
    }  # fmt: skip


def get_architecture(writer: WriterTraits) -> str:
    """Return the suffix of the architecture's name for this head."""
    if writer.is_label_head:
        return get_label_suffix(writer)
    return "Model" if writer.gives_states else "LMHeadModel"


def build_mask_embedding(recipe: Recipe) -> dict[str, Tensor]:
    """Build the query vector of the query stream for models without that stream, which have none."""
    reader: Any = recipe.reader
    return {} if recipe.writer.is_permuted else {"transformer.mask_emb": torch.zeros(1, 1, reader.stack.dim)}


def complete_tokenizer(core: Tokenizer, settings: dict[str, Any]) -> None:
    """Add what a SentencePiece file lacks: normalization of quotes and accents, <sep> and <cls> behind a sequence."""
    missing = [token for token in FINAL_TOKENS if core.token_to_id(token) is None]
    if missing:
        raise SaccadeError(
            f"the SentencePiece file has no token {missing[0]}, which XLNet appends to texts; is it the right file?"
        )
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    core.normalizer = normalizers.Sequence(
        [*quotes, normalizers.NFKD(), normalizers.StripAccents(), *lower, core.normalizer]
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[(token, core.token_to_id(token)) for token in FINAL_TOKENS],
    )  # fmt: skip


XLNET = Family(
    "xlnet",
    "XLNetLMHeadModel",
    build_xlnet_recipe,
    build_xlnet_config,
    build_tensor_map,
    is_encoder_only=True,
    prefix="transformer.",
    other_architectures=("XLNetModel", f"XLNet{SEQUENCE_HEAD}", f"XLNet{TOKEN_HEAD}"),
    ignored_suffixes=("transformer.mask_emb",),
    complete_tokenizer=complete_tokenizer,
    duplicates={"lm_loss.weight": "transformer.word_embedding.weight"},
    unused_tensors=build_mask_embedding,
    defaults=DEFAULTS,
)
