"""Loads a run from disk and reads and writes files of weights (safetensors)."""

import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.tokenization.labels import LABELS_FILE as LABELS
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.files import atomic_replace
from saccade.model.build.allocation import AllocationGuard, OversizedTensorError
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.runs import RECIPE, WEIGHTS, build_not_a_run_error, find_run

INIT_FUNCTIONS = ("normal_", "uniform_", "kaiming_uniform_")  # the last calls another one inside
MAX_EXPANSION = 4  # bytes of a float32 over those of the narrowest type of a file
DEVICE = "SACCADE_DEVICE"  # an environment variable: the device that "auto" is


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of parameters that are overwritten by loaded weights.

    Initializing 124 million parameters takes a second; on the meta device it would even import torch's compiler, which
    takes several.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in INIT_FUNCTIONS:
            tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if isinstance(tensor, nn.Parameter):
                return tensor
        return func(*args, **kwargs)


# Keys in the metadata of a file of weights
VOCABULARY = "vocabulary"  # hash of the vocabulary that the weights belong to
MADE_FROM = "made_from"  # hash of the file of weights that these were converted from
WeightLoader = Callable[[nn.Module, Path, str], None]  # model, file of weights, hash of the vocabulary


@dataclass(frozen=True)
class Run:
    """A trained model with its recipe and tokenizers."""

    path: Path
    recipe: Recipe
    tokenizers: Tokenizers
    model: Model


def load_run(
    path: str | Path,
    *,
    kinds: Mapping[str, Any] | None = None,
    device: str = "cpu",
    weight_loader: WeightLoader | None = None,
) -> Run:
    """Load recipe, tokenizers and weights of a run and return the model in eval mode.

    `weight_loader` fills the newly built model from the file of weights; the default is `load_weights`.
    """
    folder = find_run(path)
    if not (folder / RECIPE).is_file():
        raise build_not_a_run_error(folder)
    recipe = load(folder / RECIPE, kinds=kinds)
    tokenizers = Tokenizers.load(folder)
    if recipe.task.predicts_labels and tokenizers.labels is None:
        raise SaccadeError(f"{folder} has no {LABELS}, which names the labels of the model; put it back")
    kind = recipe.writer.label_kind
    if kind and tokenizers.labels is not None and tokenizers.labels.kind != kind:  # a plugin's writer has its own
        raise SaccadeError(
            f"{folder / LABELS} has labels of the kind {tokenizers.labels.kind[:60]!r}, the writer of {RECIPE} "
            f"predicts {kind!r}; is one of the two damaged, or of another run?"
        )
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise SaccadeError(f"{folder} has no {WEIGHTS} yet; go on training with `saccade train --resume {folder}`")
    with SkipInit():
        model = build_for_weights(recipe, tokenizers, weights)
    (weight_loader or load_weights)(model, weights, tokenizers.hash_vocabulary())
    return Run(folder, recipe, tokenizers, model.to(pick_device(device)).eval())


def build_for_weights(recipe: Recipe, tokenizers: Tokenizers, path: Path) -> Model:
    """Build the model of a file of weights, without allocating more than the file has for one of its parameters.

    Only a recipe that does not belong to the weights asks for more, or a large table that is no parameter: names and
    shapes are then compared on the meta device first.
    """
    build_model = partial(build, recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
    try:
        with AllocationGuard(limit=MAX_EXPANSION * path.stat().st_size):
            return build_model()
    except OversizedTensorError:
        with torch.device("meta"):
            check_shapes(build_model(), read_shapes(path), path)
    return build_model()


def pick_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is $SACCADE_DEVICE, or the first available of CUDA, Apple MPS and CPU."""
    origin = ""
    if name == "auto" and os.environ.get(DEVICE):
        name, origin = os.environ[DEVICE], f" in {DEVICE}"
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if device.type not in available:
        raise SaccadeError(f"unknown device {name!r}{origin}; expected auto, cpu, cuda, cuda:N or mps")
    if (device.index or 0) >= available[device.type]:
        raise SaccadeError(
            f"device {name!r}{origin} is not available: this machine has {available[device.type]} {device.type} "
            "devices; use cpu or auto"
        )
    return device


# ---- weights


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers by name; tied parameters once, under their first name."""
    stored: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict().keys()
    stored.update({name: buffer for name, buffer in model.named_buffers() if name in persistent})
    return {name: tensor.detach() for name, tensor in stored.items()}


def load_weights(model: nn.Module, path: Path, vocabulary: str) -> None:
    """Read a file of weights into the model; names, shapes and the hash of the vocabulary must match."""
    tensors = read_weights(path, vocabulary=vocabulary)
    check_weights(model, tensors, path)
    copy_weights(model, tensors)


def copy_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model in place, by name."""
    with torch.no_grad():
        for name, tensor in named_weights(model).items():
            tensor.copy_(tensors[name])


def check_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise a SaccadeError unless the tensors have exactly the names and shapes of the model's."""
    for name in sorted(named_weights(model).keys() ^ tensors.keys()):
        problem = "lacks" if name not in tensors else "has an unknown"
        raise SaccadeError(f"{path} {problem} tensor {name!r}; do recipe.toml and the weights belong together?")
    check_shapes(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, path)


def check_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise a SaccadeError if a tensor of the model has another shape in the file."""
    for name, tensor in named_weights(model).items():
        if tuple(tensor.shape) != shapes.get(name, tuple(tensor.shape)):
            hint = " (the tokenizer does not match the weights)" if "embedding.tokens" in name else ""
            raise SaccadeError(
                f"{path}: {name} must be {tuple(tensor.shape)} by recipe and tokenizer, got {shapes[name]}{hint}"
            )


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a safetensors file."""
    with open_weights(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def count_parameters(path: Path) -> int:
    """Number of parameters in a file of weights; a model prepared for CPU inference no longer has all of them."""
    return sum(math.prod(shape) for shape in read_shapes(path).values())


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, vocabulary: str = "", made_from: str = "") -> None:
    """Write tensors as safetensors, with the hashes of their vocabulary and source file in the metadata."""
    content = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    metadata = {VOCABULARY: vocabulary}  # one key where possible: the library writes several in random order
    if made_from:
        metadata[MADE_FROM] = made_from
    with atomic_replace(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # follows the user's umask; the library would make the file private
        try:
            save_file(content, temporary, metadata=metadata)  # writes without a copy of all tensors in memory
            temporary.chmod(mode)
        except SafetensorError as error:  # the library wraps errors of the disk in it
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None


def read_weights(path: Path, *, vocabulary: str = "") -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; raises a SaccadeError if it belongs to another vocabulary."""
    with open_weights(path) as file:
        expected = (file.metadata() or {}).get(VOCABULARY, "")
        if vocabulary and expected and expected != vocabulary:
            raise SaccadeError(
                f"{path} was trained with another vocabulary than that of the tokenizer beside it; "
                "put back the tokenizer.json that belongs to these weights"
            )
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """Open a safetensors file; one that is missing or damaged becomes a SaccadeError."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise SaccadeError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise SaccadeError(f"{path} is not a whole safetensors file ({error}); restore it or train again") from None
