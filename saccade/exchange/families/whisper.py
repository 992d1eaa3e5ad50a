"""Whisper (Radford et al. 2022): sound to text; two convolutions, sinusoids, pre-norm blocks, keys without a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import FrameReader, Recipe
from saccade.exchange.families.bart import SIDES
from saccade.exchange.families.family import (
    ACTIVATIONS,
    HEADS,
    NAMED,
    NO_BIAS,
    ROWS,
    SAME,
    Config,
    Family,
    Form,
    Names,
    Numbering,
    longest,
    part,
)
from saccade.layers.attention.positions import Sinusoidal

RATE = 16_000  # samples a second; theirs hears pitches up to half of that
STRIDES = (1, 2)
MASKS = ("length", "min_masks", "prob")  # of SpecAugment


def _without_keys(given: Sequence[Tensor], shape: Sequence[int], numbering: Numbering) -> Tensor:
    parts = [one.unflatten(0, (shape[0], -1)) for one in given]
    return torch.stack([*parts[:-1], torch.zeros_like(parts[-1]), parts[-1]], 1)


# Of queries, keys and values: what is added to all keys of a query changes no weight, so that ours can be left out.
BIASES = Form(
    _without_keys,
    lambda ours, numbering: [one.flatten() for i, one in enumerate(ours.unbind(1)) if i != ours.shape[1] - 2],
)


def attention(ours: str, theirs: str) -> dict[str, Any]:
    """One attention of a block; the queries of what is written stand apart from keys and values of what was read."""
    if ours == "self":
        projections: dict[str, str] = {"project": "qkv"}
    else:
        projections = {"query": "q", "memory": "kv"}
    names: dict[str, Any] = {f"{ours}.heads.out": part(SAME, f"{theirs}.out_proj")}
    for name, letters in projections.items():
        biased = [f"{theirs}.{x}_proj.bias" for x in letters if x != "k"]
        names[f"{ours}.{name}.weight"] = part(HEADS, *(f"{theirs}.{x}_proj.weight" for x in letters))
        names[f"{ours}.{name}.bias"] = part(BIASES if "k" in letters else HEADS, *biased)
    return names


def side_names(theirs: str, ours: str) -> Names:
    layer, last = f"model.{theirs}.layers.{{}}", 1 if ours == "reader" else 2
    inside = {
        **attention("self", f"{layer}.self_attn"), **attention("cross", f"{layer}.encoder_attn"),
        "feedforward.up": part(SAME, f"{layer}.fc1"), "feedforward.down": part(SAME, f"{layer}.fc2"),
        "residuals.0.norm": part(SAME, f"{layer}.self_attn_layer_norm"),
        "residuals.1.norm": part(SAME, f"{layer}.encoder_attn_layer_norm"),
        f"residuals.{last}.norm": part(SAME, f"{layer}.final_layer_norm"),
    }  # fmt: skip
    return {
        f"{ours}.stack.norm": part(SAME, f"model.{theirs}.layer_norm"),
        **{f"{ours}.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }


NAMES: Names = {
    **{f"reader.stem.layers.{i}": part(SAME, f"model.encoder.conv{i + 1}") for i in range(len(STRIDES))},
    **side_names("encoder", "reader"),
    **side_names("decoder", "writer"),
    "writer.embedding.tokens.weight": part(ROWS, "model.decoder.embed_tokens.weight"),
    "writer.embedding.positions.table": part(SAME, "model.decoder.embed_positions"),
    "writer.output.bias": part(NO_BIAS),
}


def whisper_recipe(config: Config) -> dict[str, Any]:
    config.plain({"scale_embedding": False, "tie_word_embeddings": True, "use_weighted_layer_sum": False})
    config.ignore(
        "apply_spec_augment", "begin_suppress_tokens", "classifier_proj_size", "median_filter_width",
        "suppress_tokens", *(f"mask_{kind}_{x}" for kind in ("time", "feature") for x in MASKS),
    )  # fmt: skip
    length, dropout = config.take("max_target_positions"), config.take("dropout", 0.0)
    stacks = {
        ours: {
            "layers": config.take(f"{theirs}_layers"), "dim": config.take("d_model"), "norm": "pre",
            "heads": config.take(f"{theirs}_attention_heads"), "ff": config.take(f"{theirs}_ffn_dim"),
            "activation": config.among("activation_function", ACTIVATIONS), "dropout": dropout,
            "attention_dropout": config.take("attention_dropout", 0.0),
            "ff_dropout": config.take("activation_dropout", 0.0),
        }
        for theirs, ours in SIDES.items()
    }  # fmt: skip
    seconds = config.take("max_source_positions") * 2 / 100  # unless the folder says more of its frames
    sound = {"rate": RATE, "bands": config.take("num_mel_bins"), "normalise": "whisper"}
    reader = {
        "kind": "frames", "strides": STRIDES, "kernel": 3, "stack": stacks["reader"], "dropout": dropout,
        "sound": {**sound, "longest": seconds, "pad": seconds},
    }  # fmt: skip
    writer = {
        "stack": stacks["writer"], "positions": {"kind": "learned", "length": length}, "scale": False,
        "dropout": dropout, "tie": "output",
    }  # fmt: skip
    return {
        "task": "describe", "reader": reader, "writer": writer, "data": {"max_length": length},
        "predict": {"beam": 1},
    }  # fmt: skip


def whisper_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    writer: Any = recipe.writer
    values: dict[str, Any] = {
        "num_mel_bins": reader.sound.bands, "max_source_positions": states(reader), "is_encoder_decoder": True,
        "max_target_positions": longest(writer.positions, recipe),
        "d_model": writer.stack.dim, "scale_embedding": False, "dropout": writer.stack.dropout,
        "attention_dropout": writer.stack.attention_dropout,
        "activation_function": NAMED.get(writer.stack.activation, writer.stack.activation),
        "activation_dropout": writer.stack.ff_dropout, "begin_suppress_tokens": None,
    }  # fmt: skip
    for theirs, stack in (("encoder", reader.stack), ("decoder", writer.stack)):
        values |= {
            f"{theirs}_layers": stack.layers, f"{theirs}_attention_heads": stack.heads, f"{theirs}_ffn_dim": stack.ff,
        }  # fmt: skip
    return values


def states(reader: FrameReader) -> int:
    """How many a recording has, all of which are of one length."""
    return round((reader.sound.pad or 0) / reader.sound.hop) // 2


def listen(config: Config, tables: dict[str, Any]) -> None:
    """How sound becomes frames, as preprocessor_config.json says it."""
    sound = tables["reader"]["sound"]
    config.plain({"sampling_rate": RATE, "feature_size": sound["bands"], "dither": 0.0, "padding_value": 0.0})
    config.ignore(
        "feature_extractor_type", "mel_filters", "n_samples", "nb_max_frames", "padding_side", "processor_class",
        "return_attention_mask",
    )  # fmt: skip
    seconds, hop = config.take("chunk_length", sound["pad"]), config.take("hop_length", 160)
    if round(seconds * RATE / hop) // 2 != round(sound["pad"] * 100) // 2:
        raise config.refusal("chunk_length", "it makes another number of states than max_source_positions")
    sound |= {
        "longest": seconds, "pad": seconds, "hop": hop / RATE, "window": config.take("n_fft", 400) / RATE,
    }  # fmt: skip


def listened(recipe: Recipe) -> dict[str, Any]:
    """The way back."""
    sound: Any = recipe.reader.sound  # type: ignore[union-attr]
    seconds = sound.pad or sound.longest
    return {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sound.bands, "sampling_rate": sound.rate,
        "hop_length": round(sound.hop * sound.rate), "n_fft": round(sound.window * sound.rate), "padding_value": 0.0,
        "chunk_length": int(seconds) if seconds == int(seconds) else seconds, "return_attention_mask": False,
    }  # fmt: skip


def sinusoids(recipe: Recipe) -> dict[str, Tensor]:
    """Where states of sound stand; theirs keeps the numbers in a table."""
    reader: Any = recipe.reader
    where = Sinusoidal(reader.stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return {"model.encoder.embed_positions.weight": where(torch.arange(states(reader))[None])[0]}


def prompt(config: Config, core: Any) -> list[str]:
    """What stands between the start and a text: language, task, and that no times are told."""
    forced = config.take("forced_decoder_ids", None)
    several = config.take("is_multilingual", core.token_to_id("<|transcribe|>") is not None)
    asked = ["<|en|>", "<|transcribe|>"] if several and forced is None else []
    for _, number in sorted(forced or [], key=lambda pair: pair[0]):
        piece = "<|en|>" if number is None else core.id_to_token(number)
        if piece is None:
            raise config.refusal("forced_decoder_ids", f"the tokenizer has no piece {number}")
        asked.append(piece)
    silent = [] if "<|notimestamps|>" in asked else ["<|notimestamps|>"]
    return [piece for piece in [*asked, *silent] if core.token_to_id(piece) is not None]


WHISPER = Family(
    "whisper", "WhisperForConditionalGeneration", whisper_recipe, whisper_config, lambda recipe: NAMES, apart="",
    copies={"proj_out.weight": "model.decoder.embed_tokens.weight"}, reader="frames", sense=listen, senses=listened,
    fixed=sinusoids, prompt=prompt,
)  # fmt: skip
