"""Checks that train whole models with `saccade.train`: transfer learning."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

from saccade.config.schema import Corpus
from saccade.data.synthetic.embedded import read_pairs
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

SMALL = [
    *(f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("layers=2", "dim=64", "ff=128", "heads=4")),
    "reader.stack.norm=pre", "writer.stack.norm=pre",
    *(f"{key}=0.0" for key in ("reader.dropout", "writer.dropout", "reader.stack.dropout", "writer.stack.dropout")),
    "train.device=cpu", "train.valid_predictions=0", "train.batch_tokens=1024",
    "train.schedule={kind='cosine', lr=0.003, warmup_steps=50}", "predict.beam=1",
]  # fmt: skip
PRETRAINING_STEPS, TUNING_STEPS = 400, 200
PRETRAINING, LABELLED, TEST = 20_000, 500, 200  # pairs


def train_quietly(data: Corpus, run: Path, *, steps: int, changes: list[str]) -> Predictor:
    """Train a small Transformer for this many steps, without output and without validation."""
    every = [f"train.{key}={steps}" for key in ("steps", "valid_every", "save_every", "report_every")]
    with redirect_stderr(io.StringIO()):
        return train("transformer", data=data, run=run, overrides=[*SMALL, *every, *changes])


@check(
    99,
    "S3:1689-1702",
    "Transfer learning: a model pretrained on much text needs fewer labelled examples than a randomly initialized one.",
    formula=r"L(\text{pretrained,~then~tuned}) < L(\text{from~scratch})",
    code=(train,),
    trains=True,
)
def transfer() -> CheckResult:
    test = [(source, target) for _, source, target in read_pairs("reverse-heldout", TEST)]
    tokens = sum(len(target) + 1 for _, target in test)
    text = Corpus(files=("embedded:copy",), examples=PRETRAINING)
    labelled = Corpus(files=("embedded:reverse",), examples=LABELLED)
    letters = ["tokenizer.kind=characters"]
    with TemporaryDirectory() as folder:
        before = Path(folder, "pretrained")
        train_quietly(text, before, steps=PRETRAINING_STEPS, changes=letters)
        scratch = train_quietly(labelled, Path(folder, "scratch"), steps=TUNING_STEPS, changes=letters)
        tuned = train_quietly(labelled, Path(folder, "tuned"), steps=TUNING_STEPS, changes=[*letters, f"init={before}"])
        losses = [-sum(run.score(test)) / tokens for run in (scratch, tuned)]
    return build_result(
        expect_at_most("held-out loss per letter: fine-tuned over trained from scratch", losses[1] / losses[0], 0.85),
        expect_at_least("held-out loss per letter: trained from scratch", losses[0], 0.2),
        note=f"Pretraining: copying {PRETRAINING:,} rows of letters. The task: reversing rows, learned from {LABELLED} "
        f"rows in {TUNING_STEPS} steps. Losses: {losses[0]:.2f} from scratch, {losses[1]:.2f} fine-tuned.",
    )
