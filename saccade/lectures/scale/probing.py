"""Row 56: what is expensive was trained before, and only a small layer on top of it is trained."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

from saccade.lectures.claims import Measured, at_least, at_most, check, measured, same
from saccade.lectures.small import apart
from saccade.model.run import load_run, named_weights
from saccade.model.writers.labels import LabelWriter, pooled
from saccade.score.labels import evaluate_labels
from saccade.score.pairs import labelled_pairs
from saccade.train.api import train
from saccade.train.optimizer import freeze

PRETRAINING_STEPS, STEPS = 300, 100
LABELLED = 1_000  # phrases


def steps(count: int) -> list[str]:
    every = [f"train.{key}={count}" for key in ("steps", "valid_every", "save_every", "report_every")]
    return [*every, "train.device=cpu", "train.valid_predictions=0", "train.metric=loss"]


def probe(run: Path, changes: list[str]) -> float:
    """The accuracy of a sigmoid layer over a frozen reader, on phrases that it has not seen."""
    data = [f"data.train=[{{ files = ['embedded:subjects'], examples = {LABELLED} }}]"]
    data += ["data.valid=[{ files = ['embedded:subjects-heldout'], examples = 500 }]"]
    found = train("probe", tiny=True, run=run, overrides=[*steps(STEPS), *data, "freeze=reader", *changes])
    valid = found.recipe.data.valid
    return evaluate_labels(found, labelled_pairs(valid, kind="label")).scores["accuracy"].value  # type: ignore[arg-type]


@check(
    56,
    "S0:44-46",
    "Models need a lot of resources, so a pretrained one is used and only a sigmoid layer is trained on the task.",
    formula=r"y = \mathrm{softmax}(W_2 \, \sigma(W_1 h + b_1) + b_2), \quad h \text{~frozen}",
    code=(freeze, pooled, LabelWriter),
    trains=True,
)
def frozen_reader() -> Measured:
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        language, random = Path(folder, "language"), ["writer.pooling=before-end", "reader.causal=true"]
        train("shakespeare", tiny=True, run=language, overrides=[*steps(PRETRAINING_STEPS), "tokenizer.kind=words"])
        tuned = probe(Path(folder, "tuned"), [f"init={language}"])
        fresh = probe(Path(folder, "fresh"), random)
        before, after = (named_weights(load_run(path).model) for path in (language, Path(folder, "tuned")))
    frozen = {name: tensor for name, tensor in after.items() if name.startswith("reader.")}
    moved = max(apart(before[name.replace("reader.", "writer.", 1)], tensor) for name, tensor in frozen.items())
    every = sum(tensor.numel() for tensor in after.values())
    layer = every - sum(tensor.numel() for tensor in frozen.values())
    return measured(
        at_least("accuracy over a pretrained reader, in %", tuned, 93),
        at_most("accuracy over a random reader, in %", fresh, 85),
        same("the reader's weights moved by", moved, 0.0),
        at_most("share of the numbers that are trained", layer / every, 0.1),
        note=f"Pretraining: {PRETRAINING_STEPS} steps on sentences, word by word. The task: of which number the verb "
        f"after a phrase will be, learned from {LABELLED:,} phrases in {STEPS} steps of {layer:,} numbers.",
    )
