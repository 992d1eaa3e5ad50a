"""A folder of Hugging Face: its settings, and its tensors, of which each is read when it is asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saccade.errors import SaccadeError

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SENSE = "preprocessor_config.json"
OLD, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def find_folder(name: str) -> Path:
    """A folder here, or one that the Hub has under this name; only then is anything fetched."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or name.count("/") > 1 or name.startswith("."):
        raise SaccadeError(f"'{name}' is not a folder; expected one with {CONFIG}, or the name of a model of the Hub")
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.txt"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted))
        if not any((folder / file).is_file() for file in (WHOLE, INDEX)):
            folder = Path(snapshot_download(name, allow_patterns=[*wanted, "pytorch_model*.bin"]))
    except Exception as error:  # of several libraries: network, names, permissions
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaccadeError(
            f"'{name}' is no folder here, and the Hub does not give a model of that name ({first}); "
            "check the name and the network, or download it elsewhere and give the folder"
        ) from None
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """The values of a file, or none where there is none."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SaccadeError(f"{path} is not JSON ({error}); is it whole?") from None
    if not isinstance(values, dict):
        raise SaccadeError(f"{path} holds no table of settings, but a {type(values).__name__}; is it the right file?")
    return values


class Named(Protocol):
    """Tensors by the names that a folder of Hugging Face has for them."""

    folder: Path  # or file, for messages
    where: dict[str, Path]

    def __contains__(self, name: str) -> bool: ...
    def __getitem__(self, name: str) -> Tensor: ...


class Tensors:
    """The tensors of all shards of a folder, by name."""

    def __init__(self, folder: Path, *, prefix: str = "") -> None:
        self.folder = folder
        self._loaded: dict[Path, dict[str, Tensor]] = {}  # of old files, which cannot be read in part
        found = self._find()
        self._stored = {modern(name): name for name in found}
        self.where = {modern(name): path for name, path in found.items()}
        # Files of a model without its head have no prefix, so that it is added here and left out when reading.
        self.prefix = "" if any(name.startswith(prefix) for name in self.where) else prefix
        self.where = {self.prefix + name: path for name, path in self.where.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.where

    def __getitem__(self, name: str) -> Tensor:
        """One tensor in float32."""
        if name not in self.where:
            raise SaccadeError(f"{self.folder} lacks the tensor {name!r}, which {CONFIG} asks for; is it whole?")
        path, name = self.where[name], self._stored[name.removeprefix(self.prefix)]
        if path.suffix == ".bin":
            return self._old(path)[name].float()
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise broken(path, error) from None
        return found.float()

    def _find(self) -> dict[str, Path]:
        """The file of each tensor."""
        for index in (INDEX, OLD_INDEX):
            if (self.folder / index).is_file():
                return self._indexed(index)
        for file in (WHOLE, OLD):
            path = self.folder / file
            if path.is_file():
                return dict.fromkeys(self._old(path) if path.suffix == ".bin" else names_in(path), path)
        raise SaccadeError(f"{self.folder} has no weights: expected {WHOLE}, {INDEX} or {OLD}")

    def _indexed(self, index: str) -> dict[str, Path]:
        listed = read_json(self.folder / index).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise SaccadeError(f"{self.folder / index} has no weight_map that says where tensors are; is it whole?")
        for shard in sorted(set(map(str, listed.values()))):
            path = self.folder / Path(shard).name  # never a file of another folder
            if not path.is_file():
                raise SaccadeError(f"{self.folder} lacks the shard {shard}, which {index} names; download it again")
            there = set(self._old(path)) if path.suffix == ".bin" else set(names_in(path))
            for name in sorted(name for name, place in listed.items() if place == shard and name not in there):
                raise SaccadeError(f"{path} lacks the tensor {name!r}, which {index} says is there; download it again")
        return {name: self.folder / Path(shard).name for name, shard in listed.items()}

    def _old(self, path: Path) -> dict[str, Tensor]:
        """A file of torch.save; nothing in it is executed."""
        if path not in self._loaded:
            try:
                found = torch.load(path, map_location="cpu", weights_only=True)
                if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
                    raise ValueError("expected a table of tensors by name")
                self._loaded[path] = found
            except Exception as error:  # whatever is not tensors alone, or is no such file
                raise SaccadeError(
                    f"{path} cannot be read as tensors alone ({refused(error)}); nothing else of such a file is ever "
                    f"loaded: take the {WHOLE} of the model"
                ) from None
        return self._loaded[path]


def refused(error: Exception) -> str:
    """What torch.load found in a file, without its advice to load that all the same."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds {found[1]}"
    told = str(error).splitlines() if isinstance(error, ValueError | RuntimeError) else []
    return told[0] if told else "it is cut off, or not a file of torch.save"


def modern(name: str) -> str:
    """Norms of the first models had other names for their two vectors."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def names_in(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise broken(path, error) from None


def broken(path: Path, error: Exception) -> SaccadeError:
    return SaccadeError(f"{path} is not a whole safetensors file ({error}); download it again")
