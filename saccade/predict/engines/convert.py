"""Convert a model to CTranslate2: the same weights under its names. What it cannot express is refused."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from saccade.config import schema
from saccade.config.kinds import OwnKind
from saccade.config.schema import Recipe
from saccade.config.stacks import DEFAULT_NORM_EPSILON
from saccade.config.table import Table
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.model.model import Model

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "sigmoid": "Sigmoid"}
SPECIAL_TOKENS = {START: "<s>", END: "</s>", UNKNOWN: "<unk>"}
SOURCE_HASH_FILE = "made_from"  # a file beside the converted model, with `describe_conversion` of the run
CONVERSION = "2"  # to be changed with the form of converted models, which are then converted anew


class SideConfig(NamedTuple):
    """The configuration of a reader or writer, and of its Transformer stack."""

    side: schema.TokenReader | schema.TokenWriter
    stack: schema.TransformerStack


# Keys whose every value is in the converted weights or in the specification, and keys that act in training only. Any
# other key, a new one too, must have the value that leaves the model as it is, see `check_neutral`.
CONVERTED_KEYS: dict[type[Table], set[str]] = {
    schema.TokenReader: {"kind", "stack", "positions", "scale_embedding"},
    schema.TokenWriter: {
        "kind", "stack", "positions", "scale_embedding", "tie", "start_token", "output_bias",
        "ctc",  # acts only with ctc_weight, which the engine refuses
    },
    schema.TransformerStack: {
        "kind", "layers", "dim", "heads", "ff", "norm", "norm_kind", "norm_epsilon", "activation", "gated", "bias",
        "attention_bias", "share_layers", "chunks",  # chunks are for "local" and "lsh" attention only
    },
    schema.Sinusoidal: {"kind", "layout", "frequencies"},
    schema.Learned: {"kind", "length"},
}  # fmt: skip
TRAINING_KEYS = {"dropout", "attention_dropout", "ff_dropout", "drop_path", "init"}


def check_convertible(recipe: Recipe) -> tuple[SideConfig, SideConfig]:
    """Return the configurations of reader and writer; refuse, by name, settings that CTranslate2 does not have."""
    parts = []
    for side, table, part in (
        ("reader", recipe.reader, recipe.reader.text),
        ("writer", recipe.writer, recipe.writer.tokens),
    ):
        if table.is_custom or (part is not None and part.stack.is_custom):
            raise _refusal(f"a {side} of your own kind")
        if part is None:
            raise _refusal(f"{side}.kind = {table.kind!r}")
        check_neutral(part, side)
        check_neutral(part.stack, f"{side}.stack")
        check_neutral(part.positions, f"{side}.positions")
        stack = part.stack.transformer
        assert stack is not None, "only Transformer stacks have CONVERTED_KEYS"
        for name, value in (("ff", 0), ("norm", "none")):
            if getattr(stack, name) == value:
                raise _refusal(f"{side}.stack.{name} = {value!r}")
        if stack.activation not in ACTIVATIONS:
            raise _refusal(f"{side}.stack.activation = {stack.activation!r}")
        parts.append(SideConfig(part, stack))
    reader, writer = parts
    if reader.stack.norm_kind != writer.stack.norm_kind:
        raise _refusal("two kinds of norm (reader.stack.norm_kind and writer.stack.norm_kind)")
    if reader.stack.norm_epsilon != writer.stack.norm_epsilon:
        raise _refusal("two values of norm_epsilon (reader.stack and writer.stack)")
    return reader, writer


def check_neutral(table: Any, address: str) -> None:
    """Refuse a kind of table without CONVERTED_KEYS, and keys outside of them that are not at their default.

    Both are compared as trained: `head_dim = 64` is the default where it is `dim / heads`.
    """
    converted = CONVERTED_KEYS.get(type(table))
    if converted is None:
        raise _refusal(f"{address}.kind = {table.kind!r}")
    default = type(table)(**{key: getattr(table, key) for key in converted}).to_trained_form()
    trained = table.to_trained_form()
    for key in (one for one in type(table).model_fields if one not in converted | TRAINING_KEYS):
        if getattr(trained, key) != getattr(default, key):
            raise _refusal(f"{address}.{key} = {_format_value(getattr(table, key))}")


def _format_value(value: Any) -> str:
    """Format a value as in a recipe; of a table, its kind."""
    if isinstance(value, Table | OwnKind):
        return repr(value.kind) if hasattr(value, "kind") else "{ ... }"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _refusal(what: str) -> SaccadeError:
    return SaccadeError(f"CTranslate2 cannot express {what}; use engine torch")


def describe_conversion(recipe: Recipe, weights_hash: str) -> str:
    """Hash all that a converted model depends on: the weights, the recipe, and how they are converted."""
    parts = (
        CONVERSION,
        weights_hash,
        str(recipe.data.max_length),
        *(part.model_dump_json() for part in (recipe.reader, recipe.writer)),
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def convert(model: Model, recipe: Recipe, sizes: tuple[int, int], folder: Path, *, made_from: str) -> None:
    """Convert the model, whose weights are not packed, into a folder; on errors the folder is not created.

    `made_from` is kept with it, see `describe_conversion`.
    """
    from ctranslate2.specs import TransformerSpec

    reader, writer = check_convertible(recipe)
    spec = TransformerSpec(*_build_specs(model, reader, writer, max_length=recipe.data.max_length))
    for register, size in zip((spec.register_source_vocabulary, spec.register_target_vocabulary), sizes, strict=True):
        register([SPECIAL_TOKENS.get(i, str(i)) for i in range(size)])
    spec.config.decoder_start_token = SPECIAL_TOKENS[START]
    spec.config.layer_norm_epsilon = reader.stack.norm_epsilon or DEFAULT_NORM_EPSILON[reader.stack.norm_kind]
    spec.validate()
    spec.optimize(quantization=None)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        spec.save(str(temporary))
        (temporary / SOURCE_HASH_FILE).write_text(made_from)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise SaccadeError(f"cannot write {folder}: {error.strerror or error}; use engine torch") from None


def _build_specs(model: Model, reader: SideConfig, writer: SideConfig, *, max_length: int) -> tuple[Any, Any]:
    """Build the encoder and decoder specifications of CTranslate2 with all weights."""
    from ctranslate2.specs import Activation, TransformerDecoderSpec, TransformerEncoderSpec

    specs: list[Any] = []
    for spec_class, (part, stack), module in (
        (TransformerEncoderSpec, reader, model.reader),
        (TransformerDecoderSpec, writer, model.writer),
    ):
        spec = spec_class(
            stack.layers, stack.heads, pre_norm=stack.norm == "pre", rms_norm=stack.norm_kind == "rms",
            ffn_glu=stack.gated, activation=Activation[ACTIVATIONS[stack.activation]],
        )  # fmt: skip
        embeddings = spec.embeddings if specs else spec.embeddings[0]  # encoders have a list of embeddings
        ids = torch.arange(module.embedding.tokens.num_embeddings)
        embeddings.weight = _to_numpy(module.embedding.tokens.weight[module.embedding.get_row_ids(ids)])
        spec.scale_embeddings = part.scale_embedding
        positions = torch.arange(max_length + 1)[None]
        if isinstance(part.positions, schema.Learned):
            positions = positions[:, : part.positions.length]
        spec.position_encodings.encodings = _to_numpy(module.embedding.positions(positions)[0])
        for layer, block in zip(spec.layer, module.stack.blocks, strict=True):
            _fill_layer(layer, block)
        if stack.norm == "pre":
            _fill_norm(spec.layer_norm, module.stack.norm)
        specs.append(spec)
    _fill_linear(specs[1].projection, model.writer.output.weight, model.writer.output.bias)
    return specs[0], specs[1]


def _fill_layer(layer: Any, block: Any) -> None:
    """Copy one block: self-attention, cross-attention, feed-forward, each with its norm."""
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
    """Copy a fused projection: our rows are ordered by head, theirs by query, key and value."""
    weight = projection.weight.transpose(0, 1).flatten(0, 2)
    _fill_linear(linear, weight, None if projection.bias is None else projection.bias.transpose(0, 1).flatten())


def _fill_linear(linear: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    linear.weight = _to_numpy(weight)
    if bias is not None:
        linear.bias = _to_numpy(bias)


def _fill_norm(target: Any, norm: nn.Module) -> None:
    target.gamma = _to_numpy(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        target.beta = _to_numpy(norm.bias)


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().float().cpu().contiguous().numpy()
