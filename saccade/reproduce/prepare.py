"""Convert public data sets to files that recipes read, for results whose data needs it."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from saccade.reproduce.scene_text import prepare_scene_text, write_metadata

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SCAN_SPLITS = ("simple", "length", "addprim_jump")
TRAINING_SHARE = 0.9  # of the characters of a text, as nanoGPT splits it
IMAGE_NAME = re.compile(r"\s+in the image\d+(?=\s*\??\s*$)")  # at the end of a question of DAQUAR


def prepare_scan(data: Path, folder: Path) -> None:
    """SCAN: write commands and actions, lines `IN: ... OUT: ...`, as files of two columns."""
    for name in (f"{split}_{part}" for split in SCAN_SPLITS for part in ("train", "test")):
        with gzip.open(data / "scan" / f"{name}.txt.gz", "rt", encoding="utf-8") as lines:
            rows = [line.removeprefix("IN: ").strip().split(" OUT: ") for line in lines]
        table = "".join(f"{command}\t{actions}\n" for command, actions in rows)
        (folder / f"{name}.tsv").write_text(f"source\ttarget\n{table}", encoding="utf-8")


def prepare_spoken_digits(data: Path, folder: Path) -> None:
    """FSDD: unpack the recordings, called DIGIT_SPEAKER_TAKE.wav, and write their digits as words beside them."""
    for split in ("train", "test_a"):
        with tarfile.open(data / "fsdd" / f"{split}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        names = sorted(path.name for path in (folder / split).glob("*.wav"))
        write_metadata(folder / split, ((name, DIGITS[int(name.split("_")[0])]) for name in names))


def prepare_shakespeare(data: Path, folder: Path) -> None:
    """Tiny Shakespeare: write the first 90% of the characters for training, and the others for validation."""
    text = gzip.decompress((data / "tinyshakespeare" / "input.txt.gz").read_bytes()).decode("utf-8")
    border = int(TRAINING_SHARE * len(text))
    (folder / "train.txt").write_text(text[:border], encoding="utf-8")
    (folder / "valid.txt").write_text(text[border:], encoding="utf-8")


def prepare_room_questions(data: Path, folder: Path) -> None:
    """DAQUAR: write the questions without the name of their image, and several answers as one, with commas.

    Eight consecutive images of every eighty are held out: neighbouring images often show the same room.
    """
    rows = {split: list(read_room_questions(data / "daquar" / f"{split}.jsonl.gz")) for split in ("train", "test_a")}
    held = [int(re.sub(r"\D", "", row["image"])) // 8 % 10 == 9 for row in rows["train"]]
    rows["learn"] = [row for row, out in zip(rows["train"], held, strict=True) if not out]
    rows["heldout"] = [row for row, out in zip(rows["train"], held, strict=True) if out]
    for split, some in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some), encoding="utf-8")


def read_room_questions(path: Path) -> Iterable[dict[str, str]]:
    """Read questions of DAQUAR, without the name of their image; several answers are one, with commas."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            question = IMAGE_NAME.sub("", row["question"])
            yield {"image": row["image"], "question": question, "answer": ", ".join(row["answers"])}


PREPARATIONS: dict[str, Callable[[Path, Path], None]] = {
    "scan": prepare_scan,
    "spoken-digits": prepare_spoken_digits,
    "shakespeare": prepare_shakespeare,
    "room-questions": prepare_room_questions,
    "scene-text": prepare_scene_text,
}
TRIAL_PREPARATIONS = PREPARATIONS | {"scene-text": partial(prepare_scene_text, most=2000)}  # what generates, in short
