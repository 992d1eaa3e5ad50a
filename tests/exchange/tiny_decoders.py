"""Tiny random decoders of transformers: their settings, and a tokenizer of letters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from saccade.data.tokenization.tokenizers import END, START
from saccade.exchange.families.catalogue import FAMILIES
from saccade.exchange.families.family import find_tensor
from saccade.exchange.formats.vocabulary import map_vocabulary
from saccade.model.run import Run

transformers = pytest.importorskip("transformers")
LETTERS = "▁abcdefghijkl"
STRETCH = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 400,
}  # fmt: skip


def config_of(family: str) -> Any:
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=14, n_positions=17, n_embd=12, n_layer=2, n_head=3, n_inner=7, layer_norm_epsilon=1e-4,
            bos_token_id=13, eos_token_id=13,
        )  # fmt: skip
    if family == "gpt_neo":
        return transformers.GPTNeoConfig(
            vocab_size=14, max_position_embeddings=17, hidden_size=12, num_layers=2, num_heads=3, intermediate_size=7,
            attention_types=[[["global", "local"], 1]], window_size=3, bos_token_id=13, eos_token_id=13,
        )  # fmt: skip
    shared: dict[str, Any] = {}
    if family == "llama-tied":
        shared = {"num_key_value_heads": 4, "head_dim": 6, "tie_word_embeddings": True}
    elif family == "llama-stretched":  # one rotary pair of each kind: unscaled, interpolated, scaled
        shared = {"head_dim": 6, "max_position_embeddings": 800, "rope_parameters": {"rope_theta": 7000.0, **STRETCH}}
    return transformers.LlamaConfig(
        vocab_size=18, hidden_size=16, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
        rms_norm_eps=1e-5, pad_token_id=None,
        **{"num_key_value_heads": 2, "max_position_embeddings": 19, "rope_theta": 7000.0, **shared},
    )  # fmt: skip


def without_float32(attend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Remove the original's cast of scores to float32, so that float64 is exact."""

    def wide(*given: Any) -> Any:
        with monkeypatch.context() as only_here:
            only_here.setattr(torch, "float32", torch.float64)
            return attend(*given)

    return wide


def in_float64(run: Run, theirs: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models in float64; patches the original's float32 norms and rotary frequencies."""
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
    monkeypatch.setattr(norm, "forward", lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5))
    neo = transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention
    monkeypatch.setattr(neo, "_attn", without_float32(neo._attn, monkeypatch))
    run.model.double(), theirs.double()
    part: Any = run.model.writer if run.recipe.task.name == "language-model" else run.model.reader
    for module in theirs.modules():
        if hasattr(module, "inv_freq"):
            mine = part.stack.blocks[0].self.rotary.get_frequencies(torch.device("cpu"))
            torch.testing.assert_close(module.inv_freq.float(), mine, atol=0.0, rtol=1e-6)
            module.inv_freq = mine


def letters(family: str) -> Tokenizer:
    """Build a tokenizer of letters: <|endoftext|> is last for GPT-2; <unk>, <s> and </s> are first for Llama."""
    alone = family.startswith("gpt")
    special = ["<|endoftext|>"] if alone else ["<unk>", "<s>", "</s>"]
    names = [*LETTERS, *special] if alone else [*special, *LETTERS]
    merges: list[tuple[str, str]] = []
    unknown = None if alone else "<unk>"
    core = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges, unk_token=unknown))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    core.add_special_tokens(special)
    if not alone:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def gradients_of(ours: Tensor, theirs: Tensor, run: Run, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the gradients of every tensor for the same loss in both models, under the foreign names."""
    names = FAMILIES[run.recipe.name].get_tensor_map(run.recipe)
    numbers = map_vocabulary(run.tokenizers.source, model.config.vocab_size)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    found = {}
    for name, weight in run.model.named_parameters():
        if weight.grad is None:  # the mask of our own tokens
            continue
        if name.endswith("tokens.weight") and getattr(run.recipe.writer, "start_token", "own") == "end":
            weight.grad[END] += weight.grad[START]  # the same token in the original
        form, places = find_tensor(name, names)
        found |= dict(zip(places, form.to_theirs(weight.grad, numbers), strict=True))
    return found, {name: parameter.grad for name, parameter in model.named_parameters()}
