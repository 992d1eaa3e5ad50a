"""The recipe listen-attend-spell, from files of sound to letters, and what it does with files that are none."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.data.media.sound import Recording
from saccade.data.prepare import prepare
from saccade.data.sources.bad_rows import list_rows
from saccade.data.synthetic.media import open_or_generate
from saccade.data.synthetic.tones import RATE, generate_numbers, synthesize_dialling
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.score.evaluate import evaluate
from saccade.train.validate import is_better

FEW = [
    "train.steps=4",
    "train.schedule.warmup_steps=1",
    "train.valid_every=2",
    "train.save_every=2",
    "train.valid_predictions=5",
]
SMALL = ["data.train.0.examples=40", "data.valid.0.examples=10", "train.batch_tokens=1024", "reader.stack.dim=16"]
TONES = [*FEW, *SMALL, "writer.stack.dim=16"]


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_a_run_that_was_resumed_is_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [*TONES, "train.schedule.kind=constant", "reader.augment.time_masks=1", "reader.augment.speed=0.1"]
    saccade.train("listen-attend-spell", tiny=True, run="whole", overrides=changes)
    saccade.train("listen-attend-spell", tiny=True, run="half", overrides=[*changes, "train.steps=2"])
    saccade.train(resume="half", overrides=["train.steps=4"])
    assert weights(Path("runs/half")) == weights(Path("runs/whole"))
    last = json.loads(Path("runs/half/metrics.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "valid" and last["wer"] == 100 and "cer" in last


def test_files_are_heard_and_attention_lies_over_the_sound(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = saccade.train("listen-attend-spell", tiny=True, run="x", overrides=TONES)
    files = sorted(map(str, open_or_generate("tones-heldout", 10).glob("*.wav")))[:3]
    loaded = saccade.load("runs/x")
    assert loaded.predict(files) == trained.predict(files)
    seen = loaded.view(files[0], "12")
    frames = len(prepare(load("runs/x/recipe.toml")).valid.collate(np.array([0]), side=0).mask[0])
    assert seen.background.grid == (1, -(-frames // 4))
    [cross] = [layer for layer in seen.maps if "cross" in layer.address]
    assert torch.as_tensor(cross.weights).shape == (1, 3, -(-frames // 4))
    assert seen.labels["source"][:3] == ["0.00 s", "0.04 s", "0.08 s"]


def folder_of_sounds(path: Path) -> Path:
    """Two recordings that can be heard, and four files that cannot."""
    path.mkdir()
    rng = np.random.default_rng(1)
    for name, rate in (("a", 8_000), ("b", 44_100)):
        Recording(rng.normal(0, 0.1, rate).astype(np.float32), rate).save(path / f"{name}.wav")
    Recording(np.zeros(0, np.float32), 8_000).save(path / "empty.wav")
    Recording(np.zeros(8_000 * 3, np.float32), 8_000).save(path / "long.wav")
    (path / "text.wav").write_text("no sound at all, but a text that is long enough")
    shutil.copy(path / "a.wav", path / "cut.wav")
    (path / "cut.wav").write_bytes((path / "cut.wav").read_bytes()[:-900])
    names = ("a", "empty", "text", "missing", "b", "cut", "long")
    rows = [json.dumps({"file_name": f"{name}.wav", "text": f"number {i}"}) for i, name in enumerate(names)]
    (path / "metadata.jsonl").write_text("\n".join(rows))
    return path


def test_files_that_cannot_be_heard_are_named_and_skipped(tmp_path):
    folder = folder_of_sounds(tmp_path / "sounds")
    changes = [f"data.train={folder}", "data.valid=0.0", "reader.sound.max_seconds=2", "data.on_error=skip"]
    for name in ("empty", "missing"):  # otherwise more than half would be skipped
        shutil.copy(folder / "a.wav", folder / f"{name}2.wav")
    with (folder / "metadata.jsonl").open("a") as file:
        file.writelines(f'\n{{"file_name": "{name}2.wav", "text": "two"}}' for name in ("empty", "missing"))
    lines: list[str] = []
    data = prepare(load("listen-attend-spell", overrides=changes), cache=tmp_path / "cache", report=lines.append)
    assert len(data.train) == 4
    reasons = {row["row"]: row["error"] for row in list_rows(data.bad_rows)}
    assert {Path(path).stem for path in reasons} == {"empty", "text", "missing", "cut"}
    assert reasons[str(folder / "empty.wav")].startswith("the sound is empty")
    assert [line for line in lines if line.startswith("dropped 1 of 9 sounds that are too long; first the sound ")]
    lengths = data.train.get_lengths(np.arange(4), side=0).tolist()
    assert lengths == [101] * 4  # a second each, whatever the rate


def test_a_folder_in_which_nothing_can_be_heard_is_refused(tmp_path):
    folder = folder_of_sounds(tmp_path / "sounds")
    for name in ("a", "b", "long"):
        (folder / f"{name}.wav").unlink()
    with pytest.raises(SaccadeError, match=r"no sound of .*sounds can be read: .*a.wav"):
        prepare(load("listen-attend-spell", overrides=[f"data.train={folder}"]), cache=tmp_path / "cache")


def test_a_missing_column_is_reported(tmp_path):
    folder = folder_of_sounds(tmp_path / "sounds")
    (folder / "metadata.jsonl").write_text('{"file_name": "a.wav", "words": "a", "more": 1}\n')
    with pytest.raises(SaccadeError, match=r"metadata.jsonl:1: .*text.*words"):
        prepare(load("listen-attend-spell", overrides=[f"data.train={folder}"]), cache=tmp_path / "cache")


def test_frames_that_others_made_are_read_alike(tmp_path):
    rng = np.random.default_rng(1)
    text, offsets = np.array(["yes", "no", "", "yes no"]), np.array([0, 30, 50, 90, 131])
    np.savez(tmp_path / "a.npz", features=rng.normal(3, 2, (131, 13)), offsets=offsets, text=text)
    lines: list[str] = []
    changes = [f"data.train={tmp_path / 'a.npz'}", "reader.sound.mel_bands=13", "data.on_error=skip"]
    data = prepare(load("listen-attend-spell", overrides=changes), cache=tmp_path / "cache", report=lines.append)
    assert data.train.get_lengths(np.arange(3), side=0).tolist() == [30, 20, 41]
    frames = data.train.collate(np.array([2]), side=0).values[0]
    torch.testing.assert_close(frames.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
    assert list_rows(data.bad_rows) == [{"row": f"{tmp_path / 'a.npz'}:3", "error": "the text is empty"}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["listen-attend-spell", "listen-transformer"])
def test_tiny_hears_telephone_numbers(name, tmp_path, monkeypatch):
    """Enough held-out numbers are right to the last key, and attention goes from left to right."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    trained = saccade.train(name, tiny=True, run="x")
    assert time.process_time() - begin < 180
    folder = open_or_generate("tones-heldout", 300)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    said = trained.predict([str(folder / row["file_name"]) for row in rows])
    right = 100 * np.mean([ours == row["text"] for ours, row in zip(said, rows, strict=True)])
    assert get_demonstration(name).target.is_reached(right)
    if name == "listen-transformer":  # whose heads look at more than one place
        return
    forward = []
    for row in rows[:30]:
        seen = trained.view(str(folder / row["file_name"]), row["text"])
        weights = torch.as_tensor(seen.maps[0].weights)[0]
        middles = (weights * torch.arange(weights.shape[1])).sum(1)
        forward.append(bool((middles.diff() > 0).all()))
    assert np.mean(forward) > 0.9


