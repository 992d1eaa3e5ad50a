"""GPT-2 and Llama: imported language models compared with the originals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import STRETCH, config_of, gradients_of, in_float64, letters
from torch import Tensor, nn

from saccade.config.load import override
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights
from saccade.predict.predictors.predictor import Predictor

transformers = pytest.importorskip("transformers")


@pytest.fixture(params=["gpt2", "llama", "llama-tied", "llama-stretched"])
def made(request: Any, tmp_path: Path) -> tuple[Path, nn.Module]:
    name = "GPT2LMHeadModel" if request.param == "gpt2" else "LlamaForCausalLM"
    model = getattr(transformers, name)(config_of(request.param)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    folder = tmp_path / "folder"
    model.save_pretrained(folder)
    letters(request.param).save(str(folder / "tokenizer.json"))
    return folder, model


def ours_and_theirs(run: Run, theirs: nn.Module) -> tuple[Tensor, Tensor]:
    """Logits of two texts of different lengths at real positions, ordered by our ids."""
    tokenizer = run.tokenizers.target
    order = torch.tensor(tokenizer.library_ids)
    rows = [[START, *tokenizer.encode(text)[:-1]] for text in ("abc de", "klj")]
    ids = torch.tensor([row + [PAD] * (7 - len(row)) for row in rows])
    real = torch.tensor([[True] * len(row) + [False] * (7 - len(row)) for row in rows])
    first = tokenizer.library_ids[START] if run.recipe.writer.start_token == "own" else tokenizer.library_ids[END]
    there = torch.where(ids == START, first, order[ids]).clamp(max=theirs.config.vocab_size - 1)
    logits = theirs(there, attention_mask=real.long()).logits
    known = order[order < theirs.config.vocab_size]
    mine = run.model.writer.head(run.model.writer(ids, real, None))
    return mine[real][:, order < theirs.config.vocab_size], logits[real][:, known]


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_logits_are_those_of_the_original(
    made: Any, tmp_path: Path, kind: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, theirs = made
    run = load_run(import_folder(str(folder), str(tmp_path / "run")).path)
    if kind == torch.float64:
        in_float64(run, theirs, monkeypatch)
    torch.testing.assert_close(*ours_and_theirs(run, theirs), atol=close, rtol=close)


def test_gradients_are_those_of_the_original(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, theirs = made
    run = load_run(import_folder(str(folder), str(tmp_path / "run")).path)
    in_float64(run, theirs, monkeypatch)
    ours, expected = gradients_of(*ours_and_theirs(run, theirs), run, theirs)
    torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-7)


@torch.no_grad()
def test_greedy_tokens_are_those_of_the_original(made: Any, tmp_path: Path) -> None:
    folder, theirs = made
    run = load_run(import_folder(str(folder), str(tmp_path / "run")).path)
    target, writer = run.tokenizers.target, run.model.writer
    prompt = [START, *target.encode("abcd")[:-1]]
    first = target.library_ids[START if run.recipe.writer.start_token == "own" else END]
    there = torch.tensor([[first, *(target.library_ids[number] for number in prompt[1:])]])
    expected = theirs.generate(there, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    logits, state, _ = writer.step(torch.tensor([prompt]), writer.start(None, rows=1, capacity=len(prompt) + 6))
    written = []
    for _ in range(6):
        logits[:, END] = -torch.inf
        written.append(int(logits.argmax()))
        logits, state, _ = writer.step(torch.tensor([written[-1:]]), state)
    assert [target.library_ids[number] for number in written] == expected[0, len(prompt) :].tolist()


def test_what_is_exported_is_what_was_imported(made: Any, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    folder, theirs = made
    run = import_folder(str(folder), str(tmp_path / "run")).path
    path, _ = export_run(run, tmp_path / "out")
    ids = torch.tensor([[3, 7, 4, 5]])
    again = load_theirs(path)
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)
    assert again.config.bos_token_id == theirs.config.bos_token_id
    second = import_folder(str(path), str(tmp_path / "again")).path
    before, after = (read_weights(one / "model.safetensors") for one in (run, second))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_training_continues_without_label_smoothing(made: Any, tmp_path: Path) -> None:
    recipe = load_run(import_folder(str(made[0]), str(tmp_path / "run")).path).recipe
    assert [(objective.kind, objective.label_smoothing) for objective in recipe.objectives] == [("next-token", 0.0)]
    assert recipe.train.schedule.lr == 5e-5


def test_files_without_a_prefix_and_with_masks_are_read(tmp_path: Path) -> None:
    model = transformers.GPT2LMHeadModel(config_of("gpt2"))
    for name in ("a", "b"):
        model.save_pretrained(tmp_path / name)
        letters("gpt2").save(str(tmp_path / name / "tokenizer.json"))
    file = tmp_path / "b" / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 17, 17)}, file)
    runs = [import_folder(str(tmp_path / name), str(tmp_path / f"run-{name}")).path for name in ("a", "b")]
    first, second = (read_weights(run / "model.safetensors") for run in runs)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_other_rope_types_are_refused(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(config_of("llama"))
    model.save_pretrained(tmp_path / "a")
    letters("llama").save(str(tmp_path / "a" / "tokenizer.json"))
    path = tmp_path / "a" / "config.json"
    values = json.loads(path.read_text())
    values["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}
    path.write_text(json.dumps(values))
    with pytest.raises(
        SaccadeError, match="rope_parameters = .* expected rope_type 'default', 'linear', or 'llama3' with "
    ):
        import_folder(str(tmp_path / "a"), str(tmp_path / "run"))
    values["rope_parameters"] = {key: value for key, value in STRETCH.items() if key != "factor"}
    path.write_text(json.dumps(values))
    with pytest.raises(SaccadeError, match="rope_parameters = .* is not supported; expected rope_type 'default'"):
        import_folder(str(tmp_path / "a"), str(tmp_path / "run"))
    values["rope_parameters"] = STRETCH | {"high_freq_factor": 0.5}
    path.write_text(json.dumps(values))
    with pytest.raises(SaccadeError, match="scaling.low_freq_factor must be below high_freq_factor, got 1 and 0.5"):
        import_folder(str(tmp_path / "a"), str(tmp_path / "run"))
    values["rope_parameters"], values["bos_token_id"] = None, 5
    path.write_text(json.dumps(values))
    with pytest.raises(SaccadeError, match="bos_token_id = 5 is not supported; expected the id of the padding"):
        import_folder(str(tmp_path / "a"), str(tmp_path / "run"))


def test_older_files_store_rope_settings_in_two_places(tmp_path: Path) -> None:
    transformers.LlamaForCausalLM(config_of("llama-stretched")).save_pretrained(tmp_path / "a")
    letters("llama").save(str(tmp_path / "a" / "tokenizer.json"))
    path = tmp_path / "a" / "config.json"
    values = json.loads(path.read_text())
    new = load_run(import_folder(str(tmp_path / "a"), str(tmp_path / "new")).path).recipe
    del values["rope_parameters"]
    path.write_text(json.dumps({**values, "rope_theta": 7000.0, "rope_scaling": STRETCH}))
    old = load_run(import_folder(str(tmp_path / "a"), str(tmp_path / "old")).path).recipe
    assert old.writer == new.writer and old.writer.positions.scaling.factor == 8.0
    folder, _ = export_run(tmp_path / "old", tmp_path / "out")
    said = json.loads((folder / "config.json").read_text())
    assert said["rope_scaling"] == STRETCH and said["rope_parameters"] == {"rope_theta": 7000.0, **STRETCH}


@pytest.mark.parametrize("pad", [None, 13, 3])
def test_a_tokenizer_without_padding_token_is_accepted(tmp_path: Path, pad: int | None) -> None:
    """We add a padding token, which is neither attended to nor generated."""
    model = transformers.GPT2LMHeadModel(config_of("gpt2"))
    model.config.pad_token_id = pad
    model.save_pretrained(tmp_path / "a")
    letters("gpt2").save(str(tmp_path / "a" / "tokenizer.json"))
    run = import_folder(str(tmp_path / "a"), str(tmp_path / "run")).path
    predictor = Predictor.load(run, device="cpu")
    decoding = override(predictor.recipe, ["predict.sample=false", "predict.max_length=5", "predict.min_length=5"])
    texts = ["abc de", "k", "lkja hg"]
    together = predictor.candidates(texts, decoding=decoding.predict)
    alone = [predictor.candidates([text], decoding=decoding.predict)[0] for text in texts]
    assert [found.ids for [found] in together] == [found.ids for [found] in alone]
    assert all(PAD not in found.ids for [found] in together)
    scores = predictor.score([(text, "abc") for text in texts])
    assert scores == pytest.approx([predictor.score([(text, "abc")])[0] for text in texts], abs=1e-4)
