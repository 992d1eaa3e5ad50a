"""Classification, regression and tagging: objectives, resuming, validation metrics."""

import pytest
import small
import torch
import torch.nn.functional as F
from small import read_metrics, weights

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.labels import Labels
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.predictors.predictor import Predictor
from saccade.score.compare import compare
from saccade.score.labels import evaluate_labels
from saccade.score.pairs import read_labelled_pairs
from saccade.train import api
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.labels import decode_floats, label_loss, regression_loss, tag_loss

STACK = {"layers": 1, "dim": 12, "heads": 2, "ff": 17, "dropout": 0.1}
OBJECTIVES = {"label": "label", "number": "regress", "tags": "tag"}
DATA = {"label": "opinions", "number": "amounts", "tags": "roles"}
METRICS = {"label": ["accuracy", "f1", "matthews"], "number": ["pearson", "spearman"], "tags": ["accuracy", "f1"]}


def recipe(kind="label", *, name=None, data=None, reader=None, writer=None, **train):
    name = name or DATA[kind]
    corpora = {
        "train": [{"files": [f"embedded:{name}"], "examples": 120}],
        "valid": [{"files": [f"embedded:{name}-heldout"], "examples": 30}],
        "max_length": 60,
    }
    return validate({
        "name": "label",
        "task": "classify",
        "data": data or corpora,
        "tokenizer": {"kind": "words"},
        "reader": {"stack": STACK, **(reader or {})},
        "writer": {"kind": kind, **(writer or {})},
        "objectives": [{"kind": OBJECTIVES[kind]}],
        "train": {**small.TRAIN, "valid_predictions": 30, **train},
    })  # fmt: skip


@pytest.fixture
def fit(tmp_path):
    def run(name="run", kind="label", *, resume=False, overrides=(), **settings):
        path = tmp_path / name
        if resume:
            api.train(resume=path, overrides=overrides)
        else:
            api.train(recipe(kind, **settings), run=path, overrides=overrides)
        return path

    return run


# ---- objectives


def make_model_and_batch(kind, labels):
    settings = recipe(kind, reader={"dropout": 0.0, "stack": {**STACK, "dropout": 0.0}}, writer={"dropout": 0.0})
    model = build(settings, source_size=11, target_size=1 if kind == "number" else 3)
    return model, Batch({"source": pad([[4, 5, 6, 2], [7, 2], [8, 9, 2]]), "label": pad(labels)})


