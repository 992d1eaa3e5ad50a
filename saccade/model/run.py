"""A run on disk: what is in its folder, how its files are written and read."""

import errno
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.tokenization.labels import FILE as LABELS
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.files import replacing
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.runs import RECIPE, WEIGHTS, find_run, not_a_run

# ---- Models whose first numbers are not drawn, as others take their place at once.

DRAWN = ("normal_", "uniform_", "kaiming_uniform_")  # the last one draws by another inside of it


class Undrawn(TorchFunctionMode):
    """Leaves parameters as memory has them: to draw 124 million numbers takes a second.

    Where they have no memory either, even a drawing of nothing would load torch's compiler, which takes seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in DRAWN:
            given = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if isinstance(given, nn.Parameter):
                return given
        return func(*args, **kwargs)


# ----


VOCABULARY = "vocabulary"  # in the metadata of the weights
MADE_FROM = "made_from"  # there too, where they were made from other weights
Fill = Callable[[nn.Module, Path, str], None]


@dataclass(frozen=True)
class Run:
    """A trained model, ready to use."""

    path: Path
    recipe: Recipe
    tokenizers: Tokenizers
    model: Model


def load_run(
    path: str | Path, *, kinds: Mapping[str, Any] | None = None, device: str = "cpu", fill: Fill | None = None
) -> Run:
    """Reads recipe, tokenizers and weights; nothing else of the folder is needed.

    `fill` puts weights into the fresh model, from the file of weights and for a vocabulary: `fill_weights`, unless
    they are wanted in another form.
    """
    folder = find_run(path)
    if not (folder / RECIPE).is_file():
        raise not_a_run(folder)
    recipe = load(folder / RECIPE, kinds=kinds)
    tokenizers = Tokenizers.load(folder)
    if recipe.task.predicts_labels and tokenizers.labels is None:
        raise SaccadeError(f"{folder} has no {LABELS}, which names what it was trained to say; put it back")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise SaccadeError(f"{folder} has no {WEIGHTS} yet; go on training with `saccade train --resume {folder}`")
    with Undrawn():
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size, kinds=kinds)
    (fill or fill_weights)(model, weights, tokenizers.vocabulary())
    return Run(folder, recipe, tokenizers, model.to(pick_device(device)).eval())


def pick_device(name: str) -> torch.device:
    """auto: CUDA, Apple MPS, CPU, in this order."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if device.type not in there:
        raise SaccadeError(f"unknown device {name!r}; expected auto, cpu, cuda, cuda:N or mps")
    if (device.index or 0) >= there[device.type]:
        raise SaccadeError(
            f"device {name!r} was asked for, but {there[device.type]} of its kind are here; use cpu or auto"
        )
    return device


# ---- weights


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that is stored, once: tied parameters under their first name."""
    stored: dict[str, Tensor] = dict(model.named_parameters())
    lasting = model.state_dict().keys()
    stored.update({name: buffer for name, buffer in model.named_buffers() if name in lasting})
    return {name: tensor.detach() for name, tensor in stored.items()}


def fill_weights(model: nn.Module, path: Path, vocabulary: str) -> None:
    """Reads the weights of a file, which must be those of the model and made for the vocabulary, into the model."""
    tensors = read_weights(path, vocabulary=vocabulary)
    check_weights(model, tensors, path)
    put_weights(model, tensors)


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into the model by name."""
    with torch.no_grad():
        for name, tensor in named_weights(model).items():
            tensor.copy_(tensors[name])


def check_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Names and shapes must be those of the model that recipe and tokenizer describe."""
    expected = named_weights(model)
    for name in sorted(expected.keys() ^ tensors.keys()):
        problem = "lacks" if name in expected else "has an unknown"
        raise SaccadeError(f"{path} {problem} tensor {name!r}; do recipe.toml and the weights belong together?")
    for name, tensor in expected.items():
        if tensor.shape != tensors[name].shape:
            hint = " (the tokenizer does not match the weights)" if "embedding.tokens" in name else ""
            raise SaccadeError(
                f"{path}: {name} must be {tuple(tensor.shape)} by recipe and tokenizer, "
                f"got {tuple(tensors[name].shape)}{hint}"
            )


def count_weights(path: Path) -> int:
    """How many numbers a file of weights holds; a model that was made ready for inference no longer tells it."""
    with safe_open(path, framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, vocabulary: str = "", made_from: str = "") -> None:
    """Writes the tensors, with hashes of the vocabulary that they are made for and of the file they are made from."""
    content = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    notes = {VOCABULARY: vocabulary}  # alone where possible: several come in random order, and files would differ
    if made_from:
        notes[MADE_FROM] = made_from
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the user wants files to be; the library makes them private
        try:
            save_file(content, temporary, metadata=notes)  # from memory to the file, without a copy of all in between
            temporary.chmod(mode)
        except SafetensorError as error:  # the library's name for whatever the disk says
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None


def read_weights(path: Path, *, vocabulary: str = "") -> dict[str, Tensor]:
    """All tensors of a safetensors file, which must not have been made for another vocabulary."""
    try:
        with safe_open(path, framework="pt") as file:
            made_for = (file.metadata() or {}).get(VOCABULARY, "")
            if vocabulary and made_for and made_for != vocabulary:
                raise SaccadeError(
                    f"{path} was trained with another vocabulary than that of the tokenizer beside it; "
                    "put back the tokenizer.json that belongs to these weights"
                )
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise SaccadeError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise SaccadeError(f"{path} is not a whole safetensors file ({error}); restore it or train again") from None
