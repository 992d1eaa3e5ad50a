"""XLNet (Yang et al. 2019): post-norm, distances and segments inside attention, two streams; CLS is the last token."""

from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, processors
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.config.table import WriterTraits
from saccade.errors import SaccadeError
from saccade.exchange.families.family import (
    ACTIVATIONS,
    LOGITS,
    NAMED,
    ROWS,
    SAME,
    Config,
    Family,
    Form,
    Names,
    Settings,
    part,
)
from saccade.exchange.families.heads import TEXTS, WORDS, label_names, label_suffix, label_tables

LAYER = "transformer.layer.{}"
ELSEWHERE = (  # heads for other tasks, and what is remembered between texts, which changes no weight
    "end_n_top", "mem_len", "reuse_len", "start_n_top", "summary_activation", "summary_last_dropout",
    "summary_type", "summary_use_proj", "use_mems_eval", "use_mems_train",
)  # fmt: skip
AROUND = ("<sep>", "<cls>")
OBJECTIVES = {"states": {"objectives": [{"kind": "masked"}]}, "permuted": {"objectives": [{"kind": "permuted"}]}}
LENGTH = 512  # tokens of a text; the model itself has no bound


def _places_into(theirs: Tensor) -> Tensor:
    """Sinusoids of i - j, sines before cosines -> of j - i, each sine beside its cosine."""
    sines, cosines = theirs.flatten(1).T.chunk(2, 1)
    return torch.stack((-sines, cosines), -1).flatten(1)


def _places_back(ours: Tensor) -> Tensor:
    sines, cosines = ours.unflatten(1, (-1, 2)).unbind(-1)
    return torch.cat((-sines, cosines), 1).T


