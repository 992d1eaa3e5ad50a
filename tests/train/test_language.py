"""Language models in training: resuming, validation in bits per byte, warm starts."""

import math

import pytest
import small
from small import read_metrics, weights

from saccade.config.load import validate
from saccade.errors import SaccadeError
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.score.perplexity import measure_perplexity
from saccade.train import api

STACK = {"layers": 1, "dim": 12, "heads": 2, "ff": 17, "dropout": 0.1, "norm": "pre"}
SENTENCES = {
    "train": [{"files": ["embedded:sentences"], "examples": 120}],
    "valid": [{"files": ["embedded:sentences-heldout"], "examples": 30}],
    "max_length": 24,
}


def recipe(*, data=SENTENCES, writer=None, **train):
    return validate({
        "name": "write",
        "task": "language-model",
        "data": data,
        "tokenizer": {"kind": "characters"},
        "reader": {"kind": "none"},
        "writer": {"stack": STACK, "tie": "output", "positions": {"kind": "learned", "length": 24}, **(writer or {})},
        "train": {**small.TRAIN, **train},
        "predict": {"beam": 1, "max_length": 5},
    })  # fmt: skip


@pytest.fixture
def fit(tmp_path):
    def run(name="run", *, resume=False, overrides=(), **settings):
        path = tmp_path / name
        if resume:
            api.train(resume=path, overrides=overrides)
        else:
            api.train(recipe(**settings), run=path, overrides=overrides)
        return path

    return run


@pytest.mark.parametrize("how", [{}, {"cross_document": True}, {"stream": True, "buffer": 32}])
def test_a_resumed_run_ends_with_the_same_bytes(fit, how):
    data = {**SENTENCES, **how}
    whole = fit("whole", data=data)
    part = fit("part", data=data, steps=9)
    fit("part", resume=True, overrides=["train.steps=24"])
    assert weights(part) == weights(whole)
    assert weights(part, 24) == weights(whole, 24)


def test_a_stream_is_gone_through_once_for_each_epoch(fit):
    data = {**SENTENCES, "stream": True, "buffer": 50}
    run = fit(data=data, steps=None, epochs=2, accumulate=1, report_every=1)
    passes = [line["epoch"] for line in read_metrics(run) if line["event"] == "train"]
    assert passes[-1] == 2.0 and passes.count(0.0) == pytest.approx(passes.count(1.0), abs=3)
    ends = {"kind": "cosine", "lr": 0.01, "warmup_steps": 2}
    with pytest.raises(SaccadeError, match=r'"cosine" ends with the last one; set train.steps instead of'):
        fit("other", data=data, steps=None, epochs=1, schedule=ends)


def test_validation_tells_bits_per_byte(fit):
    run = fit()
    lines = [line for line in read_metrics(run) if line["event"] == "valid"]
    assert lines[-1]["nll"] < lines[0]["nll"]
    model = Predictor.load(run)
    assert isinstance(model, LanguageModel)
    texts = [text for _, text in small_documents()]
    ids = model.tokenizers.target.encode_all(texts)
    tokens, size = sum(map(len, ids)), sum(len(text.encode()) for text in texts)
    best = min(lines, key=lambda line: line["nll"])
    assert best["perplexity"] == pytest.approx(math.exp(best["nll"]))
    assert best["bits_per_byte"] == pytest.approx(best["nll"] * tokens / math.log(2) / size)
    # Windows of `evaluate` begin with the token before them: a little easier, and the same where nothing is cut.
    assert measure_perplexity(model, texts).loss == pytest.approx(best["nll"], rel=0.2)
    assert measure_perplexity(model, texts).loss < best["nll"]
    assert "| bits_per_byte |" in (run / "card.md").read_text()


def small_documents():
    from saccade.config.schema import Corpus
    from saccade.data.sources.documents import read_documents

    return read_documents(Corpus(files=("embedded:sentences-heldout",), examples=30), unit="lines")


