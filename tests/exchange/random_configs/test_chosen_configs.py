"""Configurations that were once imported or exported wrongly, or refused although they can be expressed."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from comparison import check_both_ways, write_folder
from draws import DRAWS, LETTERS, Draw, build_tokenizer

import saccade
from saccade.config.load import override
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import load_run

transformers = pytest.importorskip("transformers")
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}  # deepseek-coder
REFORMER = {
    "lsh_num_chunks_before": 1, "tie_word_embeddings": False, "hidden_act": "gelu", "is_decoder": True,
    "axial_pos_embds": False, "num_hashes": 1,
}  # fmt: skip


def draw(family: str, architecture: str, **settings: Any) -> Draw:
    """Draw the first configuration of an architecture, and change some of its settings; tokens stand for their ids."""
    found = (DRAWS[family](Random(f"{family} {seed}")) for seed in range(1000))
    first = next(one for one in found if one.architecture == architecture)
    assert first.tokenizer is not None
    ids = {key: first.tokenizer.token_to_id(value) for key, value in settings.items() if key.endswith("token_id")}
    return first._replace(config={**first.config, **settings, **ids})


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("family", "architecture", "settings"),
    [
        ("roberta", "RobertaForMaskedLM", {"hidden_act": "relu", "is_decoder": False, "tie_word_embeddings": True}),
        ("bart", "BartForConditionalGeneration", {"decoder_start_token_id": "<s>", "tie_word_embeddings": True}),
        ("xlnet", "XLNetForSequenceClassification", {"summary_use_proj": False, "summary_activation": "linear"}),
        ("xlnet", "XLNetForSequenceClassification", {"summary_use_proj": True, "summary_activation": "relu"}),
        ("llama", "LlamaForCausalLM", {"hidden_act": "gelu", "attention_bias": True, "rope_parameters": None}),
        ("llama", "LlamaForCausalLM", {"hidden_act": "silu", "rope_parameters": LINEAR}),
        ("gpt2", "GPT2LMHeadModel", {"scale_attn_weights": False, "tie_word_embeddings": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)  # fmt: skip
def test_they_are_exact(family: str, architecture: str, settings: dict[str, Any], tmp_path: Path) -> None:
    plain = {"attn_type": "bi", "clamp_len": -1, "same_length": False, "bi_data": False, "problem_type": None}
    usual = {
        "xlnet": {**plain, "summary_type": "last", "ff_activation": "gelu"},
    }
    others = usual.get(family, {"activation_function": "gelu"} if family in ("bart", "gpt2") else {})
    write_folder(draw(family, architecture, **others, **settings), tmp_path / "folder", Random(1))
    assert check_both_ways(tmp_path / "folder", tmp_path, Random(1)) is None


def test_the_mask_token_may_be_without_a_row(tmp_path: Path) -> None:
    """The tokenizer of bart-large-cnn has <mask>, its embedding has not."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "<mask>"]
    pair = "<s> $A </s> </s> $B </s>"
    core = build_tokenizer(tokens, [*tokens[:4], "<mask>"], unknown="<unk>", single="<s> $A </s>", pair=pair)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "vocab_size": 17}
    found = draw("bart", "BartForConditionalGeneration", tie_word_embeddings=True, activation_function="gelu")
    found = found._replace(config={**found.config, **ids, "forced_bos_token_id": 0}, tokenizer=core)
    write_folder(found, tmp_path / "folder", Random(1))
    assert check_both_ways(tmp_path / "folder", tmp_path, Random(1)) is None


def test_an_untied_output_matrix_must_be_stored(tmp_path: Path) -> None:
    found = draw("gpt2", "GPT2LMHeadModel", activation_function="relu", tie_word_embeddings=True)
    write_folder(found, tmp_path / "folder", Random(1))
    change_config(tmp_path / "folder", tie_word_embeddings=False)
    with pytest.raises(SaccadeError, match="lacks the tensor 'lm_head.weight', which the model of config.json has"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))