def test_the_class_is_learned_by_cross_entropy():
    model, batch = make_model_and_batch("label", [[1], [3], [2]])
    term = label_loss(model, batch, torch.Generator(), label_smoothing=0.1)["label"]
    logits = model.writer(model.read(batch))
    expected = F.cross_entropy(logits, torch.tensor([0, 2, 1]), reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(term.sum, expected)
    assert int(term.count) == 3


def test_tags_are_learned_where_there_are_any():
    model, batch = make_model_and_batch("tags", [[1, 0, 2, 0], [3, 0], [0, 1, 0]])
    term = tag_loss(model, batch, torch.Generator())["tag"]
    logs = model.writer(model.read(batch)).log_softmax(-1)
    expected = -(logs[0, 0, 0] + logs[0, 2, 1] + logs[1, 0, 2] + logs[2, 1, 0])
    torch.testing.assert_close(term.sum, expected)
    assert int(term.count) == 4


def test_regression_loss_is_the_squared_error():
    values, labels = [1.5, -2.0, 0.0], Labels("number")
    model, batch = make_model_and_batch("number", [labels.encode(str(value)) for value in values])
    assert decode_floats(batch["label"].ids[:, 0]).tolist() == values
    term = regression_loss(model, batch, torch.Generator())["regress"]
    found = model.writer(model.read(batch))[:, 0]
    torch.testing.assert_close(term.sum, ((found - torch.tensor(values)) ** 2).sum())
    assert int(term.count) == 3


@pytest.mark.parametrize("budget", [None, 64, 192])
@pytest.mark.parametrize(
    ("kind", "objective"), [("label", label_loss), ("number", regression_loss), ("tags", tag_loss)]
)
def test_packed_and_padded_batches_have_the_same_terms(kind, objective, budget):
    labels = {"label": [[1], [3], [2]], "number": [[7], [2**31 + 5], [9]], "tags": [[1, 0, 2, 0], [3, 0], [0, 1, 0]]}
    model, batch = make_model_and_batch(kind, labels[kind])
    both = [
        next(iter(objective(model, one, torch.Generator()).values()))
        for one in (batch, pack_batch(batch, budget=budget))
    ]
    torch.testing.assert_close(both[0].sum, both[1].sum)
    assert int(both[0].count) == int(both[1].count)


def test_a_full_packed_row_counts_no_label_twice():
    """64 sequences fill the row of labels; empty padding sequences must not count."""
    model, _ = make_model_and_batch("label", [[1]])
    batch = Batch({"source": pad([[4, 2]] * 64), "label": pad([[2]] * 64)})
    assert int(label_loss(model, pack_batch(batch, budget=1024), torch.Generator())["label"].count) == 64


# ---- runs


@pytest.mark.parametrize("kind", ["number", "tags"])
def test_a_resumed_run_ends_with_the_same_bytes(fit, kind):
    whole = fit("whole", kind, steps=12)
    part = fit("part", kind, steps=5)
    fit("part", kind, resume=True, overrides=["train.steps=12"])
    assert weights(part) == weights(whole)
    assert weights(part, 12) == weights(whole, 12)


@pytest.mark.parametrize("kind", ["label", "number", "tags"])
def test_validation_equals_evaluation(fit, kind):
    run = fit(kind=kind, metric=METRICS[kind][-1])
    lines = [line for line in read_metrics(run) if line["event"] == "valid"]
    best = [line for line in lines if line["best"]][-1]
    assert best[METRICS[kind][-1]] == max(line[METRICS[kind][-1]] for line in lines)
    model = Predictor.load(run)
    pairs = read_labelled_pairs(model.recipe.data.valid, kind=kind)
    found = evaluate_labels(model, pairs)
    for name in METRICS[kind]:
        assert found.scores[name].value == pytest.approx(best[name], abs=0.1)
        assert f"| {name} |" in (run / "card.md").read_text()


def test_an_undefined_correlation_is_reported_and_not_compared(fit, tmp_path, capsys):
    (tmp_path / "same.tsv").write_text("text\tlabel\n" + "".join(f"{name}\t7\n" for name in ("one", "two", "three")))
    train = [{"files": ["embedded:amounts"], "examples": 60}]
    data = {"train": train, "valid": [{"files": [str(tmp_path / "same.tsv")]}], "max_length": 60}
    run = fit(kind="number", data=data, steps=2, metric="pearson")
    assert "pearson and spearman count as 0: no correlation: all 3 references are 7" in capsys.readouterr().err
    pairs = [("one", "7"), ("two", "7")]
    with pytest.raises(SaccadeError, match="cannot be compared by pearson: no correlation: all 2 references are 7; "):
        compare([run, run], pairs, device="cpu")


def test_the_card_names_the_labels(fit):
    assert "2 labels: negative, positive" in (fit(steps=2) / "card.md").read_text()
    assert "tokens; numbers" in (fit("other", "number", steps=2) / "card.md").read_text()


def test_a_pair_of_sentences_is_read_as_one_sequence(fit):
    run = fit(name="run", data={
        "train": [{"files": ["embedded:paraphrases"], "examples": 60}],
        "valid": [{"files": ["embedded:paraphrases-heldout"], "examples": 20}],
    })  # fmt: skip
    assert Predictor.load(run).labels.num_texts == 2


def test_long_sequences_are_dropped_with_a_note_or_truncated(fit, capsys):
    data = {**recipe().data.model_dump(), "max_length": 8}
    fit("dropped", data=data, steps=2)
    assert "of 120 texts longer than 8 tokens" in capsys.readouterr().err
    fit("cut", data={**data, "truncate": True}, steps=2)
    assert "dropped" not in capsys.readouterr().err


def test_labels_of_validation_must_be_known(fit, tmp_path):
    for name, labels in (("train", "ab"), ("dev", "ac")):
        (tmp_path / f"{name}.tsv").write_text("".join(f"text {label}\t{label}\n" for label in labels))
    data = {"train": [{"files": [str(tmp_path / "train.tsv")]}], "valid": [{"files": [str(tmp_path / "dev.tsv")]}]}
    with pytest.raises(SaccadeError, match=r"dev.tsv:2: unknown label 'c' \(in the training data: a, b\)"):
        fit(data=data)


def test_a_head_of_a_users_own_is_called_with_memory(tmp_path):
    class Mine(torch.nn.Module):
        def __init__(self, classes, dim, *, gain: float = 1.0):
            super().__init__()
            self.gain, self.output = gain, torch.nn.Linear(dim, classes)

        def forward(self, memory):
            return self.gain * self.output(memory.states[:, 0])

    values = recipe(steps=2, metric="loss").model_dump() | {"writer": {"kind": "mine", "gain": 2.0}}
    kinds = {"mine": Mine}
    found = api.train(validate(values, kinds=kinds), run=tmp_path / "mine", kinds=kinds)
    assert found.predict(["The film was good."])[0] in ("negative", "positive")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": "translate"},
            'task = "translate" goes with writer.kind = "tokens", "fill" or "fertility", got "label"',
        ),
        ({"writer": {"kind": "tokens"}}, 'task = "classify" goes with writer.kind = "label", "number" or "tags"'),
        (
            {"objectives": [{"kind": "tag"}]},
            'a writer of kind "label" cannot be trained by the objective "tag"; use "label"',
        ),
        ({"train": {"metric": "bleu"}}, 'train.metric = "bleu" is not measured of a writer of kind "label"'),
        ({"tokenizer": {"dropout": 0.1}}, "with labels set tokenizer.dropout = 0"),
        ({"tokenizer": {"shared": False}}, "there is one vocabulary; set tokenizer.shared = true"),
        ({"reader": {"causal": True, "stack": {"kind": "recurrent"}}}, "reader.causal = true is for a Transformer"),
    ],
)
def test_what_does_not_go_with_labels_is_reported(change, message):
    values = {"task": "classify", "writer": {"kind": "label"}, "objectives": [{"kind": "label"}]}
    with pytest.raises(SaccadeError) as error:
        validate({**values, **change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_metrics_of_labels_are_not_for_pairs():
    message = 'train.metric = "f1" is not measured for task = "translate"; it is one of loss, '
    with pytest.raises(SaccadeError, match=message):
        validate({"train": {"metric": "f1"}})
