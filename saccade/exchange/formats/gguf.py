"""A GGUF file, as llama.cpp has it: settings, tokenizer and weights of a Llama in one file, often quantised.

It is read as the folder of Hugging Face that it was made from: the same names, and queries and keys in that order.
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

ARCHITECTURE = "llama"
SETTINGS = {  # keys there, without the name of the architecture, and in a config.json
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "vocab_size": "vocab_size",
}  # fmt: skip
REPEATED = ("rope.dimension_count", "attention.value_length")  # the width of a head once more
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
CONTROL, OWN = 3, 4  # types of pieces: those of the model, and added ones
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def is_gguf(source: str) -> bool:
    return source.endswith(".gguf")


class GgufFile:
    """What a folder of Hugging Face would have."""

    def __init__(self, source: str) -> None:
        self.path = Path(source)
        if not self.path.is_file():
            raise SaccadeError(f"'{source}' not found; expected a GGUF file")
        try:
            import gguf
        except ImportError:
            raise SaccadeError(
                "a GGUF file is read with the package gguf: pip install gguf, or saccade[gguf]"
            ) from None
        try:
            self._read = gguf.GGUFReader(self.path)
            self._values = {name: field.contents() for name, field in self._read.fields.items()}
        except Exception as error:  # whatever meets a file that is cut off, or is something else
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise SaccadeError(f"{self.path} is not a whole GGUF file ({first}); download it again") from None

    def config(self) -> Config:
        """The settings under the names of a config.json; one that is not known is refused."""
        family = self._values.get("general.architecture")
        if family != ARCHITECTURE:
            raise SaccadeError(f"{self.path}: the architecture {family!r} is not known; expected {ARCHITECTURE}")
        given = {
            key.removeprefix(f"{family}."): value for key, value in self._values.items() if key.startswith(f"{family}.")
        }
        given.setdefault("vocab_size", len(self._tokens("tokens")))
        values = {theirs: given[key] for key, theirs in SETTINGS.items() if key in given}
        head = values.get("head_dim", values.get("hidden_size", 0) // values.get("num_attention_heads", 1))
        for key in sorted(given.keys() - SETTINGS.keys()):
            if key not in REPEATED or given[key] != head:
                raise SaccadeError(
                    f"{self.path}: {family}.{key} = {given[key]!r} is not supported; it may change the numbers"
                )
        end = self._values.get("tokenizer.ggml.eos_token_id")
        ends = {"eos_token_id": end, "bos_token_id": self._values.get("tokenizer.ggml.bos_token_id", end)}
        tied = "output.weight" not in {tensor.name for tensor in self._read.tensors}
        return Config({**values, **ends, "model_type": family, "tie_word_embeddings": tied}, origin=str(self.path))

    def tensors(self, family: Family) -> GgufTensors:
        heads = {"attn_q": self._values[f"{family.name}.attention.head_count"]}
        heads["attn_k"] = self._values.get(f"{family.name}.attention.head_count_kv", heads["attn_q"])
        return GgufTensors(self.path, {tensor.name: tensor for tensor in self._read.tensors}, heads)

    def sense(self, family: Family, tables: dict[str, Any]) -> None:
        """Nothing: such files hold language models, which read no pictures and no sound."""

    def tokenizers(self, family: Family, size: int) -> list[Core]:
        """The tokenizer, from the lists of its pieces and merges."""
        kind = self._values.get("tokenizer.ggml.model")
        if kind == "llama":
            return [self._sentencepiece()]
        if kind != "gpt2":
            raise SaccadeError(f"{self.path}: the tokenizer {kind!r} is not known; expected gpt2 or llama")
        pieces, merges = self._tokens("tokens"), self._tokens("merges")
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        name = self._values.get("tokenizer.ggml.pre", "")
        cut = cuts().get(name)
        if cut is None:
            raise SaccadeError(f"{self.path}: texts are cut by {name!r}, expected one of {', '.join(cuts())}")
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        core = Core(models.BPE(vocabulary, pairs, ignore_merges=name == "llama-bpe"))
        core.pre_tokenizer, core.decoder = cut, decoders.ByteLevel()
        kinds = self._tokens("token_type")
        core.add_special_tokens(
            [AddedToken(piece, special=True, normalized=False) for piece, of in zip(pieces, kinds, strict=True)
             if of in (CONTROL, OWN)]
        )  # fmt: skip
        return [core]

    def _sentencepiece(self) -> Core:
        lists = (self._tokens(name) for name in ("tokens", "scores", "token_type"))
        pieces = list(zip(*lists, strict=True))
        if any(kind == USER for *_, kind in pieces):
            raise SaccadeError(f"{self.path}: pieces that a user added are not supported; take a folder of the model")
        prefix = bool(self._values.get("tokenizer.ggml.add_space_prefix", True))
        return to_tokenizer(SentencePiece(pieces, BPE, b"", prefix=prefix, tidy=False))

    def _tokens(self, name: str) -> list[Any]:
        found = self._values.get(f"tokenizer.ggml.{name}")
        if not isinstance(found, list) or not found:
            raise SaccadeError(f"{self.path} lacks tokenizer.ggml.{name}; take a file that holds its tokenizer")
        return found


def cuts() -> dict[str, Any]:
    """How texts are cut before pieces are joined, by the names that these files have for it."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), letters])
    llama = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return {"gpt-2": letters, "smollm": digits, "starcoder": digits, "llama-bpe": llama}


class GgufTensors:
    """The tensors by the names that a folder has, each unpacked when it is asked for."""

    def __init__(self, path: Path, given: Mapping[str, Any], heads: Mapping[str, int]) -> None:
        self.folder, self._heads = path, heads
        self._given = {there_of(name): tensor for name, tensor in given.items()}
        self.where = dict.fromkeys(self._given, path)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __getitem__(self, name: str) -> Tensor:
        """One tensor in float32."""
        if name not in self._given:
            raise SaccadeError(f"{self.folder} lacks the tensor {name!r}; is it whole?")
        from gguf import quants

        tensor = self._given[name]
        try:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise SaccadeError(
                f"{self.folder}: {tensor.name} of type {tensor.tensor_type.name} cannot be read ({error}); "
                "take a file of another type, such as Q8_0"
            ) from None
        found = torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file is only lent
        short = tensor.name.removesuffix(".weight").rpartition(".")[2]
        return in_halves(found, self._heads[short]) if short in self._heads else found


def there_of(name: str) -> str:
    """The name of a tensor in a folder; one that is not known keeps its own."""
    block, (stem, dot, kind) = BLOCK.fullmatch(name), name.rpartition(".")
    if block:
        stem = block[2].rpartition(".")[0]
    if stem not in NAMES:
        return name
    return f"model.layers.{block[1]}.{NAMES[stem]}{dot}{kind}" if block else f"{NAMES[stem]}{dot}{kind}"


def in_halves(matrix: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as Hugging Face has them: neighbours that turn together there stand half a head apart."""
    return matrix.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
