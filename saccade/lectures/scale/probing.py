"""Check on probing: a pretrained model is frozen, and only a small layer on top of it is trained."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_equal
from saccade.lectures.small import max_difference
from saccade.model.run import load_run, named_weights
from saccade.model.writers.labels import LabelWriter, pool_states
from saccade.score.labels import evaluate_labels
from saccade.score.pairs import read_labelled_pairs
from saccade.train.api import train
from saccade.train.optimizer import freeze

PRETRAINING_STEPS, STEPS = 300, 100
LABELLED = 1_000  # phrases


def build_step_settings(count: int) -> list[str]:
    every = [f"train.{key}={count}" for key in ("steps", "valid_every", "save_every", "report_every")]
    return [*every, "train.device=cpu", "train.valid_predictions=0", "train.metric=loss"]


def train_probe(run: Path, changes: list[str]) -> float:
    """Train a sigmoid layer over a frozen reader; return its accuracy on held-out phrases."""
    data = [f"data.train=[{{ files = ['embedded:subjects'], examples = {LABELLED} }}]"]
    data += ["data.valid=[{ files = ['embedded:subjects-heldout'], examples = 500 }]"]
    found = train(
        "probe", tiny=True, run=run, overrides=[*build_step_settings(STEPS), *data, "freeze=reader", *changes]
    )
    valid = found.recipe.data.valid
    return evaluate_labels(found, read_labelled_pairs(valid, kind="label")).scores["accuracy"].value  # type: ignore[arg-type]


@check(
    56,
    "S0:44-46",
    "Training large models is expensive, so a pretrained one is used and only a sigmoid layer is trained on the task.",
    formula=r"y = \mathrm{softmax}(W_2 \, \sigma(W_1 h + b_1) + b_2), \quad h \text{~frozen}",
    code=(freeze, pool_states, LabelWriter),
    trains=True,
)
def frozen_reader() -> CheckResult:
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        language, random = Path(folder, "language"), ["writer.pooling=before-end", "reader.causal=true"]
        train(
            "shakespeare",
            tiny=True,
            run=language,
            overrides=[*build_step_settings(PRETRAINING_STEPS), "tokenizer.kind=words"],
        )
        tuned = train_probe(Path(folder, "tuned"), [f"init={language}"])
        fresh = train_probe(Path(folder, "fresh"), random)
        before, after = (named_weights(load_run(path).model) for path in (language, Path(folder, "tuned")))
    frozen = {name: tensor for name, tensor in after.items() if name.startswith("reader.")}
    moved = max(
        max_difference(before[name.replace("reader.", "writer.", 1)], tensor) for name, tensor in frozen.items()
    )
    every = sum(tensor.numel() for tensor in after.values())
    layer = every - sum(tensor.numel() for tensor in frozen.values())
    return build_result(
        expect_at_least("accuracy over a pretrained reader, in %", tuned, 93),
        expect_at_most("accuracy over a random reader, in %", fresh, 85),
        expect_equal("largest change of the reader's weights", moved, 0.0),
        expect_at_most("share of trainable parameters", layer / every, 0.1),
        note=f"Pretraining: {PRETRAINING_STEPS} steps of language modelling on words. The task: predict whether the "
        f"verb after a phrase is singular or plural, from {LABELLED:,} phrases in {STEPS} steps; {layer:,} parameters.",
    )
