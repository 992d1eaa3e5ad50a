"""The int8 weights of a run: made once from its weights and kept beside them, for as long as these stay the same."""

import hashlib
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.inference import float_names, put_quantised, quantised, scale_names
from saccade.model.run import MADE_FROM, VOCABULARY, fill_weights, named_weights, write_tensors

FILE = "model.int8.safetensors"


def fill_int8(model: nn.Module, path: Path, vocabulary: str) -> None:
    """Makes the model one of int8 weights: those that are kept beside the file of weights, or new ones from it."""
    if not prepared.is_available():
        raise SaccadeError("int8 needs a torch with oneDNN, which this one does not have; use precision fp32")
    kept, made_from = path.with_name(FILE), fingerprint(path)
    tensors = read_kept(kept, model, made_from=made_from, vocabulary=vocabulary)
    if tensors is None:
        fill_weights(model, path, vocabulary)
        tensors = quantised(model)
        with suppress(SaccadeError):  # where nothing can be written they are made anew each time
            write_tensors(tensors, kept, vocabulary=vocabulary, made_from=made_from)
    put_quantised(model, tensors)


def read_kept(path: Path, model: nn.Module, *, made_from: str, vocabulary: str) -> dict[str, Tensor] | None:
    """The tensors of a file of int8 weights; None where it is not there, not whole, or not of these weights."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            if (notes.get(MADE_FROM), notes.get(VOCABULARY)) != (made_from, vocabulary):
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    expected = {name: tensor.shape for name, tensor in named_weights(model).items()}
    fits = {name: tensor.shape for name, tensor in tensors.items() if name in expected} == expected
    more = scale_names(model) | float_names(model)
    return tensors if fits and tensors.keys() == expected.keys() | more else None


def fingerprint(path: Path) -> str:
    """A hash of the whole file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
