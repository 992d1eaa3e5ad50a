"""Read GGUF files of llama.cpp: settings, tokenizer and (often quantized) weights of a Llama model in one file.

`GgufFile` has the methods of a Hugging Face folder: keys and tensors have the Hugging Face names, and the rows of
queries and keys are permuted back to the Hugging Face order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.exchange.families.family import Config, Family
from saccade.exchange.formats.sentencepiece import BPE, USER, SentencePiece, to_tokenizer
from saccade.extras import get_install_command

ARCHITECTURE = "llama"
CONFIG_KEYS = {  # GGUF key without its architecture prefix -> key of config.json
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "vocab_size": "vocab_size",
}  # fmt: skip
HEAD_DIM_KEYS = ("rope.dimension_count", "attention.value_length")  # repeat the head dimension
TENSOR_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
BLOCK_NAME = re.compile(r"blk\.(\d+)\.(.*)")
CONTROL_TYPE, USER_DEFINED_TYPE = 3, 4  # values of tokenizer.ggml.token_type for special and for added tokens
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def is_gguf(source: str) -> bool:
    return source.endswith(".gguf")


class GgufFile:
    """A GGUF file with the methods of `HuggingFaceFolder`."""

    def __init__(self, source: str) -> None:
        self.path = Path(source)
        if not self.path.is_file():
            raise SaccadeError(f"'{source}' not found; expected a GGUF file")
        try:
            import gguf
        except ImportError:
            raise SaccadeError(
                f"reading a GGUF file needs the package gguf; install it with: {get_install_command('gguf')}"
            ) from None
        try:
            self._reader = gguf.GGUFReader(self.path)
            self._values = {name: field.contents() for name, field in self._reader.fields.items()}
        except Exception as error:  # the library raises many kinds for truncated files and other formats
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise SaccadeError(f"{self.path} is not a complete GGUF file ({first}); download it again") from None

    def read_config(self) -> Config:
        """Return the settings under the keys of config.json; an unknown setting is an error."""
        family = self._values.get("general.architecture")
        if family != ARCHITECTURE:
            raise SaccadeError(f"{self.path}: unknown architecture {family!r}; expected {ARCHITECTURE}")
        given = {
            key.removeprefix(f"{family}."): value for key, value in self._values.items() if key.startswith(f"{family}.")
        }
        given.setdefault("vocab_size", len(self._get_list("tokens")))
        values = {theirs: given[key] for key, theirs in CONFIG_KEYS.items() if key in given}
        head = values.get("head_dim", values.get("hidden_size", 0) // values.get("num_attention_heads", 1))
        for key in sorted(given.keys() - CONFIG_KEYS.keys()):
            if key not in HEAD_DIM_KEYS or given[key] != head:
                raise SaccadeError(
                    f"{self.path}: {family}.{key} = {given[key]!r} is not supported; it may change the outputs"
                )
        end = self._values.get("tokenizer.ggml.eos_token_id")
        ends = {"eos_token_id": end, "bos_token_id": self._values.get("tokenizer.ggml.bos_token_id", end)}
        tied = "output.weight" not in {tensor.name for tensor in self._reader.tensors}
        return Config({**values, **ends, "model_type": family, "tie_word_embeddings": tied}, origin=str(self.path))

    def open_tensors(self, family: Family) -> GgufTensors:
        heads = {"attn_q": self._values[f"{family.name}.attention.head_count"]}
        heads["attn_k"] = self._values.get(f"{family.name}.attention.head_count_kv", heads["attn_q"])
        return GgufTensors(self.path, {tensor.name: tensor for tensor in self._reader.tensors}, heads)

    def read_preprocessor(self, family: Family, tables: dict[str, Any]) -> None:
        """Do nothing: GGUF files contain language models only, which have no preprocessor."""

    def read_tokenizers(self, family: Family, size: int) -> list[Core]:
        """Build the tokenizer from the lists of tokens and merges."""
        kind = self._values.get("tokenizer.ggml.model")
        if kind == "llama":
            return [self._build_sentencepiece()]
        if kind != "gpt2":
            raise SaccadeError(f"{self.path}: unknown tokenizer {kind!r}; expected gpt2 or llama")
        tokens, merges = self._get_list("tokens"), self._get_list("merges")
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        name = self._values.get("tokenizer.ggml.pre", "")
        pre_tokenizer = build_pre_tokenizers().get(name)
        if pre_tokenizer is None:
            raise SaccadeError(
                f"{self.path}: unknown pre-tokenizer {name!r}, expected one of {', '.join(build_pre_tokenizers())}"
            )
        vocabulary = {token: index for index, token in enumerate(tokens)}
        core = Core(models.BPE(vocabulary, pairs, ignore_merges=name == "llama-bpe"))
        core.pre_tokenizer, core.decoder = pre_tokenizer, decoders.ByteLevel()
        kinds = self._get_list("token_type")
        core.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds, strict=True)
             if kind in (CONTROL_TYPE, USER_DEFINED_TYPE)]
        )  # fmt: skip
        return [core]

    def _build_sentencepiece(self) -> Core:
        lists = (self._get_list(name) for name in ("tokens", "scores", "token_type"))
        pieces = list(zip(*lists, strict=True))
        if any(kind == USER for *_, kind in pieces):
            raise SaccadeError(
                f"{self.path}: user-defined tokens are not supported; import the Hugging Face folder of the model"
            )
        prefix = bool(self._values.get("tokenizer.ggml.add_space_prefix", True))
        return to_tokenizer(SentencePiece(pieces, BPE, b"", add_dummy_prefix=prefix, remove_extra_whitespaces=False))

    def _get_list(self, name: str) -> list[Any]:
        found = self._values.get(f"tokenizer.ggml.{name}")
        if not isinstance(found, list) or not found:
            raise SaccadeError(f"{self.path} lacks tokenizer.ggml.{name}; take a file that contains its tokenizer")
        return found


def build_pre_tokenizers() -> dict[str, Any]:
    """Return the pre-tokenizers by their names in tokenizer.ggml.pre."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), letters])
    llama = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return {"gpt-2": letters, "smollm": digits, "starcoder": digits, "llama-bpe": llama}


