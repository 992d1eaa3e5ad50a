"""Read Hugging Face folders: JSON files, and tensors, each of which is loaded on access."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.parsing import read_json_object

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
PREPROCESSOR_FILE = "preprocessor_config.json"
PICKLE_FILE, PICKLE_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"


def find_folder(name: str) -> Path:
    """Return a local folder, or download the model of this name from the Hub."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or name.count("/") > 1 or name.startswith("."):
        raise SaccadeError(
            f"'{name}' is not a folder; expected one with {CONFIG_FILE}, or the name of a model on the Hub"
        )
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.txt"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns))
        if not any((folder / file).is_file() for file in (WEIGHTS_FILE, INDEX_FILE)):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns, "pytorch_model*.bin"]))
    except Exception as error:  # several libraries raise here: network, unknown names, permissions
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaccadeError(
            f"'{name}' is not a local folder, and the Hub has no model of that name that can be downloaded ({first}); "
            "check the name and the network, or download it elsewhere and give the folder"
        ) from None
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file."""
    if not path.is_file():
        return {}
    return read_json_object(path)


class TensorReader(Protocol):
    """Access to tensors by their Hugging Face names."""

    path: Path  # folder or file, for error messages
    files: dict[str, Path]

    def __contains__(self, name: str) -> bool: ...
    def __getitem__(self, name: str) -> Tensor: ...


class FolderTensors:
    """The tensors of all shards of a folder, by name; float32 on access."""

    def __init__(self, path: Path, *, prefix: str = "") -> None:
        self.path = path
        self._pickles: dict[Path, dict[str, Tensor]] = {}  # pickles cannot be read tensor by tensor
        found = self._find_files()
        self._stored_names = {rename_legacy_norm(name): name for name in found}
        self.files = {rename_legacy_norm(name): path for name, path in found.items()}
        # A base model without a head stores its tensors without the prefix: add it here, remove it when reading.
        self.prefix = "" if any(name.startswith(prefix) for name in self.files) else prefix
        self.files = {self.prefix + name: path for name, path in self.files.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.files:
            raise SaccadeError(
                f"{self.path} lacks the tensor {name!r}, which the model of {CONFIG_FILE} has; is it complete?"
            )
        path, name = self.files[name], self._stored_names[name.removeprefix(self.prefix)]
        if path.suffix == ".bin":
            return self._load_pickle(path)[name].float()
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise build_file_error(path, error) from None
        return found.float()

    def _find_files(self) -> dict[str, Path]:
        """Return the file of each tensor."""
        for index in (INDEX_FILE, PICKLE_INDEX_FILE):
            if (self.path / index).is_file():
                return self._read_index(index)
        for file in (WEIGHTS_FILE, PICKLE_FILE):
            path = self.path / file
            if path.is_file():
                return dict.fromkeys(self._load_pickle(path) if path.suffix == ".bin" else list_tensors(path), path)
        raise SaccadeError(f"{self.path} has no weights: expected {WEIGHTS_FILE}, {INDEX_FILE} or {PICKLE_FILE}")

    def _read_index(self, index: str) -> dict[str, Path]:
        listed = read_json(self.path / index).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise SaccadeError(f"{self.path / index} has no weight_map with the file of each tensor; is it complete?")
        for shard in sorted(set(map(str, listed.values()))):
            path = self.path / Path(shard).name  # the index must not lead outside the folder
            if not path.is_file():
                raise SaccadeError(f"{self.path} lacks the shard {shard}, which {index} names; download it again")
            there = set(self._load_pickle(path)) if path.suffix == ".bin" else set(list_tensors(path))
            for name in sorted(name for name, place in listed.items() if place == shard and name not in there):
                raise SaccadeError(f"{path} lacks the tensor {name!r}, which {index} lists there; download it again")
        return {name: self.path / Path(shard).name for name, shard in listed.items()}

    def _load_pickle(self, path: Path) -> dict[str, Tensor]:
        """Load a file of torch.save with `weights_only=True`, which executes no code."""
        if path not in self._pickles:
            try:
                found = torch.load(path, map_location="cpu", weights_only=True)
                if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
                    raise ValueError("expected a dictionary of tensors")
                self._pickles[path] = found
            except Exception as error:  # truncated files, other formats, pickled objects
                raise SaccadeError(
                    f"{path} does not contain tensors only ({explain_load_error(error)}); other objects are never "
                    f"unpickled: take the {WEIGHTS_FILE} of the model"
                ) from None
        return self._pickles[path]


def explain_load_error(error: Exception) -> str:
    """Say why torch.load refused a file, without its advice to set weights_only=False."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it contains {found[1]}"
    lines = str(error).splitlines() if isinstance(error, ValueError | RuntimeError) else []
    return lines[0] if lines else "it is truncated, or not a file of torch.save"


def rename_legacy_norm(name: str) -> str:
    """Rename gamma and beta of the LayerNorms in early files to weight and bias."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def list_tensors(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise build_file_error(path, error) from None


def build_file_error(path: Path, error: Exception) -> SaccadeError:
    return SaccadeError(f"{path} is not a complete safetensors file ({error}); download it again")
