"""Tiny random encoders of transformers, saved as folders with a tokenizer of letters."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn

transformers = pytest.importorskip("transformers")
SHAPE = dict(
    vocab_size=18, hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=7,
    max_position_embeddings=29, layer_norm_eps=1e-6,
)  # fmt: skip


def letters(family: str) -> Tokenizer:
    """Build a tokenizer with one token per letter and the family's special tokens."""
    roberta = family == "roberta"
    special = ["<s>", "<pad>", "</s>", "<unk>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = [*special, *"▁abcdefghijkl"] + (["<mask>"] if roberta else [])
    core = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=special[3 if roberta else 1])
    )
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([*special, *(["<mask>"] if roberta else [])])
    if roberta:
        core.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    else:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return core


def config_of(family: str) -> Any:
    more = {"embedding_size": 5, "hidden_act": "gelu_new"} if family == "albert" else {}
    more |= {"type_vocab_size": 1} if family == "roberta" else {}
    name = {"bert": "BertConfig", "roberta": "RobertaConfig", "albert": "AlbertConfig"}[family]
    return getattr(transformers, name)(**SHAPE, **more)


def make(folder: Path, family: str, architecture: str, **more: Any) -> nn.Module:
    config = config_of(family)
    for key, value in more.items():
        setattr(config, key, value)
    model = getattr(transformers, architecture)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    letters(family).save(str(folder / "tokenizer.json"))
    return model
