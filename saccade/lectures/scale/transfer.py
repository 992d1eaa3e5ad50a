"""Checks on transfer: a pretrained language model is fine-tuned, or frozen under a small layer that is trained."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from saccade.data.synthetic.embedded import read_labelled, read_texts
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
)
from saccade.lectures.references.basics import apply_linear, gelu_tanh
from saccade.lectures.references.transformer import Style, decode_text
from saccade.lectures.small import max_difference
from saccade.model.model import Model
from saccade.model.run import load_run
from saccade.model.writers.labels import LabelWriter, pool_states
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.score.labels import evaluate_labels
from saccade.score.pairs import read_labelled_pairs
from saccade.train.api import train
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.optimizer import freeze
from saccade.train.transfer.model import build_initial_model
from saccade.train.transfer.warm import warm_start

PRETRAINING_STEPS, STEPS = 250, 150
LABELLED = 1_000  # examples with a label
TEST = 500  # held-out examples
GPT2 = Style(activation=gelu_tanh, pre_norm=True)
FRESH = [  # the architecture of the pretrained model, for one that is trained from random weights
    "reader.causal=true", "reader.positions={kind='learned', length=64}", "reader.scale_embedding=false",
    "reader.dropout=0.0", *(f"reader.stack.{item}" for item in ("ff=256", "activation=gelu-tanh", "dropout=0.0")),
    "writer.pooling=before-end",
]  # fmt: skip


def build_step_settings(count: int) -> list[str]:
    every = [f"train.{key}={count}" for key in ("steps", "valid_every", "save_every", "report_every")]
    return [*every, "train.device=cpu", "train.valid_predictions=0", "train.metric=loss"]


def pretrain(run: Path) -> LanguageModel:
    """Train a small GPT-2 on words of texts without labels."""
    changes = ["tokenizer.kind=words", "data.documents=lines", "data.cross_document=false"]
    data = ["data.train=[{ files = ['embedded:sentences'], examples = 8000 }]"]
    found = train("gpt2", tiny=True, run=run, overrides=[*build_step_settings(PRETRAINING_STEPS), *changes, *data])
    assert isinstance(found, LanguageModel)
    return found


def tune(recipe: str, task: str, run: Path, changes: Sequence[str]) -> Predictor:
    """Train a classifier on few labelled examples of a task."""
    data = [f"data.train=[{{ files = ['embedded:{task}'], examples = {LABELLED} }}]"]
    data += [f"data.valid=[{{ files = ['embedded:{task}-heldout'], examples = {TEST} }}]"]
    schedule = "train.schedule={kind='linear', lr=0.003, warmup_steps=10}"
    return train(recipe, tiny=True, run=run, overrides=[*build_step_settings(STEPS), *data, schedule, *changes])


def measure_accuracy(model: Predictor) -> float:
    """Accuracy on the held-out examples, in percent."""
    valid = model.recipe.data.valid
    assert isinstance(valid, tuple)
    return evaluate_labels(model, read_labelled_pairs(valid, kind="label")).scores["accuracy"].value


def get_language_loss(model: LanguageModel) -> float:
    """The loss per word of a language model on held-out texts."""
    found = model.compute_likelihood([text for _, text in read_texts("sentences-heldout", 100)])
    return found.nll / found.tokens


def load_stored_weights(run: Path) -> dict[str, Tensor]:
    """The weights of a run by name, as they were trained."""
    return load_run(run).model.state_dict()


@torch.no_grad()
def score_classes(model: Model, ids: Sequence[int], activation: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Log-probabilities of the classes, written out: a causal Transformer, its state before the end, and the head."""
    state = decode_text(model.reader, torch.tensor(ids), GPT2)[-2]
    state = state if activation is None else activation(apply_linear(model.writer.hidden, state))
    return apply_linear(model.writer.output, state).log_softmax(-1)


def compare_scores(
    model: Predictor, run: Path, task: str, activation: Callable[[Tensor], Tensor] | None = None
) -> Comparison:
    """Compare the log-probabilities of correct classes with those of the formulas written out."""
    rows = [(row[1], row[2]) for row in read_labelled(f"{task}-heldout", 20, kind="label")]
    assert model.tokenizers.labels is not None
    names = list(model.tokenizers.labels.names)
    exact = load_run(run).model.double()
    expected = [
        float(score_classes(exact, model.tokenizers.source.encode(text), activation)[names.index(label)])
        for text, label in rows
    ]
    difference = max_difference(torch.tensor(model.score(rows)), torch.tensor(expected))
    return expect_at_most("log P(class | text): largest difference from the formulas written out", difference, 1e-3)


