"""Whisper (Radford et al. 2022): speech to text; two convolutions, sinusoids, pre-norm blocks, keys without bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import FrameReader, Recipe
from saccade.exchange.families.bart import SIDES
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
    VocabularyMapping,
    get_max_length,
    map_tensor,
)
from saccade.layers.attention.positions import Sinusoidal

SAMPLE_RATE = 16_000  # Hz; its mel filters reach up to half of it
STRIDES = (1, 2)
DEFAULTS = {
    "num_mel_bins": 80, "activation_function": "gelu", "max_source_positions": 1500, "max_target_positions": 448,
    "pad_token_id": 50256, "bos_token_id": 50256, "eos_token_id": 50256, "decoder_start_token_id": 50257,
}  # fmt: skip
SPEC_AUGMENT_KEYS = ("length", "min_masks", "prob")  # suffixes of the keys for SpecAugment


def _insert_key_bias(theirs: Sequence[Tensor], shape: Sequence[int], mapping: VocabularyMapping) -> Tensor:
    parts = [one.unflatten(0, (shape[0], -1)) for one in theirs]
    return torch.stack([*parts[:-1], torch.zeros_like(parts[-1]), parts[-1]], 1)


# Biases of queries, keys and values. A bias of the keys adds the same to all scores of a query, which the softmax
# cancels; therefore ours need not be exported.
BIAS_WITHOUT_KEYS = TensorConversion(
    _insert_key_bias,
    lambda ours, mapping: [one.flatten() for i, one in enumerate(ours.unbind(1)) if i != ours.shape[1] - 2],
)


def map_attention(ours: str, theirs: str) -> dict[str, Any]:
    """Map the tensors of one attention; cross-attention stores queries apart from keys and values."""
    if ours == "self":
        projections: dict[str, str] = {"project": "qkv"}
    else:
        projections = {"query": "q", "memory": "kv"}
    names: dict[str, Any] = {f"{ours}.heads.out": map_tensor(IDENTITY, f"{theirs}.out_proj")}
    for name, letters in projections.items():
        biased = [f"{theirs}.{x}_proj.bias" for x in letters if x != "k"]
        names[f"{ours}.{name}.weight"] = map_tensor(HEADS, *(f"{theirs}.{x}_proj.weight" for x in letters))
        names[f"{ours}.{name}.bias"] = map_tensor(BIAS_WITHOUT_KEYS if "k" in letters else HEADS, *biased)
    return names


def map_side(theirs: str, ours: str) -> TensorMap:
    layer, last = f"model.{theirs}.layers.{{}}", 1 if ours == "reader" else 2
    inside = {
        **map_attention("self", f"{layer}.self_attn"), **map_attention("cross", f"{layer}.encoder_attn"),
        "feedforward.up": map_tensor(IDENTITY, f"{layer}.fc1"),
        "feedforward.down": map_tensor(IDENTITY, f"{layer}.fc2"),
        "residuals.0.norm": map_tensor(IDENTITY, f"{layer}.self_attn_layer_norm"),
        "residuals.1.norm": map_tensor(IDENTITY, f"{layer}.encoder_attn_layer_norm"),
        f"residuals.{last}.norm": map_tensor(IDENTITY, f"{layer}.final_layer_norm"),
    }  # fmt: skip
    return {
        f"{ours}.stack.norm": map_tensor(IDENTITY, f"model.{theirs}.layer_norm"),
        **{f"{ours}.stack.blocks.{{}}.{name}": value for name, value in inside.items()},
    }


TENSOR_MAP: TensorMap = {
    **{f"reader.stem.layers.{i}": map_tensor(IDENTITY, f"model.encoder.conv{i + 1}") for i in range(len(STRIDES))},
    **map_side("encoder", "reader"),
    **map_side("decoder", "writer"),
    "writer.embedding.tokens.weight": map_tensor(TOKEN_ROWS, "model.decoder.embed_tokens.weight"),
    "writer.embedding.positions.table": map_tensor(IDENTITY, "model.decoder.embed_positions"),
    "writer.output.bias": map_tensor(NO_OUTPUT_BIAS),
}


def build_whisper_recipe(config: Config) -> dict[str, Any]:
    config.require({"scale_embedding": False, "tie_word_embeddings": True, "use_weighted_layer_sum": False})
    config.ignore(
        "apply_spec_augment", "begin_suppress_tokens", "classifier_proj_size", "median_filter_width",
        "suppress_tokens", *(f"mask_{kind}_{x}" for kind in ("time", "feature") for x in SPEC_AUGMENT_KEYS),
    )  # fmt: skip
    length, dropout = config.take("max_target_positions"), config.take("dropout", 0.0)
    stacks = {
        ours: {
            "layers": config.take(f"{theirs}_layers"), "dim": config.take("d_model"), "norm": "pre",
            "heads": config.take(f"{theirs}_attention_heads"), "ff": config.take(f"{theirs}_ffn_dim"),
            "activation": config.take_choice("activation_function", ACTIVATIONS), "dropout": dropout,
            "attention_dropout": config.take("attention_dropout", 0.0),
            "ff_dropout": config.take("activation_dropout", 0.0),
        }
        for theirs, ours in SIDES.items()
    }  # fmt: skip
    # 100 frames per second, 2 per state; preprocessor_config.json overrides it
    seconds = config.take("max_source_positions") * 2 / 100
    sound = {"sample_rate": SAMPLE_RATE, "mel_bands": config.take("num_mel_bins"), "normalize": "whisper"}
    reader = {
        "kind": "frames", "strides": STRIDES, "kernel": 3, "stack": stacks["reader"], "dropout": dropout,
        "sound": {**sound, "max_seconds": seconds, "pad_seconds": seconds},
    }  # fmt: skip
    writer = {
        "stack": stacks["writer"], "positions": {"kind": "learned", "length": length}, "scale_embedding": False,
        "dropout": dropout, "tie": "output",
    }  # fmt: skip
    return {
        "task": "media-to-text", "reader": reader, "writer": writer, "data": {"max_length": length},
        "predict": {"beam": 1},
    }  # fmt: skip


def build_whisper_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    writer: Any = recipe.writer
    values: dict[str, Any] = {
        "num_mel_bins": reader.sound.mel_bands, "max_source_positions": count_states(reader),
        "is_encoder_decoder": True,
        "max_target_positions": get_max_length(writer.positions, recipe),
        "d_model": writer.stack.dim, "scale_embedding": False, "dropout": writer.stack.dropout,
        "attention_dropout": writer.stack.attention_dropout,
        "activation_function": ACTIVATION_NAMES.get(writer.stack.activation, writer.stack.activation),
        "activation_dropout": writer.stack.ff_dropout, "begin_suppress_tokens": None,
    }  # fmt: skip
    for theirs, stack in (("encoder", reader.stack), ("decoder", writer.stack)):
        values |= {
            f"{theirs}_layers": stack.layers, f"{theirs}_attention_heads": stack.heads, f"{theirs}_ffn_dim": stack.ff,
        }  # fmt: skip
    return values


def count_states(reader: FrameReader) -> int:
    """Return the number of encoder states of a recording; all are padded to the same length."""
    return round((reader.sound.pad_seconds or 0) / reader.sound.hop) // 2


def read_feature_extractor(config: Config, tables: dict[str, Any]) -> None:
    """Add the settings of preprocessor_config.json (mel spectrogram) to the reader's table."""
    sound = tables["reader"]["sound"]
    config.require(
        {"sampling_rate": SAMPLE_RATE, "feature_size": sound["mel_bands"], "dither": 0.0, "padding_value": 0.0}
    )
    config.ignore(
        "feature_extractor_type", "mel_filters", "n_samples", "nb_max_frames", "padding_side", "processor_class",
        "return_attention_mask",
    )  # fmt: skip
    seconds, hop = config.take("chunk_length", sound["pad_seconds"]), config.take("hop_length", 160)
    if round(seconds * SAMPLE_RATE / hop) // 2 != round(sound["pad_seconds"] * 100) // 2:
        raise config.build_error("chunk_length", "it does not match max_source_positions")
    sound |= {
        "max_seconds": seconds, "pad_seconds": seconds, "hop": hop / SAMPLE_RATE,
        "window": config.take("n_fft", 400) / SAMPLE_RATE,
    }  # fmt: skip