def test_evaluation_of_short_texts_is_that_of_validation(fit):
    data = {**SENTENCES, "max_length": 120}
    run = fit(data=data, writer={"positions": {"kind": "rotary"}})
    best = min((line for line in read_metrics(run) if line["event"] == "valid"), key=lambda line: line["nll"])
    found = measure_perplexity(Predictor.load(run), [text for _, text in small_documents()])
    assert found.loss == pytest.approx(best["nll"], rel=1e-4)
    assert found.bits_per_byte == pytest.approx(best["bits_per_byte"], rel=1e-4)


def test_a_language_model_can_start_from_another(fit, tmp_path, capsys):
    first = fit("first")
    fit("second", overrides=[f"init={first}"], steps=3)
    assert "tensors copied" in capsys.readouterr().err
    assert read_metrics(tmp_path / "second")[0]["loss"] < read_metrics(first)[0]["loss"]


def test_two_drop_passes_and_accumulation_work_without_a_reader(fit):
    r_drop = '[{ kind = "r-drop", alpha = 1.0 }]'
    assert fit(overrides=[f"objectives={r_drop}"], steps=4).exists()


def test_packed_and_padded_rows_learn_the_same(fit):
    data = {**SENTENCES, "max_length": 90}
    settings = {"data": data, "steps": 4, "writer": {"positions": {"kind": "rotary"}, "dropout": 0.0}}
    settings["writer"]["stack"] = {**STACK, "dropout": 0.0}
    losses = [read_metrics(fit(f"pack-{pack}", pack=pack, **settings))[0]["loss"] for pack in (True, False)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_without_data_the_message_says_file(fit):
    with pytest.raises(SaccadeError, match=r"give yours with --data FILE \(data=FILE in Python\), or add --tiny"):
        fit(data={"max_length": 24})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reader": {"kind": "tokens"}}, 'task = "language-model" goes with reader.kind = "none", got "tokens"'),
        ({"task": "translate"}, 'task = "translate" goes with reader.kind = "tokens", got "none"'),
        ({"writer": {"kind": "fill"}}, 'no length is known to a writer of kind "fill"'),
        ({"writer": {"tie": "all"}}, 'writer.tie = "all" has no reader to share with; set writer.tie = "output"'),
        ({"writer": {"tie": "output", "stack": {"kind": "recurrent"}}}, "which a recurrent stack needs"),
        ({"objectives": [{"kind": "reward"}]}, 'there are no pairs for the objective "reward"'),
        ({"tokenizer": {"shared": False}}, "there is one vocabulary; set tokenizer.shared = true"),
        ({"freeze": "reader"}, "there is no reader to freeze"),
        ({"train": {"metric": "bleu"}}, 'train.metric = "bleu" has no references; set train.metric = "loss"'),
    ],
)
def test_what_does_not_go_with_the_task_is_reported(change, message):
    values = {"task": "language-model", "reader": {"kind": "none"}, "writer": {"tie": "output"}}
    with pytest.raises(SaccadeError) as error:
        validate({**values, **change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": -1}, 'window must be a number of keys, at least 0, or a list of such and of "none", got -1'),
        ({"window": []}, "window must be a number of keys"),
        ({"window": [3, "all"]}, "window must be a number of keys"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads must divide heads = 4"),
    ],
)
def test_windows_and_shared_heads_that_cannot_be_are_reported(change, message):
    with pytest.raises(SaccadeError) as error:
        validate({"writer": {"stack": change}})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": ["a", ""]}, "stop must be texts of at least one character"),
        (
            {"beam": 2, "repetition_penalty": 1.2},
            "repetition_penalty and frequency_penalty are not for beam search; set beam = 1, got 2",
        ),
    ],
)
def test_decoding_settings_that_cannot_be_are_reported(change, message):
    with pytest.raises(SaccadeError) as error:
        validate({"predict": change})
    assert message in str(error.value)