def names(recipe: Recipe) -> Names:
    stack: Any = recipe.reader.stack  # type: ignore[union-attr]
    heads, width = stack.heads, stack.head_dim or stack.dim // stack.heads
    scale = width**-0.5  # ours are added to queries that are scaled already
    project = Form(
        lambda given, shape, numbering: torch.stack([part.permute(1, 2, 0) for part in given], 1),
        lambda ours, numbering: [part.permute(2, 0, 1) for part in ours.unbind(1)],
    )
    out = Form(lambda given, *_: given[0].flatten(1), lambda ours, _: [ours.unflatten(1, (heads, width))])
    place = Form(
        lambda given, *_: _places_into(given[0]), lambda ours, _: [_places_back(ours).unflatten(1, (heads, width))]
    )
    bias = Form(lambda given, *_: given[0][:, None] * scale, lambda ours, _: [ours[:, 0] / scale])
    turned = Form(lambda given, *_: given[0].transpose(0, 1), lambda ours, _: [ours.transpose(0, 1)])
    flat = Form(lambda given, *_: given[0].flatten(), lambda ours, _: [ours[None, None]])
    inside = {
        "self.project.weight": part(project, *(f"{LAYER}.rel_attn.{x}" for x in "qkv")),
        "self.heads.out.weight": part(out, f"{LAYER}.rel_attn.o"),
        "self.heads.term.project.weight": part(place, f"{LAYER}.rel_attn.r"),
        "self.heads.term.bias": part(bias, f"{LAYER}.rel_attn.r_r_bias"),
        "self.heads.term.content": part(bias, f"{LAYER}.rel_attn.r_w_bias"),
        "self.heads.term.segment_bias": part(bias, f"{LAYER}.rel_attn.r_s_bias"),
        "self.heads.term.segments": part(turned, f"{LAYER}.rel_attn.seg_embed"),
        "residuals.0.norm": part(SAME, f"{LAYER}.rel_attn.layer_norm"),
        "residuals.1.norm": part(SAME, f"{LAYER}.ff.layer_norm"),
        "feedforward.up": part(SAME, f"{LAYER}.ff.layer_1"),
        "feedforward.down": part(SAME, f"{LAYER}.ff.layer_2"),
    }
    found = {
        "reader.embedding.tokens.weight": part(ROWS, "transformer.word_embedding.weight"),
        "writer.query": part(flat, "transformer.mask_emb"),
        "writer.output.bias": part(LOGITS, "lm_loss.bias"),
        **{f"reader.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }
    return label_names(found, recipe, hidden="sequence_summary.summary", output="logits_proj")


def xlnet_recipe(config: Config) -> dict[str, Any]:
    config.plain({"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False, "untie_r": True})
    config.plain({"tie_word_embeddings": True})
    config.ignore(*ELSEWHERE, "eos_token_id", "pad_token_id")  # texts end with <sep>, which the tokenizer knows
    dim, heads, dropout = config.take("d_model"), config.take("n_head"), config.take("dropout", 0.1)
    stack = {
        "layers": config.take("n_layer"), "dim": dim, "heads": heads, "ff": config.take("d_inner"),
        "head_dim": config.take("d_head", None) or dim // heads, "norm": "post", "attention_bias": False,
        "activation": config.among("ff_activation", ACTIVATIONS), "norm_epsilon": config.take("layer_norm_eps", 1e-12),
        "dropout": dropout, "attention_dropout": dropout, "ff_dropout": dropout,
    }  # fmt: skip
    where = {"kind": "transformer-xl", "content": True, "segments": True}
    reader = {"stack": stack, "positions": where, "scale": False, "dropout": dropout}
    head = "states" if config.values.get("architectures") == ["XLNetModel"] else "permuted"
    tables = {"reader": reader, "data": {"max_length": LENGTH}, "predict": {"beam": 5, "n_best": 5}}
    return tables | (labels(config, stack) or {"task": "encode", "writer": {"kind": head}, **OBJECTIVES[head]})


def labels(config: Config, stack: Settings) -> dict[str, Any]:
    """Task, writer and objective of a folder that labels something: mostly by the last state, that of <cls>."""
    tables = label_tables(config, stack)
    if tables and tables["writer"]["kind"] != "tags":
        between = config.take("summary_use_proj", True)
        if between:
            config.plain({"summary_activation": "tanh"})
        tables["writer"] |= {
            "pooling": config.among("summary_type", {"last": "last", "first": "first"}),
            "hidden": stack["dim"] if between else None, "dropout": config.take("summary_last_dropout", 0.1),
        }  # fmt: skip
    return tables


def xlnet_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    stack = reader.stack
    writer: Any = recipe.writer
    head: dict[str, Any] = {"architectures": [f"XLNet{architecture(writer)}"]}
    if writer.pooled:
        head |= {
            "summary_type": writer.pooling, "summary_use_proj": writer.hidden is not None,
            "summary_activation": writer.activation, "summary_last_dropout": writer.dropout,
        }  # fmt: skip
    return head | {
        "d_model": stack.dim, "n_layer": stack.layers, "n_head": stack.heads, "d_inner": stack.ff,
        "d_head": stack.head_dim or stack.dim // stack.heads, "dropout": stack.dropout, "attn_type": "bi",
        "ff_activation": NAMED.get(stack.activation, stack.activation), "untie_r": True,
        "layer_norm_eps": stack.norm_epsilon or 1e-5, "mem_len": None,
    }  # fmt: skip


def architecture(writer: WriterTraits) -> str:
    """What their model with such a head is called."""
    if writer.is_label_head:
        return label_suffix(writer)
    return "Model" if writer.gives_states else "LMHeadModel"


def dress(core: Tokenizer, settings: dict[str, Any]) -> None:
    """What a SentencePiece file does not say: quotes and accents are made plain, <sep> and <cls> stand behind texts."""
    missing = [piece for piece in AROUND if core.token_to_id(piece) is None]
    if missing:
        raise SaccadeError(
            f"the SentencePiece file has no piece {missing[0]}, which XLNet puts behind texts; is it the right file?"
        )
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    core.normalizer = normalizers.Sequence(
        [*quotes, normalizers.NFKD(), normalizers.StripAccents(), *lower, core.normalizer]
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[(piece, core.token_to_id(piece)) for piece in AROUND],
    )  # fmt: skip


XLNET = Family(
    "xlnet", "XLNetLMHeadModel", xlnet_recipe, xlnet_config, names, encodes=True, prefix="transformer.",
    others=("XLNetModel", f"XLNet{TEXTS}", f"XLNet{WORDS}"), unread=("transformer.mask_emb",), dress=dress,
    copies={"lm_loss.weight": "transformer.word_embedding.weight"},
)  # fmt: skip