def build_feature_extractor(recipe: Recipe) -> dict[str, Any]:
    """Build preprocessor_config.json."""
    sound: Any = recipe.reader.sound  # type: ignore[union-attr]
    seconds = sound.pad_seconds or sound.max_seconds
    return {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sound.mel_bands,
        "sampling_rate": sound.sample_rate,
        "hop_length": round(sound.hop * sound.sample_rate), "n_fft": round(sound.window * sound.sample_rate),
        "padding_value": 0.0,
        "chunk_length": int(seconds) if seconds == int(seconds) else seconds, "return_attention_mask": False,
    }  # fmt: skip


def compute_sinusoids(recipe: Recipe) -> dict[str, Tensor]:
    """Compute the encoder's sinusoidal positions, which Whisper stores as a tensor."""
    reader: Any = recipe.reader
    positions = Sinusoidal(reader.stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return {"model.encoder.embed_positions.weight": positions(torch.arange(count_states(reader))[None])[0]}


def get_prompt(config: Config, core: Any) -> list[str]:
    """Return the tokens between the start token and a text: language, task, and <|notimestamps|>."""
    forced = config.take("forced_decoder_ids", None)
    is_multilingual = config.take("is_multilingual", core.token_to_id("<|transcribe|>") is not None)
    tokens = ["<|en|>", "<|transcribe|>"] if is_multilingual and forced is None else []
    for _, token_id in sorted(forced or [], key=lambda pair: pair[0]):
        token = "<|en|>" if token_id is None else core.id_to_token(token_id)
        if token is None:
            raise config.build_error("forced_decoder_ids", f"the tokenizer has no token {token_id}")
        tokens.append(token)
    no_times = [] if "<|notimestamps|>" in tokens else ["<|notimestamps|>"]
    return [token for token in [*tokens, *no_times] if core.token_to_id(token) is not None]


WHISPER = Family(
    "whisper",
    "WhisperForConditionalGeneration",
    build_whisper_recipe,
    build_whisper_config,
    lambda recipe: TENSOR_MAP,
    untied="",
    duplicates={"proj_out.weight": "model.decoder.embed_tokens.weight"},
    reader_kind="frames",
    read_preprocessor=read_feature_extractor,
    to_preprocessor=build_feature_extractor,
    compute_constants=compute_sinusoids,
    get_prompt=get_prompt,
    defaults=DEFAULTS,
)
