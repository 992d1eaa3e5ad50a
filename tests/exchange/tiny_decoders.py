"""Tiny random decoders of transformers: their settings, and a tokenizer of letters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from saccade.data.tokenization.tokenizers import END, START
from saccade.exchange.families.catalogue import FAMILIES
from saccade.exchange.families.family import place_of
from saccade.exchange.formats.vocabulary import numbering
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
    elif family == "llama-stretched":  # one pair of features of each sort: as before, a mixture, slower
        shared = {"head_dim": 6, "max_position_embeddings": 800, "rope_parameters": {"rope_theta": 7000.0, **STRETCH}}
    return transformers.LlamaConfig(
        vocab_size=18, hidden_size=16, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
        rms_norm_eps=1e-5, pad_token_id=None,
        **{"num_key_value_heads": 2, "max_position_embeddings": 19, "rope_theta": 7000.0, **shared},
    )  # fmt: skip


def without_float32(attend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Theirs makes scores float32 whatever the type of the model, so that float64 would prove no more."""

    def wide(*given: Any) -> Any:
        with monkeypatch.context() as only_here:
            only_here.setattr(torch, "float32", torch.float64)
            return attend(*given)

    return wide


def in_float64(run: Run, theirs: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models; theirs squares in float32 whatever the type, and rounds how far features turn in another way."""
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
    monkeypatch.setattr(norm, "forward", lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5))
    neo = transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention
    monkeypatch.setattr(neo, "_attn", without_float32(neo._attn, monkeypatch))
    run.model.double(), theirs.double()
    part: Any = run.model.writer if run.recipe.task.name == "write" else run.model.reader
    for module in theirs.modules():
        if hasattr(module, "inv_freq"):
            mine = part.stack.blocks[0].self.rotary.frequencies(torch.device("cpu"))
            torch.testing.assert_close(module.inv_freq.float(), mine, atol=0.0, rtol=1e-6)
            module.inv_freq = mine


def letters(family: str) -> Tokenizer:
    """<|endoftext|> is the last piece of the one, <unk>, <s> and </s> are the first of the other."""
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
    """Of every tensor, in their form and under their name, of the same loss on both sides."""
    names = FAMILIES[run.recipe.name].names(run.recipe)
    numbers = numbering(run.tokenizers.source, model.config.vocab_size)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    found = {}
    for name, weight in run.model.named_parameters():
        if weight.grad is None:  # what keeps our own pieces from being written
            continue
        if name.endswith("tokens.weight") and getattr(run.recipe.writer, "start", "own") == "end":
            weight.grad[END] += weight.grad[START]  # one piece there
        form, places = place_of(name, names)
        found |= dict(zip(places, form.back(weight.grad, numbers), strict=True))
    return found, {name: parameter.grad for name, parameter in model.named_parameters()}
