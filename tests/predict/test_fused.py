"""A language model beside a writer: what both say is added, and what it was not made for is refused."""

import json

import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import PAD, START
from saccade.errors import SaccadeError
from saccade.predict.search.request import LanguageModel, Request
from saccade.predict.search.run import build_writer

FEW = ["train.steps=3", "train.schedule.warmup=1", "train.valid_predictions=3", "train.batch_tokens=512"]
HEARING = [*FEW, "train.metric=loss", "data.train.0.examples=40", "data.valid.0.examples=6", "data.max_length=20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fused")


@pytest.fixture(scope="module")
def hearing(folder):
    return saccade.train("listen-attend-spell", tiny=True, run=folder / "hearing", overrides=HEARING)


@pytest.fixture(scope="module")
def numbers(folder, hearing):
    """A language model that has read one number again and again, by the letters of the other run."""
    (folder / "texts.txt").write_text("789\n" * 64)
    files = json.dumps([str(folder / "hearing" / "tokenizer.json")])
    lasting = ["train.steps=60", "train.schedule.lr=0.01", "data.max_length=32", "writer.positions.length=32"]
    given = ["data.cross=false", "tokenizer.kind=file", f"tokenizer.files={files}"]
    data = folder / "texts.txt"
    saccade.train("gpt2", tiny=True, data=data, valid=data, run=folder / "lm", overrides=[*FEW, *lasting, *given])
    return str(folder / "lm")


def files(count=3):
    return [f"embedded:tones-heldout/{number:05d}.wav" for number in range(1, count + 1)]


def heard(run, **settings):
    names = [path for name in files() for path in run.inputs([name])]
    decoding = run.recipe.predict.model_copy(update=settings)
    return run.candidates(names, decoding=decoding)


def test_a_step_adds_what_the_language_model_says(hearing, numbers):
    adviser = saccade.load(numbers).model
    frames = hearing.codec.collate(hearing.codec.encode([next(iter(hearing.inputs(files(1))))], "file"))
    tokens, settings = torch.tensor([[START]]), Decoding()
    with torch.inference_mode():
        memory, plain = hearing.model.read(frames), hearing.model.writer
        alone = plain.step(tokens, plain.start(memory, capacity=4)).logits.log_softmax(-1)
        advice = adviser.writer.step(tokens, adviser.writer.start(adviser.read(Batch({})), capacity=4, rows=1)).logits
        both = build_writer(hearing.model, Request([4], settings, frames, fusion=LanguageModel(adviser.writer, 0.7)))
        found = both.step(tokens, both.start(memory, capacity=4, rows=1)).logits
    wanted = alone + 0.7 * advice.log_softmax(-1)
    torch.testing.assert_close(found[:, PAD + 1 :], wanted[:, PAD + 1 :], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.log_softmax(-1), found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beam", [1, 4])
def test_with_much_weight_the_language_model_decides(hearing, numbers, beam):
    without = [found[0].text for found in heard(hearing, beam=beam)]
    assert without != ["789"] * 3
    assert [found[0].text for found in heard(hearing, beam=beam, lm=numbers, lm_weight=0.0)] == without
    advised = heard(hearing, beam=beam, lm=numbers, lm_weight=8.0, length_penalty=0.0)
    assert [found[0].text for found in advised] == ["789"] * 3


def test_what_cannot_advise_is_refused(hearing, numbers, folder):
    with pytest.raises(SaccadeError, match=r'is a run of task "describe"; a language model is one of task "write"'):
        heard(hearing, lm=str(folder / "hearing"))
    saccade.train("gpt2", tiny=True, run=folder / "other", overrides=FEW)
    with pytest.raises(SaccadeError, match=r"train it with the tokenizer of this run"):
        heard(hearing, lm=str(folder / "other"))
    with pytest.raises(SaccadeError, match=r"is not a run"):
        heard(hearing, lm=str(folder / "nowhere"))


def test_a_language_model_for_short_texts_is_refused(hearing, numbers, monkeypatch):
    recipe = hearing.recipe
    longer = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": 64})})
    monkeypatch.setattr(hearing.decoder, "recipe", longer)
    with pytest.raises(SaccadeError, match=r"was made for 32 tokens, and up to 64 are written; set max_length = 31"):
        heard(hearing, lm=numbers)


@pytest.mark.parametrize("name", ["gpt2", "vit", "nat"])
def test_only_what_is_written_about_something_is_advised(name):
    with pytest.raises(SaccadeError, match=r"predict.lm advises what is written token by token"):
        load(name, overrides=["predict.lm=other"])