def test_an_activation_of_the_state_itself_is_refused(tmp_path: Path) -> None:
    """Without a projection, XLNet applies the activation of its head to the pooled state."""
    write_folder(draw("xlnet", "XLNetForSequenceClassification"), tmp_path / "folder", Random(1))
    plain = {"attn_type": "bi", "clamp_len": -1, "same_length": False, "bi_data": False, "problem_type": None}
    change_config(tmp_path / "folder", **plain, ff_activation="gelu", summary_use_proj=False, summary_activation="tanh")
    with pytest.raises(SaccadeError, match="'tanh' is not supported; without summary_use_proj, only 'linear' can be"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))


def test_the_default_number_of_buckets_must_not_depend_on_the_longest_sequence(tmp_path: Path) -> None:
    settings = {**REFORMER, "num_buckets": None, "attn_layers": ["lsh"], "lsh_attn_chunk_length": 2}
    write_folder(draw("reformer", "ReformerModelWithLMHead", **settings), tmp_path / "folder", Random(1))
    with pytest.raises(SaccadeError, match="num_buckets = None is not supported; expected a number: its default"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))


def draw_llama_with_ends() -> Draw:
    for seed in range(100):
        found = DRAWS["llama"](Random(f"llama {seed}"))
        if found.architecture == "LlamaForCausalLM" and isinstance(found.config["eos_token_id"], list):
            return found._replace(config={**found.config, "rope_parameters": None, "hidden_act": "silu"})
    raise AssertionError("no configuration with several end tokens")


@pytest.mark.parametrize("where", ["config.json", "generation_config.json"])
def test_an_output_ends_at_any_of_several_end_tokens(where: str, tmp_path: Path) -> None:
    """Llama 3.1 Instruct has three: of a text, of a message and of a turn."""
    found, folder = draw_llama_with_ends(), tmp_path / "folder"
    write_folder(found, folder, Random(1), published=False)
    ends = found.config["eos_token_id"]
    change_config(folder, eos_token_id=ends if where == "config.json" else ends[0])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    import_folder(str(folder), str(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    assert run.recipe.predict.stop == ("<|eot_id|>",)
    path, _ = export_run(tmp_path / "run", tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((path / name).read_text())["eos_token_id"] == ends
    target = run.tokenizers.target
    turn = target.library_ids.index(ends[1])
    predictor = saccade.load(tmp_path / "run", device="cpu")
    predictor.model.writer.output.bias.data[turn] = 100.0  # now this token follows everything
    decoding = override(run.recipe, ["predict.sample=false", "predict.max_length=5"]).predict
    [[best]] = predictor.candidates(["abc"], decoding=decoding)
    assert (best.text, best.finish) == ("", "stop")


def test_an_unknown_end_token_is_refused(tmp_path: Path) -> None:
    found, folder = draw_llama_with_ends(), tmp_path / "folder"
    write_folder(found, folder, Random(1))
    change_config(folder, eos_token_id=[*found.config["eos_token_id"], 99])
    with pytest.raises(SaccadeError, match=r"eos_token_id = .*99\] is not supported; the tokenizer has no token 99"):
        import_folder(str(folder), str(tmp_path / "run"))


def test_unknown_keys_are_refused_unless_they_are_null_or_notes(tmp_path: Path) -> None:
    write_folder(draw("gpt2", "GPT2LMHeadModel", activation_function="relu"), tmp_path / "folder", Random(1))
    change_config(tmp_path / "folder", _note=3, some_option=None)
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    change_config(tmp_path / "folder", some_option=3)
    with pytest.raises(SaccadeError, match="some_option = 3 is not supported; it is unknown and may change the output"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "other"))


def test_a_padding_token_in_the_last_row_is_exported(tmp_path: Path) -> None:
    """It has the name of the token that an import adds to a vocabulary without one."""
    settings = {**REFORMER, "attn_layers": ["local"], "num_buckets": None}
    for seed in range(1000):
        found = DRAWS["reformer"](Random(f"reformer {seed}"))
        vocabulary = {} if found.tokenizer is None else found.tokenizer.get_vocab()
        if len(vocabulary) == 17 == found.config["vocab_size"] and vocabulary.get("<pad>") == 16:
            break
    found = found._replace(architecture="ReformerModelWithLMHead", config={**found.config, **settings})
    write_folder(found, tmp_path / "folder", Random(1))
    assert check_both_ways(tmp_path / "folder", tmp_path, Random(1)) is None
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 17