class GgufTensors:
    """The tensors by their Hugging Face names, each dequantized to float32 on access."""

    def __init__(self, path: Path, tensors: Mapping[str, Any], heads: Mapping[str, int]) -> None:
        self.path, self._heads = path, heads
        self._tensors = {to_hugging_face_name(name): tensor for name, tensor in tensors.items()}
        self.files = dict.fromkeys(self._tensors, path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise SaccadeError(f"{self.path} lacks the tensor {name!r}; is it complete?")
        from gguf import quants

        tensor = self._tensors[name]
        try:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise SaccadeError(
                f"{self.path}: {tensor.name} of type {tensor.tensor_type.name} cannot be read ({error}); "
                "take a file of another type, such as Q8_0"
            ) from None
        found = torch.from_numpy(np.array(values, dtype=np.float32))  # copied: the data is a memory map of the file
        short = tensor.name.removesuffix(".weight").rpartition(".")[2]
        return unpermute_rotary(found, self._heads[short]) if short in self._heads else found


def to_hugging_face_name(name: str) -> str:
    """Return the Hugging Face name of a tensor; an unknown name is returned unchanged."""
    block, (stem, dot, kind) = BLOCK_NAME.fullmatch(name), name.rpartition(".")
    if block:
        stem = block[2].rpartition(".")[0]
    if stem not in TENSOR_NAMES:
        return name
    return f"model.layers.{block[1]}.{TENSOR_NAMES[stem]}{dot}{kind}" if block else f"{TENSOR_NAMES[stem]}{dot}{kind}"


def unpermute_rotary(matrix: Tensor, heads: int) -> Tensor:
    """Permute rows of queries or keys from interleaved rotary pairs to the Hugging Face order (half a head apart)."""
    return matrix.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
