"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder of patches with a class token."""

from __future__ import annotations

from math import isqrt
from typing import Any

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
    map_tensor,
)
from saccade.exchange.families.heads import find_label_kind

CLASSIFIER, ENCODER = "ViTForImageClassification", "ViTModel"
LAYER = "vit.encoder.layer.{}"
CLASS_TOKEN = TensorConversion(lambda theirs, shape, mapping: theirs[0][0, 0], lambda ours, mapping: [ours[None, None]])
POSITION_TABLE = TensorConversion(lambda theirs, shape, mapping: theirs[0][0], lambda ours, mapping: [ours[None]])
PATCH_PROJECTION = TensorConversion(  # a convolution whose stride equals its kernel size
    lambda theirs, shape, mapping: theirs[0].flatten(1),
    lambda ours, mapping: [ours.unflatten(1, (3, *(isqrt(ours.shape[1] // 3),) * 2))],
)
TENSOR_MAP: TensorMap = {
    "reader.first": map_tensor(CLASS_TOKEN, "vit.embeddings.cls_token"),
    "reader.positions.table.weight": map_tensor(POSITION_TABLE, "vit.embeddings.position_embeddings"),
    "reader.cells.project.weight": map_tensor(PATCH_PROJECTION, "vit.embeddings.patch_embeddings.projection.weight"),
    "reader.cells.project.bias": map_tensor(IDENTITY, "vit.embeddings.patch_embeddings.projection.bias"),
    "reader.stack.blocks.{}.self.project": map_tensor(
        HEADS, *(f"{LAYER}.attention.attention.{name}" for name in ("query", "key", "value"))
    ),
    "reader.stack.blocks.{}.self.heads.out": map_tensor(IDENTITY, f"{LAYER}.attention.output.dense"),
    "reader.stack.blocks.{}.residuals.0.norm": map_tensor(IDENTITY, f"{LAYER}.layernorm_before"),
    "reader.stack.blocks.{}.residuals.1.norm": map_tensor(IDENTITY, f"{LAYER}.layernorm_after"),
    "reader.stack.blocks.{}.feedforward.up": map_tensor(IDENTITY, f"{LAYER}.intermediate.dense"),
    "reader.stack.blocks.{}.feedforward.down": map_tensor(IDENTITY, f"{LAYER}.output.dense"),
    "reader.stack.norm": map_tensor(IDENTITY, "vit.layernorm"),
    "writer.output": map_tensor(IDENTITY, "classifier"),
    "writer.hidden": map_tensor(IDENTITY, "vit.pooler.dense"),
}
DEFAULTS = {"hidden_act": "gelu", "image_size": 224, "patch_size": 16}
SIDES = ("height", "width")
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's constants
DEFAULT_MEAN_STD = [0.5, 0.5, 0.5]  # default image_mean and image_std


def build_vit_recipe(config: Config) -> dict[str, Any]:
    config.require({"num_channels": 3, "qkv_bias": True})
    config.ignore("encoder_stride")  # of the masked image modelling head
    dropout, sides = config.take("hidden_dropout_prob", 0.0), config.take("image_size")
    high, wide = sides if isinstance(sides, list) else (sides, sides)
    patch = config.take("patch_size")
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": config.take("hidden_size"), "norm": "pre",
        "heads": config.take("num_attention_heads"), "ff": config.take("intermediate_size"), "dropout": dropout,
        "activation": config.take_choice("hidden_act", ACTIVATIONS),
        "norm_epsilon": config.take("layer_norm_eps", 1e-12),
        "attention_dropout": config.take("attention_probs_dropout_prob", 0.0),
    }  # fmt: skip
    reader = {
        "kind": "patches", "size": high, "width": None if wide == high else wide,
        "patch_size": patch[0] if isinstance(patch, list) and len(set(patch)) == 1 else patch,
        "stack": stack, "dropout": dropout,
    }  # fmt: skip
    if ENCODER in (config.values.get("architectures") or [CLASSIFIER]):
        config.require({"pooler_act": "tanh", "pooler_output_size": stack["dim"]})
        return {
            "task": "encode",
            "reader": reader,
            "writer": {"kind": "states", "pooler": True},
            "objectives": [{"kind": "masked"}],
        }
    if config.take("problem_type", None) == "multi_label_classification" or find_label_kind(config) == "number":
        raise config.build_error("problem_type", "only one of several classes per picture is supported")
    config.ignore("pooler_act", "pooler_output_size")
    writer = {"kind": "label", "pooling": "first", "dropout": 0.0}
    return {"task": "classify", "reader": reader, "writer": writer, "objectives": [{"kind": "label"}]}


def detect_pooler(tables: dict[str, Any], tensors: Any) -> None:
    """Set whether the folder of a model without a head contains the pooler."""
    if tables["writer"]["kind"] == "states":
        tables["writer"]["pooler"] = "vit.pooler.dense.weight" in tensors


def build_vit_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    stack, (high, wide) = reader.stack, reader.image_shape
    return {
        "architectures": [CLASSIFIER if recipe.task.predicts_labels else ENCODER], "hidden_size": stack.dim,
        "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads, "intermediate_size": stack.ff,
        "hidden_act": ACTIVATION_NAMES.get(stack.activation, stack.activation), "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout, "layer_norm_eps": stack.norm_epsilon or 1e-5,
        "image_size": high if high == wide else [high, wide], "patch_size": reader.patch_size, "num_channels": 3,
        "qkv_bias": True,
    }  # fmt: skip


def read_image_processor(config: Config, tables: dict[str, Any]) -> None:
    """Add the preprocessing of preprocessor_config.json (resize, crop, normalize) to the reader's table."""
    reader = tables["reader"]
    sides = [reader["size"], reader["width"] or reader["size"]]
    config.require({"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255})
    config.ignore(
        "crop_size", "data_format", "do_convert_rgb", "feature_extractor_type", "image_processor_type",
        "processor_class",
    )  # fmt: skip
    size, middle = get_image_size(config, "size", sides), config.take("do_center_crop", False)
    cut = get_image_size(config, "crop_size", sides) if middle else size
    margins = {there - here for there, here in zip(size if len(size) > 1 else size * 2, sides, strict=True)}
    margin = max(margins)
    if cut != tuple(sides) or len(margins) > 1 or margin < 0 or margin % 2:
        raise config.build_error("size", f"expected preprocessing that yields {sides[0]} x {sides[1]} pixels")
    reader |= {
        "fit": "crop" if len(size) == 1 else "stretch", "margin": margin // 2,
        "resample": config.take_choice("resample", RESAMPLE, 2), "mean": config.take("image_mean", DEFAULT_MEAN_STD),
        "std": config.take("image_std", DEFAULT_MEAN_STD),
    }  # fmt: skip


def get_image_size(config: Config, key: str, default: list[int]) -> tuple[int, ...]:
    """Return (height, width), or (shortest_edge,); a missing key means `default`."""
    size = config.take(key, dict(zip(SIDES, default, strict=True)))
    if not isinstance(size, dict):
        return size, size
    for names in (SIDES, ("shortest_edge",)):
        if set(size) == set(names):
            return tuple(size[name] for name in names)
    raise config.build_error(key, f"expected {' and '.join(SIDES)}, or shortest_edge")


def build_image_processor(recipe: Recipe) -> dict[str, Any]:
    """Build preprocessor_config.json."""
    reader: Any = recipe.reader
    high, wide = reader.image_shape
    more, whole = 2 * reader.margin, {"height": high, "width": wide}
    fit: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "size": whole}
    if more:
        larger = {name: pixels + more for name, pixels in whole.items()}
        fit = {"image_processor_type": "DeiTImageProcessor", "size": larger, "do_center_crop": True, "crop_size": whole}
    if reader.fit == "crop" and high == wide:
        shorter = {"shortest_edge": high + more}
        fit = {
            "image_processor_type": "CLIPImageProcessor",
            "size": shorter,
            "do_center_crop": True,
            "crop_size": whole,
        }
    return {
        **fit, "do_resize": True, "resample": {name: constant for constant, name in RESAMPLE.items()}[reader.resample],
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(reader.mean),
        "image_std": list(reader.std),
    }  # fmt: skip


VIT = Family(
    "vit",
    CLASSIFIER,
    build_vit_recipe,
    build_vit_config,
    lambda recipe: TENSOR_MAP,
    other_architectures=(ENCODER,),
    is_encoder_only=True,
    prefix="vit.",
    reader_kind="patches",
    uses_text=False,
    read_preprocessor=read_image_processor,
    to_preprocessor=build_image_processor,
    refine_recipe=detect_pooler,
    defaults=DEFAULTS,
)
