"""Formats of folders that can be imported, and error messages for those that cannot."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.exchange import importing
from saccade.exchange.importing import import_folder
from saccade.model.run import load_run, read_weights
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

Make = Callable[..., Any]
INFINITE = {"vocab_size": math.inf, "decoder_vocab_size": math.inf}


def edit(path: Path, **changes: Any) -> None:
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


@pytest.fixture
def folder(make: Make) -> Path:
    path: Path = make("marian")[0]
    return path


@pytest.fixture
def import_it(tmp_path: Path, folder: Path) -> Callable[[], Any]:
    return lambda: import_folder(str(folder), str(tmp_path / "run"))


@pytest.fixture
def sharded_folders(make: Make, tmp_path: Path) -> Path:
    """Write the same model as one file and as shards."""
    whole, model = make("bart")
    parts = tmp_path / "shards"
    model.save_pretrained(parts, max_shard_size="3KB")
    shutil.copy(whole / "tokenizer.json", parts)
    assert len(list(parts.glob("*.safetensors"))) > 2
    return parts


def test_shards_are_one_model(sharded_folders: Path, tmp_path: Path) -> None:
    folders = (tmp_path / "bart-folder", sharded_folders)
    runs = [import_folder(str(folder), str(tmp_path / f"run-{folder.name}")).path for folder in folders]
    first, second = (read_weights(run / "model.safetensors") for run in runs)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_broken_shards_are_named(sharded_folders: Path, tmp_path: Path) -> None:
    shard = sorted(sharded_folders.glob("*.safetensors"))[1]

    def assert_refused(message: str) -> None:
        with pytest.raises(SaccadeError, match=message):
            import_folder(str(sharded_folders), str(tmp_path / "run"))

    shard.write_bytes(shard.read_bytes()[:-40])
    assert_refused(rf"{shard.name} is not a complete safetensors file .*; download it again")
    save_file({"odd": torch.ones(1)}, shard)
    assert_refused(rf"{shard.name} lacks the tensor '.*', which model.safetensors.index.json lists there")
    listed = sharded_folders / "model.safetensors.index.json"
    elsewhere = {name: 5 if name == "final_logits_bias" else f"../{place}" for name, place in
                 json.loads(listed.read_text())["weight_map"].items()}  # fmt: skip
    shard.unlink()
    assert_refused(f"lacks the shard {shard.name}, which model.safetensors.index.json names; download it again")
    save_file({"odd": torch.ones(1)}, tmp_path / shard.name)
    edit(listed, weight_map=elsewhere)
    assert_refused(f"lacks the shard (5|../{shard.name}), which model.safetensors.index.json names")
    (sharded_folders / "model.safetensors.index.json").write_text("{}")
    assert_refused("has no weight_map with the file of each tensor")


def test_pickle_files_are_read_as_tensors_only(folder: Path, import_it: Callable[[], Any], tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    expected = read_weights(import_folder(str(folder), str(tmp_path / "new")).path / "model.safetensors")
    (folder / "model.safetensors").unlink()
    old = folder / "pytorch_model.bin"
    for content, why in (({"what": print}, "it contains print"), ([1, 2], "expected a dictionary of tensors")):
        torch.save(content, old)
        with pytest.raises(SaccadeError, match=rf"bin does not contain tensors only \({why}\).*: take the model.safe"):
            import_it()
    for junk in (b"", b"no such file at all"):
        old.write_bytes(junk)
        with pytest.raises(SaccadeError, match=r"\(it is truncated, or not a file of torch.save\)"):
            import_it()
    torch.save(tensors, folder / "pytorch_model.bin")
    got = read_weights(import_it().path / "model.safetensors")
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_half_precision_becomes_float32(folder: Path, import_it: Callable[[], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert {tensor.dtype for tensor in read_weights(import_it().path / "model.safetensors").values()} == {torch.float32}


def change_tensors(folder: Path, **changes: Any) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **{key.replace("__", "."): x for key, x in changes.items()}}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not ...}, folder / "model.safetensors")


FC = "model__encoder__layers__1__fc1__bias"
BAD = [
    (lambda f: (f / "model.safetensors").unlink(), "has no weights: expected model.safetensors"),
    (lambda f: (f / "config.json").unlink(), "has no config.json; expected a Hugging Face folder"),
    (lambda f: (f / "config.json").write_text("{"), "config.json: not valid JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "config.json: expected a JSON object, got list; restore the file"),
    (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer: expected tokenizer.json, a SentencePiece file"),
    (lambda f: change_tensors(f, **{FC: ...}), "lacks the tensor 'model.encoder.layers.1.fc1.bias', which"),
    (lambda f: change_tensors(f, odd=torch.ones(1)), "has the tensor 'odd', which marian does not have"),
    (lambda f: change_tensors(f, **{FC: torch.ones(3)}), r"fc1.bias of shape \(3,\) cannot become \(7,\), the shape"),
    (lambda f: change_tensors(f, lm_head__weight=torch.ones(16, 10)), "lm_head.weight differs from model.shared"),
    (lambda f: edit(f / "config.json", model_type="gru"), "unknown model_type = 'gru'; expected one of albert,"),
    (lambda f: edit(f / "config.json", architectures=["MarianModel"]), "expected a marian folder with MarianMTModel"),
    (lambda f: edit(f / "config.json", d_model=...), "config.json lacks the key 'd_model'; is it complete"),
    (lambda f: edit(f / "config.json", rope_theta=7), "rope_theta = 7 is not supported; it is unknown"),
    (lambda f: edit(f / "config.json", normalize_before=True), "normalize_before = True is not supported; only False"),
    (lambda f: edit(f / "config.json", pruned_heads={"1": [0]}), "pruned_heads = .* is not supported"),
    (lambda f: edit(f / "config.json", activation_function="mish"), "activation_function = 'mish' .* expected one of"),
    (lambda f: edit(f / "config.json", eos_token_id=3), "eos_token_id = 3 .* the tokenizer uses '</s>', 0"),
    (lambda f: edit(f / "config.json", decoder_start_token_id=3), "decoder_start_token_id = 3 .* id of the padding"),
    (lambda f: edit(f / "config.json", forced_bos_token_id=3), "forced_bos_token_id = 3 is not supported; it must be"),
    (lambda f: edit(f / "config.json", vocab_size=12, decoder_vocab_size=12), "16 tokens, but the embedding has 12"),
    (lambda f: edit(f / "config.json", vocab_size="x", decoder_vocab_size="x"), "a value has an unexpected type .*'x'"),
    (lambda f: edit(f / "config.json", **INFINITE), "a value has an unexpected type .*infinity"),
    (lambda f: edit(f / "config.json", decoder_start_token_id=[1]), "config.json: a value has an unexpected type"),
    (lambda f: edit(f / "config.json", architectures=7), "config.json: a value has an unexpected type"),
    (lambda f: edit(f / "config.json", activation_function=[]), "config.json: a value has an unexpected type"),
    (lambda f: edit(f / "config.json", eos_token_id="x"), "eos_token_id: expected ids of tokens, got 'x'; is it"),
    (lambda f: edit(f / "config.json", eos_token_id=[[2]]), "eos_token_id: expected ids of tokens, got '.2.'"),
    (lambda f: edit(f / "config.json", eos_token_id=2**70), "eos_token_id: expected ids of tokens, got '11805"),
    (lambda f: edit(f / "config.json", eos_token_id=[0, 3]), r"eos_token_id = \[0, 3\] is not supported"),
    (lambda f: edit(f / "config.json", decoder_vocab_size=12), "decoder_vocab_size = 12 is not supported; only 16"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_bad_folders_are_reported_in_one_line(folder: Path, tmp_path: Path, spoil: Any, message: str) -> None:
    spoil(folder)
    with pytest.raises(SaccadeError, match=message) as error:
        import_folder(str(folder), str(tmp_path / "run"))
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [torch.ones(3), {"model": {"weight": torch.ones(3)}}, {"step": 7}])
def test_pickle_files_of_other_objects_are_refused(folder: Path, import_it: Callable[[], Any], content: Any) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(SaccadeError, match="expected a dictionary of tensors"):
        import_it()


def test_a_full_disk_leaves_no_partial_run(
    import_it: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise SaccadeError("no space left on the disk")

    monkeypatch.setattr(importing, "write_tensors", full)
    with pytest.raises(SaccadeError, match="no space left"):
        import_it()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"dense_act_fn": "relu"}, {"is_gated_act": False}])
def test_repeated_activation_settings_must_agree(make: Make, tmp_path: Path, change: dict[str, Any]) -> None:
    folder, _ = make("t5-gated")
    edit(folder / "config.json", **change)
    with pytest.raises(SaccadeError, match=f"{next(iter(change))} = .* is not supported"):
        import_folder(str(folder), str(tmp_path / "run"))


def test_other_bad_sources(folder: Path, import_it: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"is not a folder; expected one with config.json, or the name of a model"):
        import_folder(str(tmp_path / "nowhere"), str(tmp_path / "run"))
    with pytest.raises(
        SaccadeError, match=r"'some/model' is not a local folder, and the Hub has no model .*; check the name"
    ):
        import_folder("some/model", str(tmp_path / "run"))
    import_it()
    with pytest.raises(SaccadeError, match="exists already; remove it first; or choose another --run NAME$"):
        import_it()


def test_an_imported_model_predicts_and_learns(make: Make, tmp_path: Path) -> None:
    path = import_folder(str(make("bart")[0]), str(tmp_path / "run")).path
    predictor = Predictor.load(path)
    outputs = predictor.candidates(["abc de", "k"])
    begin = list(predictor.tokenizers.target.prefix_ids)
    assert len(begin) == 1 and all(found[0].ids[:1] == begin for found in outputs)
    assert "<s>" not in outputs[0][0].text
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("abc\tcba\nkl\tlk\n" * 20)
    settings = [f"init={path}", "train.steps=3", "data.max_length=12", "train.device=cpu"]
    train(path / "recipe.toml", data=[str(pairs)], valid=[str(pairs)], run=tmp_path / "more", overrides=settings)
    old, new = load_run(path), load_run(tmp_path / "more")
    assert torch.equal(old.model.writer.output.bias, new.model.writer.output.bias)
    before, after = (run.model.reader.embedding.tokens.weight for run in (old, new))
    assert not torch.equal(before, after) and (before - after).abs().max() < 0.1


@pytest.mark.parametrize(("family", "precision"), [("marian", "int8"), ("bart", "int8"), ("t5-gated", "bf16")])
def test_imported_models_run_in_other_precisions(make: Make, tmp_path: Path, family: str, precision: str) -> None:
    path = import_folder(str(make(family)[0]), str(tmp_path / "run")).path
    ours = [Predictor.load(path, device="cpu", precision=kind) for kind in ("fp32", precision)]
    scores = [predictor.score([("abc de", "lk ja"), ("k", "b")]) for predictor in ours]
    assert scores[1] == pytest.approx(scores[0], rel=0.1) and scores[1] != scores[0]


def test_ctranslate2_takes_an_imported_marian(make: Make, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    path = import_folder(str(make("marian")[0]), str(tmp_path / "run")).path
    texts, decoding = ["abc de", "k", "lkja hgf"], Decoding(beam=1, min_length=3)
    ours, theirs = (
        Predictor.load(path, device="cpu", engine=engine).candidates(texts, decoding=decoding)
        for engine in ("torch", "ctranslate2")
    )
    assert [item.ids for [item] in theirs] == [item.ids for [item] in ours]  # scores treat forbidden tokens differently