def get_largest_change(language: Path, weights: Mapping[str, Tensor]) -> float:
    """The largest difference of a classifier's reader from the language model that it was initialized from."""
    before = load_stored_weights(language)
    pairs = ((before[name.replace("reader.", "writer.", 1)], weights[name]) for name in list_reader_names(weights))
    return max(max_difference(*pair) for pair in pairs)


def list_reader_names(weights: Mapping[str, Tensor]) -> list[str]:
    return [name for name in weights if name.startswith("reader.")]


@check(
    56,
    "S0:44-46",
    "Training large models is expensive, so a pretrained one is used and only a sigmoid layer is trained on the task.",
    formula=r"y = \mathrm{softmax}(W_2 \, \sigma(W_1 h + b_1) + b_2), \quad h \text{~frozen}",
    code=(freeze, pool_states, LabelWriter),
    trains=True,
    recipes=("classify", "probe"),
    breaks=(
        "uniform-attention", "init-copies-nothing", "freeze-ignored", "head-without-activation", "pooler-of-the-mean",
        "unshifted-targets",
    ),
)  # fmt: skip
def frozen_reader() -> CheckResult:
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        language, run = Path(folder, "language"), Path(folder, "tuned")
        pretrain(language)
        tuned = tune("probe", "subjects", run, ["freeze=reader", f"init={language}"])
        fresh = tune("probe", "subjects", Path(folder, "fresh"), ["freeze=reader", *FRESH])
        accuracies = [measure_accuracy(model) for model in (tuned, fresh)]
        scores, weights = compare_scores(tuned, run, "subjects", torch.sigmoid), load_stored_weights(run)
        change = get_largest_change(language, weights)
    every = sum(tensor.numel() for tensor in weights.values())
    trained = every - sum(weights[name].numel() for name in list_reader_names(weights))
    return build_result(
        expect_at_least("accuracy over a pretrained reader, in %", accuracies[0], 93),
        expect_at_most("accuracy over a random reader, in %", accuracies[1], 85),
        expect_equal("largest change of the reader's weights", change, 0.0),
        expect_at_most("share of trainable parameters", trained / every, 0.1),
        scores,
        note=f"Pretraining: {PRETRAINING_STEPS} steps of language modelling on words. The task: predict whether the "
        f"verb after a phrase is singular or plural, from {LABELLED:,} phrases in {STEPS} steps; {trained:,} "
        "parameters are trained.",
    )


@check(
    99,
    "S3:1689-1702",
    "Transfer learning: a model pretrained on much text needs fewer labelled examples than a randomly initialized one.",
    formula=r"A(\text{pretrained,~then~tuned}) > A(\text{from~scratch})",
    code=(train, next_token_loss, warm_start),
    trains=True,
    recipes=("classify", "tag"),
    breaks=(
        "uniform-attention",
        "init-copies-nothing",
        "unshifted-targets",
        "unmasked-attention",
        "pooler-of-the-mean",
    ),
)
def transfer() -> CheckResult:
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        language, run = Path(folder, "language"), Path(folder, "tuned")
        loss = get_language_loss(pretrain(language))
        tuned = tune("classify", "judgements", run, [f"init={language}"])
        fresh = tune("classify", "judgements", Path(folder, "fresh"), FRESH)
        accuracies = [measure_accuracy(model) for model in (tuned, fresh)]
        initial, _ = build_initial_model(tuned.recipe, tuned.tokenizers, fresh=True)
        changes = [get_largest_change(language, w) for w in (initial.state_dict(), load_stored_weights(run))]
        scores = compare_scores(tuned, run, "judgements")
    return build_result(
        expect_at_least("accuracy on held-out sentences, fine-tuned, in %", accuracies[0], 80),
        expect_at_most("accuracy on held-out sentences, from random weights, in %", accuracies[1], 72),
        expect_at_most("loss per word of the language model, on held-out texts", loss, 1.8),
        expect_at_least("loss per word of the language model: the texts are random", loss, 1.2),
        expect_equal("difference of the classifier's first weights from the language model", changes[0], 0.0),
        expect_at_least("largest change of these weights by fine-tuning", changes[1], 1e-3),
        scores,
        note=f"Pretraining: {PRETRAINING_STEPS} steps of language modelling on 8,000 sentences without labels. The "
        f"task: does the verb agree with its subject? It is learned from {LABELLED:,} labelled sentences in {STEPS} "
        "steps by the same Transformer.",
    )
