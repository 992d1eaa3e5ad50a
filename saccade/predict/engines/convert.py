"""A model of ours as one of CTranslate2: the same weights under its names. What it cannot express is refused."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.config.schema import Recipe
from saccade.config.stacks import EPSILON
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.model.model import Model

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "sigmoid": "Sigmoid"}
SPECIAL = {START: "<s>", END: "</s>", UNKNOWN: "<unk>"}
MADE_FROM = "made_from"  # a file beside the model: the hash of the weights that it was made from


class Part(NamedTuple):
    """One side of a recipe, of our own kinds."""

    side: schema.TokenReader | schema.TokenWriter
    stack: schema.TransformerStack


def expressible(recipe: Recipe) -> tuple[Part, Part]:
    """Reader and writer; a recipe with something that CTranslate2 does not have is refused, by the setting's name."""
    parts = []
    for side, part in (("reader", recipe.reader), ("writer", recipe.writer)):
        if not isinstance(part, schema.TokenReader | schema.TokenWriter | Custom):
            raise _refusal(f"{side}.kind = {part.kind!r}")
        if isinstance(part, Custom) or isinstance(part.stack, Custom):
            raise _refusal(f"a {side} of your own kind")
        if not isinstance(part.stack, schema.TransformerStack):
            raise _refusal(f"{side}.stack.kind = {part.stack.kind!r}")
        if not isinstance(part.positions, schema.Sinusoidal | schema.Learned):
            raise _refusal(f"{side}.positions.kind = {part.positions.kind!r}")
        if part.positions.how != "add":
            raise _refusal(f"{side}.positions.how = {part.positions.how!r}")
        expected = {
            "heads_form": "paper", "window": None, "scale": True, "residual": True, "head_dim": None, "kv_heads": None
        }  # fmt: skip
        for name, wanted in expected.items():
            if (value := getattr(part.stack, name)) != wanted:
                raise _refusal(f"{side}.stack.{name} = {value!r}")
        for name in ("embedding_norm", "output_scale"):
            if getattr(part, name, False):
                raise _refusal(f"{side}.{name} = true")
        if part.stack.experts is not None:
            raise _refusal(f"{side}.stack.experts")
        for name, unknown in (("ff", 0), ("norm", "none")):
            if getattr(part.stack, name) == unknown:
                raise _refusal(f"{side}.stack.{name} = {unknown!r}")
        parts.append(Part(part, part.stack))
    reader, writer = parts
    if reader.stack.norm_kind != writer.stack.norm_kind:
        raise _refusal("two kinds of norm (reader.stack.norm_kind and writer.stack.norm_kind)")
    if reader.stack.norm_epsilon != writer.stack.norm_epsilon:
        raise _refusal("two values of norm_epsilon (reader.stack and writer.stack)")
    return reader, writer


def _refusal(what: str) -> SaccadeError:
    return SaccadeError(f"CTranslate2 cannot express {what}; use engine torch")


def convert(model: Model, recipe: Recipe, sizes: tuple[int, int], folder: Path, *, made_from: str) -> None:
    """Writes the model, with plain weights, into a folder, which is whole or absent."""
    from ctranslate2.specs import TransformerSpec

    reader, writer = expressible(recipe)
    spec = TransformerSpec(*_sides(model, reader, writer, longest=recipe.data.max_length))
    for register, size in zip((spec.register_source_vocabulary, spec.register_target_vocabulary), sizes, strict=True):
        register([SPECIAL.get(i, str(i)) for i in range(size)])
    spec.config.decoder_start_token = SPECIAL[START]
    spec.config.layer_norm_epsilon = reader.stack.norm_epsilon or EPSILON[reader.stack.norm_kind]
    spec.validate()
    spec.optimize(quantization=None)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        spec.save(str(temporary))
        (temporary / MADE_FROM).write_text(made_from)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise SaccadeError(f"cannot write {folder}: {error.strerror or error}; use engine torch") from None


def _sides(model: Model, reader: Part, writer: Part, *, longest: int) -> tuple[Any, Any]:
    """Encoder and decoder in CTranslate2's terms."""
    from ctranslate2.specs import Activation, TransformerDecoderSpec, TransformerEncoderSpec

    sides: list[Any] = []
    for make, (part, stack), made in (
        (TransformerEncoderSpec, reader, model.reader),
        (TransformerDecoderSpec, writer, model.writer),
    ):
        side = make(
            stack.layers, stack.heads, pre_norm=stack.norm == "pre", rms_norm=stack.norm_kind == "rms",
            ffn_glu=stack.gated, activation=Activation[ACTIVATIONS[stack.activation]],
        )  # fmt: skip
        embeddings = side.embeddings if sides else side.embeddings[0]  # a source may have several
        ids = torch.arange(made.embedding.tokens.num_embeddings)
        embeddings.weight = _numbers(made.embedding.tokens.weight[made.embedding.rows(ids)])
        side.scale_embeddings = part.scale
        places = torch.arange(longest + 1)[None]
        if isinstance(part.positions, schema.Learned):
            places = places[:, : part.positions.length]
        side.position_encodings.encodings = _numbers(made.embedding.positions(places)[0])
        for layer, block in zip(side.layer, made.stack.blocks, strict=True):
            _fill_layer(layer, block)
        if stack.norm == "pre":
            _fill_norm(side.layer_norm, made.stack.norm)
        sides.append(side)
    _fill_linear(sides[1].projection, model.writer.output.weight, model.writer.output.bias)
    return sides[0], sides[1]


def _fill_layer(layer: Any, block: Any) -> None:
    """One block: attention, attention to memory, feed-forward, each with its norm."""
    first, *middle, last = block.residuals
    _fill_heads(layer.self_attention.linear[0], block.self.project)
    _fill_linear(layer.self_attention.linear[1], block.self.heads.out.weight, block.self.heads.out.bias)
    _fill_norm(layer.self_attention.layer_norm, first.norm)
    if block.cross is not None:
        _fill_heads(layer.attention.linear[0], block.cross.query)
        _fill_heads(layer.attention.linear[1], block.cross.memory)
        _fill_linear(layer.attention.linear[2], block.cross.heads.out.weight, block.cross.heads.out.bias)
        _fill_norm(layer.attention.layer_norm, middle[0].norm)
    forward = block.feedforward
    _fill_linear(layer.ffn.linear_0, forward.up.weight, forward.up.bias)
    if forward.gate is not None:
        _fill_linear(layer.ffn.linear_0_noact, forward.gate.weight, forward.gate.bias)
    _fill_linear(layer.ffn.linear_1, forward.down.weight, forward.down.bias)
    _fill_norm(layer.ffn.layer_norm, last.norm)


def _fill_heads(linear: Any, projection: Any) -> None:
    """Our rows go head by head, theirs part by part: all queries, all keys, all values."""
    weight = projection.weight.transpose(0, 1).flatten(0, 2)
    _fill_linear(linear, weight, None if projection.bias is None else projection.bias.transpose(0, 1).flatten())


def _fill_linear(linear: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    linear.weight = _numbers(weight)
    if bias is not None:
        linear.bias = _numbers(bias)


def _fill_norm(target: Any, norm: nn.Module) -> None:
    target.gamma = _numbers(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        target.beta = _numbers(norm.bias)


def _numbers(tensor: Any) -> np.ndarray:
    return tensor.detach().float().cpu().contiguous().numpy()
