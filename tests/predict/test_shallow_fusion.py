"""Shallow fusion with a language model, and which runs are refused."""

import json

import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import PAD, START
from saccade.errors import SaccadeError
from saccade.predict.search.request import FusionModel, Request
from saccade.predict.search.run import build_writer

FEW = ["train.steps=3", "train.schedule.warmup_steps=1", "train.valid_predictions=3", "train.batch_tokens=512"]
SPEECH = [*FEW, "train.metric=loss", "data.train.0.examples=40", "data.valid.0.examples=6", "data.max_length=20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fused")


@pytest.fixture(scope="module")
def speech_run(folder):
    return saccade.train("listen-attend-spell", tiny=True, run=folder / "hearing", overrides=SPEECH)


@pytest.fixture(scope="module")
def language_model(folder, speech_run):
    """A language model trained on a single number, with the tokenizer of the other run."""
    (folder / "texts.txt").write_text("789\n" * 64)
    files = json.dumps([str(folder / "hearing" / "tokenizer.json")])
    training = ["train.steps=60", "train.schedule.lr=0.01", "data.max_length=32", "writer.positions.length=32"]
    given = ["data.cross_document=false", "tokenizer.kind=file", f"tokenizer.files={files}"]
    data = folder / "texts.txt"
    saccade.train("gpt2", tiny=True, data=data, valid=data, run=folder / "lm", overrides=[*FEW, *training, *given])
    return str(folder / "lm")


def files(count=3):
    return [f"embedded:tones-heldout/{number:05d}.wav" for number in range(1, count + 1)]


def transcribe(run, **settings):
    names = [path for name in files() for path in run.expand_inputs([name])]
    decoding = run.recipe.predict.model_copy(update=settings)
    return run.candidates(names, decoding=decoding)


def test_a_step_adds_log_probabilities_of_the_language_model(speech_run, language_model):
    lm = saccade.load(language_model).model
    frames = speech_run.codec.collate(speech_run.codec.encode([next(iter(speech_run.expand_inputs(files(1))))], "file"))
    frames, tokens = frames.to(speech_run.device), torch.tensor([[START]], device=speech_run.device)
    settings = Decoding()
    with torch.inference_mode():
        memory, plain = speech_run.model.read(frames), speech_run.model.writer
        alone = plain.step(tokens, plain.start(memory, capacity=4)).logits.log_softmax(-1)
        lm_logits = lm.writer.step(tokens, lm.writer.start(lm.read(Batch({})), capacity=4, rows=1)).logits
        fused = build_writer(speech_run.model, Request([4], settings, frames, fusion=FusionModel(lm.writer, 0.7)))
        found = fused.step(tokens, fused.start(memory, capacity=4, rows=1)).logits
    expected = alone + 0.7 * lm_logits.log_softmax(-1)
    torch.testing.assert_close(found[:, PAD + 1 :], expected[:, PAD + 1 :], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.log_softmax(-1), found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beam", [1, 4])
def test_with_a_large_weight_the_language_model_decides(speech_run, language_model, beam):
    without = [found[0].text for found in transcribe(speech_run, beam=beam)]
    assert without != ["789"] * 3
    assert [found[0].text for found in transcribe(speech_run, beam=beam, lm=language_model, lm_weight=0.0)] == without
    fused = transcribe(speech_run, beam=beam, lm=language_model, lm_weight=8.0, length_penalty=0.0)
    assert [found[0].text for found in fused] == ["789"] * 3


def test_runs_that_cannot_be_fused_are_refused(speech_run, language_model, folder):
    with pytest.raises(
        SaccadeError, match=r'is a run of task "media-to-text"; a language model is one of task "language-model"'
    ):
        transcribe(speech_run, lm=str(folder / "hearing"))
    saccade.train("gpt2", tiny=True, run=folder / "other", overrides=FEW)
    with pytest.raises(SaccadeError, match=r"train it with the tokenizer of this run"):
        transcribe(speech_run, lm=str(folder / "other"))
    with pytest.raises(SaccadeError, match=r"is not a run"):
        transcribe(speech_run, lm=str(folder / "nowhere"))


def test_a_language_model_with_too_few_positions_is_refused(speech_run, language_model, monkeypatch):
    recipe = speech_run.recipe
    longer = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": 64})})
    monkeypatch.setattr(speech_run.decoder, "recipe", longer)
    with pytest.raises(
        SaccadeError, match=r"was made for 32 tokens, but outputs may have up to 64; set max_length = 31"
    ):
        transcribe(speech_run, lm=language_model)


@pytest.mark.parametrize("name", ["gpt2", "vit", "nat"])
def test_fusion_is_for_models_with_a_source(name):
    with pytest.raises(SaccadeError, match=r"predict.lm is for models that write token by token"):
        load(name, overrides=["predict.lm=other"])
