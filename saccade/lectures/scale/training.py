"""Check that trains a whole model with `saccade.train`: start and stop tokens."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from saccade.config.schema import Corpus
from saccade.data.tokenization.tokenizers import END, START
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal
from saccade.model.writers.tokens import shift_right
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

SMALL = [
    *(f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("layers=2", "dim=64", "ff=128", "heads=4")),
    "reader.stack.norm=pre", "writer.stack.norm=pre",
    *(f"{key}=0.0" for key in ("reader.dropout", "writer.dropout", "reader.stack.dropout", "writer.stack.dropout")),
    "train.device=cpu", "train.valid_predictions=0", "train.batch_tokens=1024",
    "train.schedule={kind='cosine', lr=0.003, warmup_steps=50}", "predict.beam=1",
]  # fmt: skip
PAIR_STEPS = 60


def train_quietly(data: Corpus, run: Path, *, steps: int, changes: list[str]) -> Predictor:
    """Train a small Transformer for this many steps, without output and without validation."""
    every = [f"train.{key}={steps}" for key in ("steps", "valid_every", "save_every", "report_every")]
    with redirect_stderr(io.StringIO()):
        return train("transformer", data=data, run=run, overrides=[*SMALL, *every, *changes])


@check(
    4,
    "S3:46-70",
    "Generation starts with [START] and ends with [STOP]: we are eating bread -> estamos comiendo pan [STOP].",
    formula=r"y_0 = \mathrm{[START]}, \quad y_4 = \mathrm{[STOP]}",
    code=(shift_right, train),
    trains=True,
)
def start_and_stop() -> CheckResult:
    source, target = "we are eating bread", "estamos comiendo pan"
    with TemporaryDirectory() as folder:
        pairs = Path(folder, "pair.tsv")
        pairs.write_text(f"{source}\t{target}\n", encoding="utf-8")
        data = Corpus(files=(str(pairs),))
        run = train_quietly(data, Path(folder, "run"), steps=PAIR_STEPS, changes=["tokenizer.kind=words"])
        [[found]] = run.candidates([source])
        ids = run.tokenizers.target.encode(target)
    return build_result(
        expect_equal("output of the trained model", found.text, target),
        expect_equal("the last token of the target is [STOP]", ids[-1], END),
        expect_equal(
            "the first input of the decoder is [START]", int(shift_right(torch.tensor([ids]), START)[0, 0]), START
        ),
        expect_equal("words before the model generates [STOP], of at most 28", len(found.ids), 3),
    )
