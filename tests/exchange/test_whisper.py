"""Imported Whisper compared with the original: frames, states, logits, gradients, greedy tokens; and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import saccade
from saccade.config.sound import Sound
from saccade.data.batching.batch import Batch, Frames, pad
from saccade.data.media.frames import extract_features
from saccade.data.media.sound import Recording
from saccade.data.tokenization.tokenizer import build_byte_alphabet
from saccade.data.tokenization.tokenizers import END, START
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights
from saccade.model.writers.tokens import shift_right

transformers = pytest.importorskip("transformers")
LISTENS = dict(feature_size=6, chunk_length=1)
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>")
SIZE = 256 + len(SPECIAL)
SHAPE = dict(
    d_model=10, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=5,
    encoder_ffn_dim=7, decoder_ffn_dim=11, num_mel_bins=6, max_source_positions=50, max_target_positions=23,
    vocab_size=SIZE, pad_token_id=256, bos_token_id=256, eos_token_id=256, decoder_start_token_id=257,
    begin_suppress_tokens=None,
)  # fmt: skip
TEXTS = ["ab c", "Zürich", "q"]


def make(folder: Path, **more: Any) -> Any:
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SHAPE, **more)).eval()
    for name, parameter in model.named_parameters():
        if "encoder.embed_positions" not in name:
            nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(**LISTENS).save_pretrained(folder)
    core = Tokenizer(models.BPE({letter: number for number, letter in enumerate(build_byte_alphabet())}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    core.save(str(folder / "tokenizer.json"))
    return model


def sounds() -> list[np.ndarray]:
    noise = np.random.default_rng(1)
    return [(0.1 * noise.standard_normal(length)).astype(np.float32) for length in (16_000, 9_001, 3_217)]


class Both(NamedTuple):
    run: Run
    theirs: Any
    folder: Path

    def batch(self) -> Batch:
        reader: Any = self.run.recipe.reader
        frames = np.stack([extract_features(sound, 16_000, reader.sound) for sound in sounds()])
        features = Frames(torch.from_numpy(frames), torch.ones(frames.shape[:2]).bool())
        return Batch({"source": features, "target": pad(self.run.tokenizers.target.encode_all(TEXTS))})

    def extract_features(self) -> Tensor:
        return transformers.WhisperFeatureExtractor(**LISTENS)(
            sounds(), sampling_rate=16_000, return_tensors="pt"
        ).input_features

    def ours(self, batch: Batch) -> Tensor:
        model, target = self.run.model, batch["target"]
        logits = model.writer.head(model.writer(shift_right(target.ids, START), target.mask, model.read(batch)))
        return logits[target.mask][:, self.order < SIZE]

    @property
    def order(self) -> Tensor:
        return torch.tensor(self.run.tokenizers.target.library_ids)

    def others(self, batch: Batch) -> Tensor:
        """Logits of the original for the same frames, ordered by our ids."""
        target = batch["target"]
        seen = self.order[shift_right(target.ids, START)].clamp(max=SIZE - 1)
        logits = self.theirs(batch["source"].values.mT, decoder_input_ids=seen).logits
        return logits[target.mask][:, self.order[self.order < SIZE]]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    theirs = make(tmp_path / "folder")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, tmp_path / "folder")


def exact(both: Both) -> Batch:
    """Both models in float64 with the same sinusoids, which the original computes in float32."""
    both.run.model.double()
    with torch.no_grad():
        positions = both.run.model.reader.positions(torch.arange(50)[None])[0]
        both.theirs.double().model.encoder.embed_positions.weight.copy_(positions)
    batch = both.batch()
    return Batch({"source": Frames(batch["source"].values.double(), batch["source"].mask), "target": batch["target"]})


@pytest.mark.parametrize("bands", [80, 128, 6])
def test_frames_are_those_of_the_original(bands: int) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    expected = extractor(sounds(), sampling_rate=16_000, return_tensors="np").input_features
    sound = Sound(mel_bands=bands, normalize="whisper", pad_seconds=2, max_seconds=2)
    ours = np.stack([extract_features(one, 16_000, sound).T for one in sounds()])
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_logits_are_those_of_the_original(both: Both) -> None:
    batch = both.batch()
    torch.testing.assert_close(batch["source"].values.mT, both.extract_features(), atol=1e-5, rtol=0)
    torch.testing.assert_close(both.ours(batch), both.others(batch), atol=1e-4, rtol=1e-4)
    batch = exact(both)
    torch.testing.assert_close(both.ours(batch), both.others(batch), atol=1e-9, rtol=1e-9)


def test_states_are_those_of_the_original(both: Both) -> None:
    batch = exact(both)
    theirs = both.theirs.model.encoder(batch["source"].values.mT).last_hidden_state
    torch.testing.assert_close(both.run.model.read(batch).states, theirs, atol=1e-9, rtol=1e-9)


def test_gradients_are_those_of_the_original(both: Both) -> None:
    batch, model, names = exact(both), both.run.model, dict(both.theirs.named_parameters())
    block = model.writer.stack.blocks[1]
    ours = [model.reader.stem.layers[0].weight, block.cross.memory.weight, block.self.project.bias]
    others = [names["model.encoder.conv1.weight"]]
    others += [names[f"model.decoder.layers.1.encoder_attn.{x}_proj.weight"] for x in "kv"]
    others += [names[f"model.decoder.layers.1.self_attn.{x}_proj.bias"] for x in "qv"]
    a = torch.autograd.grad(both.ours(batch).square().mean(), ours)
    b = torch.autograd.grad(both.others(batch).square().mean(), others)
    close = {"atol": 1e-9, "rtol": 1e-7}
    torch.testing.assert_close(a[0], b[0], **close)
    torch.testing.assert_close(a[1], torch.stack([x.unflatten(0, (5, -1)) for x in b[1:3]], 1), **close)
    torch.testing.assert_close(a[2][:, [0, 2]], torch.stack([x.unflatten(0, (5, -1)) for x in b[3:]], 1), **close)
    assert a[2][:, 1].abs().max() < 1e-12  # a bias of the keys changes nothing


@torch.no_grad()
def test_greedy_tokens_are_those_of_the_original(both: Both) -> None:
    batch, steps = both.batch(), 11
    prompt = torch.tensor([[257, 258, 260, 261]]).expand(3, -1)
    expected = prompt
    for _ in range(steps):
        logits = both.theirs(batch["source"].values.mT, decoder_input_ids=expected).logits[:, -1]
        logits[:, 256] = -torch.inf
        expected = torch.cat((expected, logits.argmax(-1, keepdim=True)), 1)
    writer, target = both.run.model.writer, both.run.tokenizers.target
    state = writer.start(both.run.model.read(batch), capacity=steps + 4)
    tokens = torch.tensor([[START, *target.prefix_ids]]).expand(3, -1)
    for _ in range(steps):
        logits, state, _ = writer.step(tokens if tokens.shape[1] == 4 else tokens[:, -1:], state)
        logits[:, END] = -torch.inf
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), 1)
    assert torch.equal(both.order[tokens], expected)


def test_a_file_is_transcribed_after_the_prompt_of_the_original(both: Both, tmp_path: Path) -> None:
    target = both.run.tokenizers.target
    assert [target.backend.id_to_token(target.library_ids[number]) for number in target.prefix_ids] == [
        "<|en|>", "<|transcribe|>", "<|notimestamps|>"
    ]  # fmt: skip
    for i, samples in enumerate(sounds()):
        Recording(samples, 16_000).save(tmp_path / f"{i}.wav")
    files = [str(tmp_path / f"{i}.wav") for i in range(3)]
    run = saccade.load(both.run.path)
    asked = run.recipe.predict.model_copy(update={"max_length": 9, "min_length": 9})
    texts = run.predict(files, decoding=asked)
    samples = [np.round(one * 32767) / 32767 for one in sounds()]  # rounded to 16 bits
    features = transformers.WhisperFeatureExtractor(**LISTENS)(samples, sampling_rate=16_000, return_tensors="pt")
    ids = torch.tensor([[257, 258, 260, 261]]).expand(3, -1)
    with torch.no_grad():
        for _ in range(6):
            logits = both.theirs(features.input_features, decoder_input_ids=ids).logits[:, -1]
            logits[:, 256] = -torch.inf
            ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), 1)
    core = Tokenizer.from_file(str(both.folder / "tokenizer.json"))
    assert texts == [core.decode(row, skip_special_tokens=False) for row in ids[:, 4:].tolist()]


def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, family = export_run(both.run.path, tmp_path / "out")
    assert family == "whisper"
    batch, again = both.batch(), load_theirs(path)
    torch.testing.assert_close(both._replace(theirs=again).others(batch), both.others(batch))
    assert again.config.to_diff_dict().keys() >= {"d_model", "max_source_positions", "num_mel_bins"}
    assert (again.config.decoder_start_token_id, again.config.eos_token_id, again.config.pad_token_id) == (
        257,
        256,
        256,
    )
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(path)
    expected = transformers.WhisperFeatureExtractor(**LISTENS)
    assert extractor.to_dict() | {"processor_class": None} == expected.to_dict() | {"processor_class": None}
    back = import_folder(str(path), str(tmp_path / "back"))
    before, after = (read_weights(folder / "model.safetensors") for folder in (both.run.path, back.path))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert load_run(back.path).tokenizers.target.prefix_ids == both.run.tokenizers.target.prefix_ids


def test_the_prompt_is_what_the_folder_asks_for(tmp_path: Path) -> None:
    make(tmp_path / "folder")
    path = tmp_path / "folder" / "generation_config.json"
    wanted = {
        "[[1, 259], [2, 260]]": ["<|de|>", "<|transcribe|>", "<|notimestamps|>"],
        "[[1, null], [2, 260]]": ["<|en|>", "<|transcribe|>", "<|notimestamps|>"],
        "[[1, 261]]": ["<|notimestamps|>"],
    }
    for number, (forced, expected) in enumerate(wanted.items()):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_decoder_ids": json.loads(forced)}))
        import_folder(str(tmp_path / "folder"), str(tmp_path / f"run{number}"))
        target = load_run(tmp_path / f"run{number}").tokenizers.target
        assert [target.backend.id_to_token(target.library_ids[begin]) for begin in target.prefix_ids] == expected


def test_a_longer_recording_is_refused(both: Both, tmp_path: Path) -> None:
    Recording(np.zeros(16_100, np.float32), 16_000).save(tmp_path / "long.wav")
    with pytest.raises(SaccadeError, match="lasts 1.0 seconds, at most 1 are read"):
        saccade.load(both.run.path).predict([str(tmp_path / "long.wav")])


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"d_model": 20}, r"conv1.weight of shape \(10, 6, 3\) cannot become \(20, 6, 3\)"),
        ("config.json", {"scale_embedding": True}, "scale_embedding = True is not supported; only False"),
        ("config.json", {"mixture": 3}, "mixture = 3 is not supported; it is unknown and may change the outputs"),
        (
            "config.json",
            {"architectures": ["WhisperForAudioClassification"]},
            "cannot be imported; expected a whisper folder with WhisperForCond",
        ),
        ("config.json", {"pad_token_id": 3}, "pad_token_id = 3 is not supported; the tokenizer has no such token"),
        ("config.json", {"decoder_start_token_id": 3}, "decoder_start_token_id = 3 is not supported; expected the"),
        ("config.json", {"forced_decoder_ids": [[1, 999]]}, "forced_decoder_ids = .* the tokenizer has no token 999"),
        ("config.json", {"forced_decoder_ids": [[]]}, "a value has an unexpected type .list index out of range"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate = 8000 is not supported; only 16000"),
        ("preprocessor_config.json", {"feature_size": 7}, "feature_size = 7 is not supported; only 6 can be imported"),
        ("preprocessor_config.json", {"chunk_length": 2}, "it does not match max_source_positions"),
        (
            "preprocessor_config.json",
            {"echo": 1},
            "echo = 1 is not supported; it is unknown and may change the outputs",
        ),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, file: str, values: Any, message: str) -> None:
    make(tmp_path / "folder")
    path = tmp_path / "folder" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_positions_other_than_sinusoids_are_refused(tmp_path: Path) -> None:
    model = make(tmp_path / "folder")
    with torch.no_grad():
        model.model.encoder.embed_positions.weight[3, 2] += 0.1
    model.save_pretrained(tmp_path / "folder")
    with pytest.raises(
        SaccadeError, match=r"embed_positions.weight of shape \(50, 10\) differs from the table of shape \(50, 10\)"
    ):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))


def test_a_speech_recipe_is_fine_tuned_from_it(both: Both, tmp_path: Path) -> None:
    few = ["train.steps=1", "train.valid_every=9", "train.save_every=9", "train.metric=loss", "train.device=cpu"]
    few += [
        "train.valid_predictions=0",
        "data.train.0.examples=9",
        "data.valid=0",
        "train.ema=0",
        "train.schedule.lr=1e-30",
    ]
    saccade.train("listen-transformer", tiny=True, run=tmp_path / "tuned", overrides=[*few, f"init={both.run.path}"])
    recipe, before = load_run(tmp_path / "tuned").recipe, read_weights(both.run.path / "model.safetensors")
    after = read_weights(tmp_path / "tuned" / "model.safetensors")
    assert (recipe.writer.ctc, recipe.data.max_length, recipe.reader.sound.pad_seconds) == (True, 23, 1.0)  # type: ignore[union-attr]
    assert recipe.reader.augment.noise == 0.1  # type: ignore[union-attr]  # of the recipe
    assert after.keys() - before.keys() == {"ctc.output.weight", "ctc.output.bias"}
    assert all(torch.allclose(after[name], before[name], atol=1e-20) for name in before)
