"""What is trained, killed and resumed: every averaging, schedule, metric and kind of data, as small as possible."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

STACK = ("layers=1", "dim=8", "heads=2", "ff=11", "dropout=0.1")
COMMON = (
    "train.steps=12", "train.save_every=3", "train.valid_every=4", "train.report_every=2", "train.keep_checkpoints=2",
    "train.valid_predictions=0", "train.metric=loss", "train.device=cpu",
)  # fmt: skip
COPY = (
    "data.train=[{files=['embedded:copy'], examples=200}]",
    "data.valid=[{files=['embedded:copy-heldout'], examples=20}]",
    "train.batch_tokens=256", *(f"{part}.stack.{change}" for part in ("reader", "writer") for change in STACK),
)  # fmt: skip
MEDIA = ("data.train.0.examples=24", "data.valid.0.examples=6", "train.batch_tokens=400", "train.ema=0")


class Training(NamedTuple):
    """A training of the matrix: a recipe in its tiny form with overrides, in one or several processes."""

    recipe: str
    overrides: Sequence[str]
    processes: int = 1


def list_trainings(folder: Path) -> dict[str, Training]:
    """All trainings by name; `folder` has the text of the stream and the run that LoRA starts from."""
    text = folder / "story.txt"
    text.write_text("Once upon a time there was a small dog . It ran and ran .\n\n" * 40)
    stream = (f"data.train=[{{files=['{text}']}}]", f"data.valid=[{{files=['{text}']}}]")
    language = tuple(f"writer.stack.{change}" for change in STACK)
    encoder = tuple(f"reader.stack.{change}" for change in STACK)
    return {
        "text, best step": Training("dates", COPY),
        "mean of the last checkpoints": Training(
            "dates", (*COPY, "data.valid=[]", "train.average={kind='last', n=3}", "train.save_every=2")
        ),
        "mean of the best checkpoints": Training(
            "dates", (*COPY, "train.average={kind='best', n=2}", "train.valid_every=2")
        ),
        "EMA": Training("dates", (*COPY, "train.ema=0.9")),
        "EMA, mean of the last": Training("dates", (*COPY, "train.ema=0.9", "train.average={kind='last', n=2}")),
        "metric of outputs, patience": Training(
            "dates", (*COPY, "train.metric=accuracy", "train.valid_predictions=6", "train.patience=9")
        ),
        "schedule warmup": Training("dates", (*COPY, "train.schedule={kind='warmup', warmup_steps=4}")),
        "schedule linear": Training("dates", (*COPY, "train.schedule={kind='linear', lr=0.01, warmup_steps=2}")),
        "schedule constant": Training("dates", (*COPY, "train.schedule={kind='constant', lr=0.01, warmup_steps=2}")),
        "epochs": Training("dates", (*COPY, "train.steps=none", "train.epochs=2", "train.batch_tokens=512")),
        "accumulate": Training("dates", (*COPY, "train.accumulate=3", "train.batch_tokens=128")),
        "stream": Training(
            "gpt2", (*language, *stream, "data.stream=true", "train.batch_tokens=128", "train.valid_every=6")
        ),
        "documents": Training("gpt2", (*language, *stream, "train.batch_tokens=128")),
        "masked": Training(
            "bert", (*encoder, "data.train.0.examples=60", "data.valid.0.examples=6", "train.batch_tokens=256")
        ),
        "labels": Training("classify", (*encoder, "data.train.0.examples=60", "data.valid.0.examples=6")),
        "pictures": Training(
            "vit",
            (
                *MEDIA,
                "data.train.0.examples=90",
                "train.batch_tokens=800",
                *encoder,
                "reader.augment={flip=0.5, crop=2}",
                "objectives.0.mixup=0.2",
            ),
        ),
        "sound": Training(
            "listen-attend-spell",
            (*MEDIA, "reader.stack.dim=8", "writer.stack.dim=8", "reader.augment={noise=0.1, time_masks=1}"),
        ),
        "episodes": Training("show-attend-interact", ()),
        "LoRA": Training("dates", (*COPY, f"init={prepare_first(folder)}", "train.lora={rank=2}")),
        "two processes": Training("dates", COPY, processes=2),
    }


def prepare_first(folder: Path) -> Path:
    """Train the run whose weights LoRA adapts."""
    path = folder / "first"
    if not path.exists():
        with redirect_stderr(io.StringIO()):
            train(Training("dates", COPY), path)
    return path


def train(training: Training, run: Path) -> Any:
    from saccade.train import api

    return api.train(training.recipe, tiny=True, run=run, overrides=[*COMMON, *training.overrides])


def train_or_resume(training: Training, run: Path) -> Any:
    """What a user does after a kill: resume the run, or give the command again if there is no run yet."""
    from saccade.train import api

    if (run / "recipe.toml").exists():
        return api.train(resume=run)
    return train(training, run)
