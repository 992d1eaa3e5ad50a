"""Configurations of published models, with their keys and values but with small sizes: accepted and exact."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from comparison import check_both_ways, write_folder
from draws import DRAWS, ENCODER_SPECIALS, LETTERS, Draw, build_byte_tokenizer, build_tokenizer
from tokenizers import Tokenizer

transformers = pytest.importorskip("transformers")
PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published.json").read_text())
NUM_FAST = 2  # models of each family whose tests are not slow
MODELS = [
    pytest.param(family, name, id=name, marks=[pytest.mark.slow] if number >= NUM_FAST else [])
    for family, models in PUBLISHED.items()
    for number, name in enumerate(models)
]
SIZES: dict[str, Any] = {  # of these models, in place of the published ones
    "hidden_size": 12, "d_model": 12, "n_embd": 12, "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2,
    "encoder_layers": 2, "decoder_layers": 1, "num_decoder_layers": 2, "intermediate_size": 17, "d_ff": 17,
    "d_inner": 17, "encoder_ffn_dim": 17, "decoder_ffn_dim": 11, "feed_forward_size": 17, "embedding_size": 5,
    "num_attention_heads": 2, "num_heads": 2, "n_head": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "num_key_value_heads": 1, "d_head": 6, "d_kv": 5, "head_dim": 6, "attention_head_size": 5,
    "max_position_embeddings": 48, "n_positions": 48, "n_ctx": 48, "image_size": 12, "patch_size": 4,
    "max_source_positions": 50, "max_target_positions": 24, "num_mel_bins": 8, "pooler_output_size": 12,
    "axial_pos_shape": [6, 8], "axial_pos_embds_dim": [5, 7], "attn_layers": ["local", "lsh"],
    "lsh_attn_chunk_length": 6, "local_attn_chunk_length": 4, "window_size": 5,
}  # fmt: skip
SPECIALS = {  # in the order of their ids
    "bert": ENCODER_SPECIALS,
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "bart": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "t5": ("<pad>", "</s>", "<unk>", "<extra_id_0>"),
    "reformer": ("<pad>", "<unk>", "</s>"),
    "xlnet": ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    "marian": ("</s>", "<unk>", "<pad>"),
}
TEMPLATES = {  # of one text and of two
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
    "xlnet": ("$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"),
}
TEMPLATES |= {"albert": TEMPLATES["bert"], "bart": TEMPLATES["roberta"], "marian": TEMPLATES["t5"]}


def build_model_tokenizer(family: str, tokens: dict[str, str]) -> Tokenizer | None:
    """Build a small tokenizer with the special tokens of a family, or with those of a model."""
    if family == "vit":
        return None
    if family == "whisper":
        return build_byte_tokenizer(list(tokens.values()))
    specials = list(SPECIALS.get(family, tokens.values()))
    single, pair = TEMPLATES.get(family, ("", ""))
    if family == "llama" and (
        start := next((token for token in ("<s>", "<|begin_of_text|>") if token in specials), "")
    ):
        single = f"{start} $A"
    unknown = next((token for token in ("<unk>", "[UNK]") if token in specials), None)
    return build_tokenizer([*specials, *LETTERS], specials, unknown=unknown, single=single, pair=pair)


def shrink(config: dict[str, Any], tokens: dict[str, str], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the configuration with small sizes, and with the ids that its special tokens have in the tokenizer."""
    values = {key: SIZES.get(key, value) if value is not None else None for key, value in config.items()}
    if "attention_types" in values:
        values |= {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]}
    if isinstance(values.get("num_buckets"), list):
        values["num_buckets"] = [2, 4]
    if values["model_type"] == "reformer":  # without a seed, two calls give different outputs
        values["hash_seed"] = 3
    if tokenizer is None:
        return values
    ids = {int(number): tokenizer.token_to_id(token) for number, token in tokens.items()}

    def renumber(value: Any) -> Any:
        if isinstance(value, list):
            return [renumber(item) for item in value]
        return ids.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    values |= {key: renumber(value) for key, value in values.items() if key.endswith(("token_id", "words_ids"))}
    if values.get("forced_decoder_ids"):
        values["forced_decoder_ids"] = [[at, ids[token]] for at, token in values["forced_decoder_ids"]]
    size = tokenizer.get_vocab_size() + 1  # as often, there are more rows than tokens
    return values | {key: size for key in ("vocab_size", "decoder_vocab_size", "n_token") if key in values}


def test_every_family_has_published_models() -> None:
    assert set(PUBLISHED) == set(DRAWS) and all(len(models) >= 5 for models in PUBLISHED.values())


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_published_configurations_are_imported_exactly(family: str, name: str, tmp_path: Path) -> None:
    tokens = PUBLISHED[family][name].get("tokens", {})
    tokenizer = build_model_tokenizer(family, tokens)
    config = shrink(PUBLISHED[family][name]["config"], tokens, tokenizer)
    architecture = config.get("architectures", ["BertForPreTraining"])[0]
    architecture = {"T5WithLMHeadModel": "T5ForConditionalGeneration"}.get(architecture, architecture)
    speech = {"feature_size": config["num_mel_bins"], "chunk_length": 1} if family == "whisper" else None
    write_folder(Draw(architecture, config, tokenizer, speech), tmp_path / "folder", Random(name), published=True)
    refusal = check_both_ways(tmp_path / "folder", tmp_path, Random(name))
    assert refusal is None, f"{name} is refused: {refusal}"
