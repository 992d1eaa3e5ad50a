"""Training the recurrent recipes, at a small size and with `saccade.train`, on letters and their reordering."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory

import torch

from saccade.config.schema import Corpus
from saccade.data.batching.batch import Batch, pad
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

SMALL = [
    *(f"{key}=0.0" for key in ("reader.dropout", "writer.dropout", "reader.stack.dropout", "writer.stack.dropout")),
    "objectives=[{ kind = 'next-token', label_smoothing = 0.0 }]", "tokenizer.kind=characters", "predict.beam=1",
    "train.device=cpu", "train.valid_predictions=0", "train.metric=loss", "train.batch_tokens=1024", "train.ema=0",
    "train.schedule={ kind = 'cosine', lr = 0.01, warmup_steps = 30 }",
]  # fmt: skip

Pairs = Sequence[tuple[str, str]]


def sample_pairs(
    count: int, lengths: tuple[int, int], reorder: Callable[[str], str], *, letters: int = 10
) -> list[tuple[str, str]]:
    """Sample rows of random letters, of lengths from the first to the last one, and their reorderings."""
    rows = []
    for length in torch.randint(lengths[0], lengths[1] + 1, (count,)).tolist():
        rows.append("".join(ascii_lowercase[i] for i in torch.randint(letters, (length,)).tolist()))
    return [(row, reorder(row)) for row in rows]


def reverse(row: str) -> str:
    return row[::-1]


def train_on_pairs(name: str, pairs: Pairs, *, steps: int, dim: int, changes: Sequence[str] = ()) -> Predictor:
    """Train a recipe at this width for this many steps, without output and without validation.

    The seed of the run is drawn from torch's generator.
    """
    every = [f"train.{key}={steps}" for key in ("steps", "valid_every", "save_every", "report_every")]
    sizes, seed = [f"{part}.stack.dim={dim}" for part in ("reader", "writer")], int(torch.randint(1000, ()))
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        file = Path(folder, "pairs.tsv")
        file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
        data, overrides = Corpus(files=(str(file),)), [*SMALL, f"train.seed={seed}", *sizes, *every, *changes]
        return train(name, data=data, run=Path(folder, "run"), overrides=overrides)


def measure_accuracy(run: Predictor, pairs: Pairs) -> float:
    """The share of target letters that the model's own output has at their place."""
    outputs, targets = run.predict([source for source, _ in pairs]), [target for _, target in pairs]
    right = sum(a == b for row in zip(outputs, targets, strict=True) for a, b in zip(*row, strict=False))
    return right / sum(map(len, targets))


def encode_pairs(run: Predictor, pairs: Pairs) -> Batch:
    """A batch of pairs, as the model of a run reads them."""
    sources, targets = zip(*pairs, strict=True)
    source, target = run.tokenizers.source.encode_all(sources), run.tokenizers.target.encode_all(targets)
    return Batch({"source": pad(source), "target": pad(target)})
