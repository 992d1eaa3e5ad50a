"""Pretrain an encoder on books and fine-tune it on SST-2, compared with the same model from random weights.

    python benchmarks/bert_sst2.py --data FOLDER [--minutes 7] [--run RUN] [--seeds 1 2 3] [--together 1]
        [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/bert_sst2.py --tiny

FOLDER holds `classic-books/{train,valid}.jsonl.xz` and `sst2/{train,dev}.tsv.gz`. How many steps fit into the minutes
is measured first, by a few of them, since a schedule has to know its end. Both labelling models have the same
tokenizer, form, epochs, number of learning rates to choose from and choice of the best validation; accuracy is that on
dev, of each seed the best of the learning rates, which are chosen on dev too. KEY=VALUE are settings of the
pretraining. --run keeps the pretrained run, or takes the one that is there. --tiny takes embedded text and labels, and
toy sizes.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from minutes import count_steps_within, read_metrics
from results import save

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Corpus, Tokenizer
from saccade.data.tokenization.tokenizer import SHARED_FILE
from saccade.train.api import replace_data
from saccade.train.transfer.adopt import adopt_run

NAME = "bert_sst2"
# A medium-sized BERT for a few minutes: pre-norm tolerates a high learning rate, and more tokens are masked.
FORM = [
    "reader.stack.layers=12", "reader.stack.dim=512", "reader.stack.heads=8", "reader.stack.ff=2048",
    "reader.stack.norm=pre", "reader.stack.norm_epsilon=1e-5", "data.max_length=128", "reader.positions.length=128",
    "data.cross_document=true", "tokenizer.kind=wordpiece", "tokenizer.size=16000", "tokenizer.lowercase=true",
    "objectives.0.mask_rate=0.2", "train.batch_tokens=65536", "train.accumulate=1", "train.precision=bf16",
    "train.optimizer.betas=[0.9, 0.98]", "train.clip=1.0", "train.report_every=100",
    "train.weight_init.scale_by_depth=true",
]  # fmt: skip
RATE, WARMUP = 1e-3, 0.06  # the highest learning rate of the pretraining, and the share of its steps up to it
RATES = {"pretrained": (3e-5, 6e-5, 1e-4), "fresh": (1e-4, 3e-4, 6e-4)}
TUNED = [
    "train.epochs=3", "train.batch_tokens=2048", "train.valid_every=250", "train.save_every=100000",
    "train.metric=accuracy", "train.precision=bf16",
]  # fmt: skip
SMALL = [
    "reader.stack.layers=2", "reader.stack.dim=32", "reader.stack.heads=2", "reader.stack.ff=64", "data.max_length=48",
    "reader.positions.length=48", "tokenizer.size=400", "train.batch_tokens=1024", "train.precision=fp32",
    "data.cross_document=false",
]  # fmt: skip


class Job(NamedTuple):
    """One training of a labelling model."""

    start: str
    seed: int
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--together", type=int, default=1, help="labelling models trained at the same time")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    if (args.data is None) != args.tiny:
        parser.error("give --data FOLDER, or --tiny")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        base = args.run or Path(folder, "pretrained")
        if not (base / "model.safetensors").is_file():
            pretrain(base, Path(folder), args)
        rows = [*report_pretraining(base), *compare_starts(base, Path(folder), args)]
    for row in rows:
        print(f"{row['what']:70} {row['value']:.3f} {row['unit']}")
    save(NAME, rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=" ".join(args.settings))


def pretrain(base: Path, folder: Path, args: argparse.Namespace) -> None:
    """Pretrain for as many steps as fit into the minutes."""
    form = [*FORM, *(SMALL if args.tiny else []), *args.settings]
    recipe = load("roberta", tiny=args.tiny, overrides=form)
    if args.data:
        recipe = replace_data(
            recipe, data=args.data / "classic-books/train.jsonl.xz", valid=args.data / "classic-books/valid.jsonl.xz"
        )
    steps = 60 if args.tiny else count_steps_within(args.minutes, recipe, folder / "few")
    warmup = max(1, int(WARMUP * steps))
    lasting = [
        f"train.steps={steps}", f"train.valid_every={max(1, steps // 5)}", f"train.save_every={steps}",
        f"train.schedule={{kind='linear', lr={RATE}, warmup_steps={warmup}}}",
    ]  # fmt: skip
    saccade.train(override(recipe, lasting), run=base)


def report_pretraining(base: Path) -> list[dict[str, Any]]:
    """Report the cost of pretraining and its final accuracy on masked tokens."""
    lines = read_metrics(base)
    last = [line for line in lines if line["event"] == "valid"][-1]
    minutes = lines[-1]["seconds"] / 60 if "seconds" in lines[-1] else last["seconds"] / 60
    return [
        {"what": "pretraining", "value": round(minutes, 2), "unit": "min"},
        {"what": "pretraining: steps", "value": last["step"], "unit": ""},
        {"what": "pretraining: loss of hidden tokens, held out", "value": round(last["nll"], 4), "unit": "nats"},
    ]


def compare_starts(base: Path, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the dev accuracy of pretrained and random initialization, as means over the seeds."""
    rows, means, some = [], {}, 1 if args.tiny else None
    jobs = [
        Job(start, seed, rate)
        for start, rates in RATES.items() for seed in args.seeds[:some] for rate in rates[:some]
    ]  # fmt: skip
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes import nothing from the working folder
    with ProcessPoolExecutor(args.together, mp_context=get_context("spawn")) as pool:
        accuracies = dict(zip(jobs, pool.map(partial(fine_tune, base, folder, args), jobs), strict=True))
    for start in RATES:
        found = [
            max(value for job, value in accuracies.items() if job[:2] == (start, seed)) for seed in args.seeds[:some]
        ]
        means[start] = fmean(found)
        each = ", ".join(f"{value:.2f}" for value in found)
        rows.append(
            {"what": f"SST-2 dev, {start}: accuracy", "value": round(means[start], 2), "unit": "%", "runs": each}
        )
    rows[0] |= {"peer": "the same model from fresh weights", "peer_value": rows[1]["value"]}
    apart = round(means["pretrained"] - means["fresh"], 2)
    return [*rows, {"what": "SST-2 dev, pretrained above fresh", "value": apart, "unit": "points"}]


def fine_tune(base: Path, folder: Path, args: argparse.Namespace, job: Job) -> float:
    """Fine-tune once and return the best accuracy in percent."""
    start, seed, rate = job
    recipe = adopt_run(load("classify", tiny=args.tiny, overrides=[] if args.tiny else TUNED), str(base))
    changes = {
        "init": str(base) if start == "pretrained" else "",
        "tokenizer": Tokenizer(kind="file", files=(str(base / SHARED_FILE),)),
    }
    if args.data:
        files = {side: (Corpus(files=(str(args.data / "sst2" / f"{name}.tsv.gz"),)),) for side, name in SIDES.items()}
        changes["data"] = recipe.data.model_copy(update=files)
    recipe = recipe.model_copy(update=changes)
    lasting = [f"train.schedule={{kind='linear', lr={rate}, warmup_steps=100}}", f"train.seed={seed}"]
    short = ["train.steps=20", "train.valid_every=10", "train.metric=accuracy"] if args.tiny else []
    run = folder / f"{start}-{rate}-{seed}"
    saccade.train(override(recipe, [*lasting, *short]), run=run)
    return max(line["accuracy"] for line in read_metrics(run) if line["event"] == "valid")


SIDES = {"train": "train", "valid": "dev"}


if __name__ == "__main__":
    main()