def test_the_step_with_the_fewest_errors_is_the_best():
    session = SimpleNamespace(recipe=load("listen-attend-spell"))
    assert session.recipe.train.metric == "wer"
    assert is_better(session, 10.0, 20.0) and not is_better(session, 20.0, 10.0)


@pytest.mark.slow
def test_a_language_model_that_knows_the_numbers_hears_them_in_more_noise(tmp_path, monkeypatch):
    """Of 400 calls in noise to 200 numbers that it has read, words are wrong less often by 5 points at least."""
    monkeypatch.chdir(tmp_path)
    listener = saccade.train("listen-attend-spell", tiny=True, run="heard")
    book, rng = list(generate_numbers(200, seed=5, heldout=True)), np.random.default_rng(1)
    pairs = []
    for number in range(400):
        sound = synthesize_dialling(book[number % 200], seed=100 + number)
        noisy = (sound + rng.normal(0, 0.35, len(sound))) / 3
        Recording(noisy.astype(np.float32), RATE).save(f"{number}.wav")
        pairs.append((f"{number}.wav", book[number % 200]))
    Path("book.txt").write_text("\n".join(book * 5))
    letters = ["tokenizer.kind=file", 'tokenizer.files=["runs/heard/tokenizer.json"]', "train.steps=150"]
    lines = ["data.documents=lines", "data.cross_document=false", "data.max_length=256", "writer.positions.length=256"]
    saccade.train("gpt2", tiny=True, data="book.txt", valid="book.txt", run="words", overrides=[*letters, *lines])
    alone, fused = (
        evaluate(listener, pairs, metrics=["wer"], decoding=listener.recipe.predict.model_copy(update={"lm": lm}))
        for lm in ("", "words")
    )
    assert fused.scores["wer"].value < alone.scores["wer"].value - 5
