"""The int8 weights of a run: quantized once and cached beside its weights until these change."""

import hashlib
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.inference import get_float_names, get_scale_names, load_quantized_weights, quantize_weights
from saccade.model.run import MADE_FROM, VOCABULARY, load_weights, named_weights, write_tensors

INT8_WEIGHTS = "model.int8.safetensors"


def load_int8_weights(model: nn.Module, path: Path, vocabulary: str) -> None:
    """Give the model int8 weights, from the cache beside the file of weights or quantized from it."""
    if not prepared.is_available():
        raise SaccadeError("int8 needs a torch with oneDNN, which this one does not have; use precision fp32")
    cache, made_from = path.with_name(INT8_WEIGHTS), hash_file(path)
    tensors = read_cached(cache, model, made_from=made_from, vocabulary=vocabulary)
    if tensors is None:
        load_weights(model, path, vocabulary)
        tensors = quantize_weights(model)
        with suppress(SaccadeError):  # in a read-only folder they are quantized anew each time
            write_tensors(tensors, cache, vocabulary=vocabulary, made_from=made_from)
    load_quantized_weights(model, tensors)


def read_cached(path: Path, model: nn.Module, *, made_from: str, vocabulary: str) -> dict[str, Tensor] | None:
    """Read cached int8 weights; None if the file is missing, damaged, or of other weights (`made_from` is a hash)."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get(MADE_FROM), metadata.get(VOCABULARY)) != (made_from, vocabulary):
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    expected = {name: tensor.shape for name, tensor in named_weights(model).items()}
    shapes_match = {name: tensor.shape for name, tensor in tensors.items() if name in expected} == expected
    extra_names = get_scale_names(model) | get_float_names(model)
    return tensors if shapes_match and tensors.keys() == expected.keys() | extra_names else None


def hash_file(path: Path) -> str:
    """Hash the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
