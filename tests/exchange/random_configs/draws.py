"""Random configurations of the Hugging Face architectures, usual and unusual ones, each with a tokenizer of letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from saccade.data.tokenization.tokenizer import build_byte_alphabet

LETTERS = "▁abcdefghijkl"
EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3, 0.3)
# Activation functions of transformers; the last ones have no counterpart here.
ACTIVATIONS = (
    *("relu", "gelu", "gelu_new", "silu", "swish", "gelu_pytorch_tanh", "gelu_python") * 4,
    "quick_gelu",
    "tanh",
)
LABELS = ("O", "bad", "so", "good", "entailment")
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
ENCODER_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Draw(NamedTuple):
    """A configuration: class of transformers, arguments of its configuration class, tokenizer, and other files."""

    architecture: str
    config: dict[str, Any]
    tokenizer: Tokenizer | None
    preprocessor: dict[str, Any] | None = None


def build_tokenizer(
    tokens: Sequence[str], specials: Sequence[str], *, unknown: str | None, single: str = "", pair: str = ""
) -> Tokenizer:
    """Build a tokenizer with one token per letter; `single` and `pair` are templates of TemplateProcessing."""
    merges: list[tuple[str, str]] = []
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token=unknown))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    core.add_special_tokens(list(specials))
    if single:
        used = {part.partition(":")[0] for part in f"{single} {pair}".split() if not part.startswith("$")}
        special = [(token, core.token_to_id(token)) for token in sorted(used)]
        core.post_processor = processors.TemplateProcessing(single=single, pair=pair or None, special_tokens=special)
    return core


def build_byte_tokenizer(specials: Sequence[str]) -> Tokenizer:
    """Build a tokenizer with one token per byte, as that of Whisper without its merges."""
    core = Tokenizer(models.BPE({letter: number for number, letter in enumerate(build_byte_alphabet())}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return core


def draw_vocabulary(rng: Random, specials: Sequence[str], *, first: bool | None = None) -> tuple[list[str], int]:
    """Draw the order of the tokens, special ones first, last or anywhere, and the number of rows of the embedding."""
    tokens = [*specials, *LETTERS] if first is not False else [*LETTERS, *specials]
    if first is None and rng.random() < 0.5:
        rng.shuffle(tokens)
    return tokens, len(tokens) + rng.choice((0, 0, 3))


def draw_labels(rng: Random, architecture: str) -> dict[str, Any]:
    """Draw the labels of a classifier; nothing for other architectures."""
    if not architecture.endswith((*CLASSIFIERS, "ForImageClassification")):
        return {}
    names = rng.sample(LABELS, rng.randint(2 if "Image" in architecture else 1, 4))
    values: dict[str, Any] = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    kinds = [None, None, None, "single_label_classification" if len(names) > 1 else "regression"] * 3
    kinds.append("multi_label_classification")
    if "Token" not in architecture:
        values["problem_type"] = rng.choice(kinds)
    return values | rng.choice(({}, {}, {"finetuning_task": rng.choice(("mrpc", "sst-2", "MNLI"))}))


def draw_sizes(rng: Random) -> tuple[int, int]:
    """Draw a number of heads and a width that it divides."""
    heads = rng.randint(1, 3)
    return heads, heads * 2 * rng.randint(1, 4)


# ---- encoders


def draw_encoder(
    rng: Random, name: str, *, heads: Sequence[str], others: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any]]:
    """Draw an architecture, rarely one of the `others`, which cannot be imported, and its settings."""
    architecture = name + rng.choice((*heads, *CLASSIFIERS) * 4 + others)
    count, width = draw_sizes(rng)
    return architecture, {
        "hidden_size": width, "num_attention_heads": count, "num_hidden_layers": rng.randint(1, 3),
        "intermediate_size": rng.randint(3, 17), "hidden_act": rng.choice(ACTIVATIONS),
        "max_position_embeddings": rng.randint(30, 40), "layer_norm_eps": rng.choice(EPSILONS),
        "type_vocab_size": rng.choice((1, 2, 2, 3)), "hidden_dropout_prob": rng.choice((0.0, 0.1)),
        "tie_word_embeddings": rng.random() < 0.8, **draw_labels(rng, architecture),
        **rng.choice(({}, {"classifier_dropout": 0.3}, {"chunk_size_feed_forward": 1}) * 5 + ({"is_decoder": True},)),
    }  # fmt: skip


def draw_bert(rng: Random) -> Draw:
    architecture, config = draw_encoder(
        rng,
        "Bert",
        heads=("ForMaskedLM", "ForPreTraining", "Model"),
        others=("LMHeadModel", "ForNextSentencePrediction"),
    )
    tokens, size = draw_vocabulary(rng, ENCODER_SPECIALS)
    core = build_tokenizer(
        tokens, ENCODER_SPECIALS, unknown="[UNK]", single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1"
    )
    return Draw(architecture, {**config, "vocab_size": size, "pad_token_id": core.token_to_id("[PAD]")}, core)


def draw_roberta(rng: Random) -> Draw:
    architecture, config = draw_encoder(rng, "Roberta", heads=("ForMaskedLM", "Model"), others=("ForCausalLM",))
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens, size = draw_vocabulary(rng, specials, first=None if rng.random() < 0.2 else True)
    pair = "<s> $A </s> </s> $B </s>" if rng.random() < 0.8 else "<s> $A </s> $B </s>"
    core = build_tokenizer(tokens, specials, unknown="<unk>", single="<s> $A </s>", pair=pair)
    roles = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
    ids = {key: core.token_to_id(token) for key, token in roles.items()}
    types = {"type_vocab_size": rng.choice((1, 1, 1, 2))}
    return Draw(architecture, {**config, **types, "vocab_size": size, **ids}, core)


def draw_albert(rng: Random) -> Draw:
    architecture, config = draw_encoder(rng, "Albert", heads=("ForMaskedLM", "ForPreTraining", "Model"))
    config.pop("is_decoder", None)
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    tokens, size = draw_vocabulary(rng, specials)
    core = build_tokenizer(
        tokens, specials, unknown="<unk>", single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1"
    )
    roles = {"bos_token_id": "[CLS]", "pad_token_id": "<pad>", "eos_token_id": "[SEP]"}
    groups = rng.choice(({},) * 9 + ({"num_hidden_groups": 2, "num_hidden_layers": 2}, {"inner_group_num": 2}))
    own = {"embedding_size": rng.randint(3, 9), "classifier_dropout_prob": rng.choice((0.0, 0.1)), **groups}
    ids = {key: core.token_to_id(token) for key, token in roles.items()}
    return Draw(architecture, {**config, **own, "vocab_size": size, **ids}, core)


def draw_xlnet(rng: Random) -> Draw:
    architecture = "XLNet" + rng.choice(
        ("LMHeadModel", "Model", *CLASSIFIERS, CLASSIFIERS[0]) * 3 + ("ForMultipleChoice",)
    )
    heads, width = draw_sizes(rng)
    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    tokens, size = draw_vocabulary(rng, specials)
    core = build_tokenizer(
        tokens, specials, unknown="<unk>", single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    )
    projects = rng.random() < 0.7
    activations = ("tanh", "gelu", "relu", "linear") if projects else ("linear",) * 5 + ("tanh",)
    unusual: tuple[dict[str, Any], ...] = (
        {"attn_type": "uni"}, {"clamp_len": 3}, {"same_length": True}, {"bi_data": True},
    )  # fmt: skip
    config = {
        "vocab_size": size, "d_model": width, "n_layer": rng.randint(1, 3), "n_head": heads,
        "d_inner": rng.randint(3, 17),
        "ff_activation": rng.choice(("gelu", "relu", "silu", "gelu_new") * 3 + ("tanh",)),
        "untie_r": True, "layer_norm_eps": rng.choice(EPSILONS), "dropout": rng.choice((0.0, 0.1)),
        "mem_len": rng.choice((None, 5)), "use_mems_eval": rng.random() < 0.5,
        "summary_type": rng.choice(("last",) * 6 + ("first", "first", "mean")), "summary_use_proj": projects,
        "summary_activation": rng.choice(activations),
        "summary_last_dropout": rng.choice((0.0, 0.1)), "pad_token_id": core.token_to_id("<pad>"),
        "bos_token_id": core.token_to_id("<s>"), "eos_token_id": core.token_to_id("</s>"),
        "tie_word_embeddings": rng.random() < 0.8, **draw_labels(rng, architecture),
        **rng.choice(({},) * 30 + unusual),
    }  # fmt: skip
    return Draw(architecture, config, core)


# ---- decoders


def draw_decoder_tokenizer(rng: Random) -> tuple[Tokenizer, dict[str, Any]]:
    """Draw the tokenizer of a decoder in the form of GPT-2 or Llama, and the ids of its special tokens."""
    specials = rng.choice((["<|endoftext|>"], ["<|endoftext|>", "<pad>"], ["<unk>", "<s>", "</s>"]))
    first = specials[0] == "<unk>"
    tokens, size = draw_vocabulary(rng, specials, first=first if rng.random() < 0.7 else None)
    single, pair = ("<s> $A", "<s> $A </s> $B") if first else ("$A", "$A <|endoftext|> $B")
    core = build_tokenizer(
        tokens, specials, unknown="<unk>" if first else None, single=single if rng.random() < 0.8 else "", pair=pair
    )
    start, end = (core.token_to_id(token) for token in (("<s>", "</s>") if first else ("<|endoftext|>",) * 2))
    return core, {
        "vocab_size": size, "bos_token_id": start, "eos_token_id": end,
        "pad_token_id": rng.choice((core.token_to_id("<pad>"), end, end, None)),
    }  # fmt: skip


def draw_classifier_padding(rng: Random, architecture: str, ids: dict[str, Any]) -> dict[str, Any]:
    """Sequence classifiers need a padding token; transformers refuses batches without one."""
    if architecture.endswith(CLASSIFIERS[0]) and ids["pad_token_id"] is None:
        return {"pad_token_id": ids["eos_token_id"]}
    return {}


def draw_gpt2(rng: Random) -> Draw:
    architecture = "GPT2" + rng.choice(("LMHeadModel", "LMHeadModel", *CLASSIFIERS) * 4 + ("Model",))
    core, ids = draw_decoder_tokenizer(rng)
    heads, width = draw_sizes(rng)
    config = {
        **ids, **draw_classifier_padding(rng, architecture, ids), "n_embd": width, "n_head": heads,
        "n_layer": rng.randint(1, 3), "n_inner": rng.choice((None, 7, 11)), "n_positions": rng.randint(24, 32),
        "activation_function": rng.choice(ACTIVATIONS), "layer_norm_epsilon": rng.choice(EPSILONS),
        "tie_word_embeddings": rng.random() < 0.8, "summary_activation": rng.choice((None, "tanh")),
        "resid_pdrop": rng.choice((0.0, 0.1)), **draw_labels(rng, architecture),
        **rng.choice(
            (
                *({},) * 9, {"scale_attn_weights": False}, {"scale_attn_weights": False}, {"add_cross_attention": True},
                {"scale_attn_by_inverse_layer_idx": True}, {"reorder_and_upcast_attn": True},
            )
        ),
    }  # fmt: skip
    return Draw(architecture, config, core)


def draw_gptneo(rng: Random) -> Draw:
    architecture = "GPTNeo" + rng.choice(("ForCausalLM", "ForCausalLM", *CLASSIFIERS) * 4 + ("Model",))
    core, ids = draw_decoder_tokenizer(rng)
    heads, width = draw_sizes(rng)
    types = rng.choice(
        (
            [[["global", "local"], 1]], [[["global"], 2]], [[["local"], 1]], [[["local", "global", "global"], 1]],
            [[["global"], 1], [["local"], 2]], [[["global", "local"], 2]],
        )
    )  # fmt: skip
    config = {
        **ids, **draw_classifier_padding(rng, architecture, ids), "hidden_size": width, "num_heads": heads,
        "num_layers": sum(len(kinds) * times for kinds, times in types), "attention_types": types,
        "window_size": rng.randint(1, 8), "intermediate_size": rng.choice((None, 7)),
        "max_position_embeddings": rng.randint(24, 32), "activation_function": rng.choice(ACTIVATIONS),
        "layer_norm_epsilon": rng.choice(EPSILONS), "tie_word_embeddings": rng.random() < 0.8,
        "classifier_dropout": rng.choice((0.0, 0.1)), **draw_labels(rng, architecture),
    }  # fmt: skip
    return Draw(architecture, config, core)


def draw_rope(rng: Random) -> dict[str, Any]:
    base = rng.choice((10000.0, 500000.0, 700.0))
    scaled = {
        "rope_type": "llama3", "factor": rng.choice((2.0, 8.0)), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": rng.choice((16, 400)),
    }  # fmt: skip
    linear: dict[str, Any] = {"rope_type": "linear", "factor": rng.choice((2.0, 4.0))}
    other = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    kind = rng.choice(({"rope_type": "default"},) * 4 + (scaled,) * 4 + (linear,) * 2 + (other,))
    return {"rope_parameters": {"rope_theta": base, **kind}}


def draw_llama(rng: Random) -> Draw:
    architecture = "Llama" + rng.choice(("ForCausalLM", "ForCausalLM", *CLASSIFIERS) * 4 + ("Model",))
    specials = rng.choice((["<unk>", "<s>", "</s>"], ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<pad>"]))
    old = specials[0] == "<unk>"
    tokens, size = draw_vocabulary(rng, specials, first=old if rng.random() < 0.7 else None)
    start, end = ("<s>", "</s>") if old else ("<|begin_of_text|>", "<|end_of_text|>")
    core = build_tokenizer(
        tokens, specials, unknown="<unk>" if old else None, single=f"{start} $A", pair=f"{start} $A {end} $B"
    )
    ids: dict[str, Any] = {
        "bos_token_id": core.token_to_id(start), "eos_token_id": core.token_to_id(end), "pad_token_id": None,
    }  # fmt: skip
    ids |= draw_classifier_padding(rng, architecture, ids)
    if not old and rng.random() < 0.5:
        ids["eos_token_id"] = [ids["eos_token_id"], core.token_to_id("<|eot_id|>")]
    shared = rng.choice((1, 2))
    heads = shared * rng.choice((1, 2, 3))
    width = heads * 2 * rng.randint(1, 3)
    config = {
        "vocab_size": size, **ids, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": rng.choice((shared, None)), "num_hidden_layers": rng.randint(1, 3),
        "intermediate_size": rng.randint(3, 17), "max_position_embeddings": rng.randint(24, 32),
        "rms_norm_eps": rng.choice(EPSILONS), "tie_word_embeddings": rng.random() < 0.5,
        "hidden_act": rng.choice(("silu", "silu", "swish", "gelu", "gelu_pytorch_tanh", "relu") * 2 + ("tanh",)),
        "head_dim": rng.choice((None, 6)), **draw_rope(rng), **draw_labels(rng, architecture),
        **rng.choice(({},) * 9 + ({"attention_bias": True}, {"mlp_bias": True}, {"pretraining_tp": 2})),
    }  # fmt: skip
    return Draw(architecture, config, core)


def draw_reformer(rng: Random) -> Draw:
    architecture = "Reformer" + rng.choice(("ModelWithLMHead",) * 18 + ("ForMaskedLM", "ForSequenceClassification"))
    specials = rng.choice((["<pad>", "<unk>", "</s>"], ["<unk>", "</s>"], ["<unk>", "<s>", "</s>", "<pad>"]))
    tokens, size = draw_vocabulary(rng, specials)
    core = build_tokenizer(tokens, specials, unknown="<unk>")
    heads, width = draw_sizes(rng)
    rows, columns, first = rng.randint(4, 6), rng.randint(6, 8), rng.randint(1, width - 1)
    local, lsh = rng.choice(((4, 4), (4, 6), (3, 4), (6, 4), (8, 4)))
    multiple = local * lsh
    longest = -(-rows * columns // multiple) * multiple
    axial = rng.random() < 0.6
    config = {
        "vocab_size": size, "hidden_size": width, "num_attention_heads": heads,
        "attention_head_size": rng.randint(2, 6),
        "feed_forward_size": rng.randint(3, 17), "is_decoder": architecture.endswith("LMHead"),
        "attn_layers": rng.choices(("local", "lsh"), k=rng.randint(1, 3)), "num_hashes": rng.randint(1, 3),
        "lsh_attn_chunk_length": lsh, "local_attn_chunk_length": local, "hash_seed": rng.choice((3, 11)),
        "num_buckets": rng.choice((None, None, 4, 6, [2, 4])), "axial_pos_embds": axial,
        "axial_pos_shape": [longest // 6, 6], "axial_pos_embds_dim": [first, width - first],
        "max_position_embeddings": longest, "hidden_act": rng.choice(ACTIVATIONS),
        "layer_norm_eps": rng.choice(EPSILONS), "tie_word_embeddings": rng.random() < 0.05,
        "chunk_size_feed_forward": rng.choice((0, 1)), "chunk_size_lm_head": rng.choice((0, 1)),
        "hidden_dropout_prob": 0.0, "pad_token_id": core.token_to_id("<pad>") or 0,
        "eos_token_id": core.token_to_id("</s>"), "bos_token_id": core.token_to_id("<s>"),
        **rng.choice(({},) * 9 + ({"lsh_num_chunks_before": 2},)),
    }  # fmt: skip
    return Draw(architecture, config, core)


# ---- encoder-decoders


def draw_sides(rng: Random) -> dict[str, Any]:
    """Draw the sizes that BART, Marian and Whisper share; those of encoder and decoder may differ."""
    width = 2 * rng.choice((6, 12))
    return {
        "d_model": width, "encoder_layers": rng.randint(1, 3), "decoder_layers": rng.randint(1, 3),
        "encoder_attention_heads": rng.choice((1, 2, 3)), "decoder_attention_heads": rng.choice((1, 2, 3, 6)),
        "encoder_ffn_dim": rng.randint(3, 17), "decoder_ffn_dim": rng.randint(3, 17),
        "activation_function": rng.choice(ACTIVATIONS), "scale_embedding": rng.random() < 0.5,
        "dropout": rng.choice((0.0, 0.1)), "activation_dropout": rng.choice((0.0, 0.1)),
        "tie_word_embeddings": rng.random() < 0.95,
    }  # fmt: skip


def draw_bart(rng: Random) -> Draw:
    architecture = "Bart" + rng.choice(("ForConditionalGeneration",) * 9 + (CLASSIFIERS[0],) * 4 + ("ForCausalLM",))
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens, size = draw_vocabulary(rng, specials, first=None if rng.random() < 0.3 else True)
    pair = "<s> $A </s> </s> $B </s>"
    core = build_tokenizer(tokens, specials, unknown="<unk>", single="<s> $A </s>", pair=pair)
    start, padding, end = map(core.token_to_id, specials[:3])
    config = {
        **draw_sides(rng), "vocab_size": size, "max_position_embeddings": rng.randint(24, 32),
        "bos_token_id": start, "pad_token_id": padding, "eos_token_id": end, "forced_eos_token_id": None,
        "decoder_start_token_id": rng.choice((end, end, start, padding)),
        "forced_bos_token_id": rng.choice((None, start, start)), **draw_labels(rng, architecture),
    }  # fmt: skip
    return Draw(architecture, config, core)


def draw_marian(rng: Random) -> Draw:
    specials = ["</s>", "<unk>", "<pad>"]
    tokens, size = draw_vocabulary(rng, specials)
    core = build_tokenizer(tokens, specials, unknown="<unk>", single="$A </s>", pair="$A </s> $B </s>")
    end, padding = core.token_to_id("</s>"), core.token_to_id("<pad>")
    config = {
        **draw_sides(rng), "vocab_size": size, "max_position_embeddings": rng.randint(24, 32), "eos_token_id": end,
        "pad_token_id": padding, "decoder_start_token_id": rng.choice((padding, padding, end)), "bos_token_id": None,
        "forced_eos_token_id": None, "share_encoder_decoder_embeddings": rng.random() < 0.95,
    }  # fmt: skip
    return Draw("MarianMTModel", config, core)


def draw_t5(rng: Random) -> Draw:
    architecture = "T5" + rng.choice(
        ("ForConditionalGeneration",) * 9 + ("EncoderModel", *CLASSIFIERS) * 3 + ("Model",)
    )
    specials = ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
    tokens, size = draw_vocabulary(rng, specials, first=None if rng.random() < 0.3 else True)
    core = build_tokenizer(tokens, specials, unknown="<unk>", single="$A </s>", pair="$A </s> $B </s>")
    padding, end = core.token_to_id("<pad>"), core.token_to_id("</s>")
    forms = ("relu", "relu", "gelu", "gated-gelu", "gated-gelu", "gated-silu", "gated-relu", "silu", "gelu_new", "tanh")
    config = {
        "vocab_size": size, "d_model": rng.randint(5, 12), "d_kv": rng.randint(2, 5), "num_heads": rng.randint(1, 3),
        "d_ff": rng.randint(3, 17), "num_layers": rng.randint(1, 3), "num_decoder_layers": rng.choice((None, 1, 2)),
        "feed_forward_proj": rng.choice(forms), "relative_attention_num_buckets": rng.choice((4, 8, 6, 32)),
        "relative_attention_max_distance": rng.choice((9, 20, 128)), "layer_norm_epsilon": rng.choice(EPSILONS),
        "pad_token_id": padding, "eos_token_id": end, "decoder_start_token_id": rng.choice((padding, padding, end)),
        "dropout_rate": rng.choice((0.0, 0.1)), **rng.choice(({}, {"tie_word_embeddings": False})),
        **draw_labels(rng, architecture),
    }  # fmt: skip
    return Draw(architecture, config, core)


# ---- pictures and sound


def draw_vit(rng: Random) -> Draw:
    architecture = "ViT" + rng.choice(("ForImageClassification", "Model") * 8 + ("ForMaskedImageModeling",))
    heads, width = draw_sizes(rng)
    patch = rng.choice((3, 4, 6, 3, 4, [4, 4]) * 2 + ([3, 4],))
    sides = [rng.choice((1, 2, 3)) * 12 for _ in range(2)]
    labels = draw_labels(rng, architecture)
    config = {
        "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": rng.randint(1, 3),
        "intermediate_size": rng.randint(3, 17), "hidden_act": rng.choice(ACTIVATIONS),
        "layer_norm_eps": rng.choice(EPSILONS), "image_size": sides[0] if rng.random() < 0.6 else sides,
        "patch_size": patch, "num_channels": rng.choice((3,) * 15 + (1,)), "qkv_bias": rng.random() < 0.95,
        "pooler_act": rng.choice(("tanh",) * 15 + ("relu",)), "hidden_dropout_prob": rng.choice((0.0, 0.1)),
        "pooler_output_size": rng.choice((None,) * 15 + (5,)), **labels,
    }  # fmt: skip
    return Draw(architecture, config, None)


WHISPER_SPECIALS = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


def draw_whisper(rng: Random) -> Draw:
    architecture = "Whisper" + rng.choice(("ForConditionalGeneration",) * 12 + ("ForAudioClassification",))
    specials = WHISPER_SPECIALS if rng.random() < 0.7 else (*WHISPER_SPECIALS[:2], WHISPER_SPECIALS[4])
    core = build_byte_tokenizer(specials)
    end, bands, states = core.token_to_id(specials[0]), rng.choice((6, 8, 80)), rng.choice((50, 100))
    config = {
        **draw_sides(rng), "num_mel_bins": bands, "max_source_positions": states, "max_target_positions": 24,
        "vocab_size": core.get_vocab_size() + rng.choice((0, 3)), "pad_token_id": end, "bos_token_id": end,
        "eos_token_id": end, "decoder_start_token_id": end + 1, "begin_suppress_tokens": None,
        "scale_embedding": rng.random() < 0.05, "use_weighted_layer_sum": rng.random() < 0.05,
    }  # fmt: skip
    return Draw(architecture, config, core, {"feature_size": bands, "chunk_length": states // 50})


DRAWS: dict[str, Callable[[Random], Draw]] = {
    "bert": draw_bert, "roberta": draw_roberta, "albert": draw_albert, "xlnet": draw_xlnet, "gpt2": draw_gpt2,
    "gpt_neo": draw_gptneo, "llama": draw_llama, "reformer": draw_reformer, "bart": draw_bart, "marian": draw_marian,
    "t5": draw_t5, "vit": draw_vit, "whisper": draw_whisper,
}  # fmt: skip
