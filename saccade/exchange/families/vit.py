"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder of patches, with one more state before them that says the class."""

from __future__ import annotations

from math import isqrt
from typing import Any

from saccade.config.schema import Recipe
from saccade.exchange.families.family import ACTIVATIONS, HEADS, NAMED, SAME, Config, Family, Form, Names, part
from saccade.exchange.families.heads import kind_of_text_labels

LABELS, STATES = "ViTForImageClassification", "ViTModel"
LAYER = "vit.encoder.layer.{}"
FIRST = Form(lambda given, shape, numbering: given[0][0, 0], lambda ours, numbering: [ours[None, None]])
TABLE = Form(lambda given, shape, numbering: given[0][0], lambda ours, numbering: [ours[None]])
PATCHES = Form(  # a convolution whose steps are as long as its kernel is wide
    lambda given, shape, numbering: given[0].flatten(1),
    lambda ours, numbering: [ours.unflatten(1, (3, *(isqrt(ours.shape[1] // 3),) * 2))],
)
NAMES: Names = {
    "reader.first": part(FIRST, "vit.embeddings.cls_token"),
    "reader.positions.table.weight": part(TABLE, "vit.embeddings.position_embeddings"),
    "reader.cells.project.weight": part(PATCHES, "vit.embeddings.patch_embeddings.projection.weight"),
    "reader.cells.project.bias": part(SAME, "vit.embeddings.patch_embeddings.projection.bias"),
    "reader.stack.blocks.{}.self.project": part(
        HEADS, *(f"{LAYER}.attention.attention.{name}" for name in ("query", "key", "value"))
    ),
    "reader.stack.blocks.{}.self.heads.out": part(SAME, f"{LAYER}.attention.output.dense"),
    "reader.stack.blocks.{}.residuals.0.norm": part(SAME, f"{LAYER}.layernorm_before"),
    "reader.stack.blocks.{}.residuals.1.norm": part(SAME, f"{LAYER}.layernorm_after"),
    "reader.stack.blocks.{}.feedforward.up": part(SAME, f"{LAYER}.intermediate.dense"),
    "reader.stack.blocks.{}.feedforward.down": part(SAME, f"{LAYER}.output.dense"),
    "reader.stack.norm": part(SAME, "vit.layernorm"),
    "writer.output": part(SAME, "classifier"),
    "writer.hidden": part(SAME, "vit.pooler.dense"),
}
SIDES = ("height", "width")
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers
COLOURS = [0.5, 0.5, 0.5]  # mean and deviation that it has where a folder says none


def vit_recipe(config: Config) -> dict[str, Any]:
    config.plain({"num_channels": 3, "qkv_bias": True})
    config.ignore("encoder_stride")  # of a head that draws pictures
    dropout, sides = config.take("hidden_dropout_prob", 0.0), config.take("image_size")
    high, wide = sides if isinstance(sides, list) else (sides, sides)
    stack = {
        "layers": config.take("num_hidden_layers"), "dim": config.take("hidden_size"), "norm": "pre",
        "heads": config.take("num_attention_heads"), "ff": config.take("intermediate_size"), "dropout": dropout,
        "activation": config.among("hidden_act", ACTIVATIONS), "norm_epsilon": config.take("layer_norm_eps", 1e-12),
        "attention_dropout": config.take("attention_probs_dropout_prob", 0.0),
    }  # fmt: skip
    reader = {
        "kind": "patches", "size": high, "width": None if wide == high else wide, "patch": config.take("patch_size"),
        "stack": stack, "dropout": dropout,
    }  # fmt: skip
    if STATES in (config.values.get("architectures") or [LABELS]):
        config.plain({"pooler_act": "tanh", "pooler_output_size": stack["dim"]})
        return {
            "task": "encode",
            "reader": reader,
            "writer": {"kind": "states", "pool": True},
            "objectives": [{"kind": "masked"}],
        }
    if config.take("problem_type", None) == "multi_label_classification" or kind_of_text_labels(config) == "number":
        raise config.refusal("problem_type", "a picture has one label here, one of several")
    config.ignore("pooler_act", "pooler_output_size")
    writer = {"kind": "label", "pooling": "first", "dropout": 0.0}
    return {"task": "label", "reader": reader, "writer": writer, "objectives": [{"kind": "label"}]}


def by_tensors(tables: dict[str, Any], tensors: Any) -> None:
    """Whether a folder without a head has a layer for the first state."""
    if tables["writer"]["kind"] == "states":
        tables["writer"]["pool"] = "vit.pooler.dense.weight" in tensors


def vit_config(recipe: Recipe) -> dict[str, Any]:
    reader: Any = recipe.reader
    stack, (high, wide) = reader.stack, reader.sides
    return {
        "architectures": [LABELS if recipe.task.predicts_labels else STATES], "hidden_size": stack.dim,
        "num_hidden_layers": stack.layers, "num_attention_heads": stack.heads, "intermediate_size": stack.ff,
        "hidden_act": NAMED.get(stack.activation, stack.activation), "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout, "layer_norm_eps": stack.norm_epsilon or 1e-5,
        "image_size": high if high == wide else [high, wide], "patch_size": reader.patch, "num_channels": 3,
        "qkv_bias": True,
    }  # fmt: skip


def see(config: Config, tables: dict[str, Any]) -> None:
    """How a file becomes numbers, as preprocessor_config.json says it."""
    reader = tables["reader"]
    sides = [reader["size"], reader["width"] or reader["size"]]
    config.plain({"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255})
    config.ignore(
        "crop_size", "data_format", "do_convert_rgb", "feature_extractor_type", "image_processor_type",
        "processor_class",
    )  # fmt: skip
    size, middle = sides_of(config, "size", sides), config.take("do_center_crop", False)
    cut = sides_of(config, "crop_size", sides) if middle else size
    margins = {there - here for there, here in zip(size if len(size) > 1 else size * 2, sides, strict=True)}
    margin = max(margins)
    if cut != tuple(sides) or len(margins) > 1 or margin < 0 or margin % 2:
        raise config.refusal("size", f"only pictures that become {sides[0]} x {sides[1]} in the end can be read")
    reader |= {
        "fit": "crop" if len(size) == 1 else "stretch", "margin": margin // 2,
        "resample": config.among("resample", RESAMPLE, 2), "mean": config.take("image_mean", COLOURS),
        "std": config.take("image_std", COLOURS),
    }  # fmt: skip


def sides_of(config: Config, key: str, default: list[int]) -> tuple[int, ...]:
    """Height and width, or the shorter one of them alone; those of what is read where the key is not there."""
    size = config.take(key, dict(zip(SIDES, default, strict=True)))
    if not isinstance(size, dict):
        return size, size
    for names in (SIDES, ("shortest_edge",)):
        if set(size) == set(names):
            return tuple(size[name] for name in names)
    raise config.refusal(key, f"expected {' and '.join(SIDES)}, or shortest_edge")


def seen(recipe: Recipe) -> dict[str, Any]:
    """The way back."""
    reader: Any = recipe.reader
    high, wide = reader.sides
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
        **fit, "do_resize": True, "resample": {name: number for number, name in RESAMPLE.items()}[reader.resample],
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(reader.mean),
        "image_std": list(reader.std),
    }  # fmt: skip


VIT = Family(
    "vit", LABELS, vit_recipe, vit_config, lambda recipe: NAMES, others=(STATES,), encodes=True, prefix="vit.",
    reader="patches", texts=False, sense=see, senses=seen, look=by_tensors,
)  # fmt: skip
