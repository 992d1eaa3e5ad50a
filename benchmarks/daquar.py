"""Visual questions about rooms: show-ask-attend-answer on DAQUAR, compared with the same model without the picture.

    python benchmarks/daquar.py --data FOLDER [--minutes 1.5] [--steps N] [--seeds 1 2 3] [--run FOLDER] [--out FOLDER]
        [--heldout] [--pictures 200 400 795] [KEY=VALUE ...]
    python benchmarks/daquar.py --tiny

FOLDER holds `daquar/{train,test_a}_images.tar.gz` and `.jsonl.gz`. No weights come from elsewhere. "in the image3 ?" at
the end of a question, which names the picture, is cut off; several answers to one question are one answer with commas,
and right is what is that whole text. There are no questions for validation, so that the weights at the end are scored,
and all settings are the same for both; by --heldout they can be chosen without a look at the test. Three minutes for
each seed on an H200 by itself. With --pictures everything is measured for each of these numbers of training pictures:
a learning curve of what the picture adds to the question, with as many epochs at most for each number.
"""

import argparse
import gzip
import json
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from minutes import count_steps_within
from packs import Pack, Study, add_schedule, arguments, recipe_of, score_run, summarize_seeds, tests
from results import save

import saccade
from saccade.config.load import override

# 795 pictures overfit easily: few channels, input dropout of half the pictures, and no hidden layer, so that the logits
# of an answer are the sum of those from the question and those from the attended cells.
STUDY = Study(
    name="daquar",
    recipe="show-ask-attend-answer",
    settings=(
        "reader.image.fit=stretch", "reader.image.size=128", "reader.image.channels=[32, 64, 128, 16]",
        "reader.image.augment={crop=16}", "reader.image.dropout=0.3", "reader.question.stack.dim=256",
        "reader.question.dropout=0.4", "reader.join.glimpses=1", "reader.join.hidden_dim=256",
        "reader.join.dropout=0.3",
        "reader.image_dropout=0.5", "writer.hidden_dim=none", "writer.dropout=0.5",
        "train.batch_tokens=8192", "train.schedule.lr=0.002", "train.optimizer.weight_decay=0.05", "train.ema=0.99",
        "train.precision=bf16",
    ),
    minutes=1.5,
    scores=("accuracy",),
)  # fmt: skip
JOIN = "reader.join."
ABOUT_WHICH = re.compile(r"\s+in the image\d+(?=\s*\??\s*$)")
MOST_STEPS = 1300  # about 24 epochs, after which the model overfits the pictures; fewer for fewer pictures
ALL_PICTURES = 795


def main() -> None:
    args = arguments(
        STUDY,
        __doc__,
        heldout="score training pictures that are not learned from; nothing is saved",
        extend=add_options,
    )
    begin, rows, means = time.perf_counter(), list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for count in args.pictures or [None]:
            name = STUDY.name if count is None else f"{STUDY.name}, {count} pictures"
            place = Path(folder, name)
            place.mkdir()
            pack = None if args.tiny else build_pack(args.data, place, heldout=args.heldout, pictures=count)
            most_steps = MOST_STEPS * (count or ALL_PICTURES) // ALL_PICTURES
            found = measure(replace(STUDY, name=name), pack, place, args, most_steps)
            means += [*summarize_seeds(found, ": accuracy"), *compute_gap(found)]
            rows += found
    for row in (*means, *rows):
        print(f"{row['what']:60} {row['value']:,.2f} {row['unit']}")
    if args.heldout:
        return
    notes = f"Settings beside the script's: {' '.join(args.settings) or 'none'}."
    save(STUDY.name, [*means, *rows], minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pictures", type=int, nargs="+", help="a learning curve: train on so many of the training pictures"
    )


def measure(
    study: Study, pack: Pack | None, folder: Path, args: argparse.Namespace, most_steps: int = MOST_STEPS
) -> list[dict[str, Any]]:
    """Train and score with the picture and with the question alone, for each seed."""
    rows, steps = list[dict[str, Any]](), args.steps
    for seed in args.seeds:
        for one in (study, replace(study, name=f"{study.name}, question alone")):
            settings = [*args.settings, f"train.seed={seed}"]
            if one is not study:
                settings = [f"{JOIN}kind=question", *(each for each in settings if not each.startswith(JOIN))]
            recipe = recipe_of(one, pack, settings)
            if pack is not None:
                steps = steps or min(count_steps_within(args.minutes, recipe, folder / "few"), most_steps)
                recipe = override(recipe, add_schedule(recipe, steps, one.warmup))
            run = (args.run or folder) / f"{one.name.replace(', ', '-').replace(' ', '-')}-{seed}"
            model = saccade.train(recipe, run=run)
            rows += score_run(one, model, run, corpora=tests(recipe, pack), seed=seed)
    return rows


def compute_gap(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the accuracy with minus without the picture: the mean over the seeds, and its spread."""
    name = rows[0]["what"].removesuffix(": accuracy")
    values = [
        [row["value"] for row in rows if row["what"] == f"{each}: accuracy"]
        for each in (name, f"{name}, question alone")
    ]
    gaps = [seen - guessed for seen, guessed in zip(*values, strict=True)]
    what = f"{name}: accuracy above question alone"
    found = [{"what": what, "value": round(fmean(gaps), 3), "unit": "points"}]
    if len(gaps) > 1:
        found.append({"what": f"{what}, standard deviation", "value": round(stdev(gaps), 3), "unit": "points"})
    return found


def build_pack(data: Path, folder: Path, *, heldout: bool = False, pictures: int | None = None) -> Pack:
    """Build training and test data; with `heldout`, a tenth of the training pictures replaces the test.

    With `pictures`, only the questions about so many of the training pictures are kept, evenly spread over them.
    """
    images = {split: data / f"daquar/{split}_images.tar.gz" for split in ("train", "test_a")}
    rows = {split: read_rows(data / f"daquar/{split}.jsonl.gz") for split in images}
    if heldout:
        images["test_a"] = images["train"]
        rows = {split: [row for row in rows["train"] if is_held_out(row) == (split == "test_a")] for split in rows}
    if pictures is not None:
        rows["train"] = keep_pictures(rows["train"], pictures)
    for split, some in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some), encoding="utf-8")
    train, test = ([images[split], folder / f"{split}.jsonl"] for split in images)
    return Pack(train, test)


def keep_pictures(rows: list[dict[str, str]], count: int) -> list[dict[str, str]]:
    """Return the rows of `count` pictures, evenly spread: neighbouring pictures often show the same room."""
    names = sorted({row["image"] for row in rows}, key=get_number)
    if count > len(names):
        raise SystemExit(f"error: --pictures: the training data has {len(names)} pictures, got {count}")
    kept = {names[i * len(names) // count] for i in range(count)}
    return [row for row in rows if row["image"] in kept]


def read_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [clean_row(json.loads(line)) for line in file]


def is_held_out(row: dict[str, str]) -> bool:
    """Hold out eight consecutive pictures of every eighty: neighbouring pictures often show the same room."""
    return get_number(row["image"]) // 8 % 10 == 9


def get_number(image: str) -> int:
    return int(re.sub(r"\D", "", image))


def clean_row(row: dict[str, Any]) -> dict[str, str]:
    """Remove the name of the picture from a question, and join its answers."""
    question = ABOUT_WHICH.sub("", row["question"])
    return {"image": row["image"], "question": question, "answer": ", ".join(row["answers"])}


if __name__ == "__main__":
    main()
