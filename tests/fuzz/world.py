"""The folder in which fuzzed commands run: small trained runs of many kinds, and data files of every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import shutil
import struct
import tarfile
import wave
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import numpy as np

STACK = ("layers=1", "dim=8", "heads=2", "ff=11")
FEW = ("train.steps=2", "train.metric=loss", "train.valid_predictions=0", "train.valid_every=9", "train.save_every=2")
TEXT_DATA = ("data.train.0.examples=40", "train.keep_checkpoints=1")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {  # name -> recipe, and the tables of stacks that are made small
    "dates": ("dates", ("reader.stack", "writer.stack")),
    "gpt2": ("gpt2", ("writer.stack",)),
    "classify": ("classify", ("reader.stack",)),
    "tag": ("tag", ("reader.stack",)),
    "bert": ("bert", ("reader.stack",)),
    "vit": ("vit", ("reader.stack",)),
    "captions": ("show-attend-tell", ()),
    "speech": ("listen-attend-spell", ()),
    "questions": ("ask-attend-answer", ()),
    "t5": ("t5", ("reader.stack", "writer.stack")),
}
SMALL = {
    "captions": ("writer.stack.dim=8", "reader.channels=[4, 8]"),
    "speech": ("reader.stack.dim=8", "writer.stack.dim=8"),
    "questions": ("reader.question.stack.dim=8", "reader.join.dim=8", "reader.image.channels=[4, 8]"),
}
PAIRS = [("3 May 1999", "1999-05-03"), ("21 June 2008", "2008-06-21"), ("5. toukokuuta 1994", "1994-05-05")] * 4
LABELS = [("a fine film", "positive"), ("a dull film", "negative"), ("well made, and short", "positive")] * 4


def build_world(folder: Path) -> Path:
    """Fill an empty folder; the current folder is changed for the time of it."""
    with enter(folder):
        train_runs()
        write_texts(Path("data"))
        write_media(Path("data"))
        write_foreign_models()
        write_special_files()
    return folder


@contextmanager
def enter(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def train_runs(only: str = "") -> None:
    """Train each run, or one, for two steps; checkpoints are kept of two runs, which is enough to try to resume."""
    from saccade.train import api, finish

    draw = finish.plot_loss
    finish.plot_loss = lambda run: None
    try:
        for name, (recipe, tables) in RUNS.items():
            if only not in ("", name):
                continue
            small = [f"{table}.{change}" for table in tables for change in STACK]
            valid = ["data.valid=0.2" if name == "dates" else "data.valid.0.examples=6"]
            with redirect_stderr(io.StringIO()):
                chosen = [*FEW, *TEXT_DATA, *valid, *small, *SMALL.get(name, ())]
                api.train(recipe, tiny=True, run=name, overrides=[*chosen, "predict.max_length=6"])
            if name not in ("dates", "vit"):
                shutil.rmtree(Path("runs", name, "checkpoints"))
    finally:
        finish.plot_loss = draw


def write_texts(folder: Path) -> None:
    """Pairs, labels, tags, documents, tasks, terms and plugins."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    write_lines(folder / "pairs.src", [source for source, _ in PAIRS])
    write_lines(folder / "pairs.tgt", [target for _, target in PAIRS])
    write_lines(folder / "pairs.tsv", [f"{source}\t{target}" for source, target in PAIRS])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *LABELS])
    write_lines(folder / "labels.jsonl", [json.dumps({"text": text, "label": label}) for text, label in LABELS])
    write_lines(folder / "pairs.jsonl", [json.dumps({"source": a, "target": b}) for a, b in PAIRS])
    columns = {"source": [a for a, _ in PAIRS], "target": [b for _, b in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "pairs.parquet")
    content = (folder / "pairs.tsv").read_bytes()
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress(content, mtime=0))
    (folder / "pairs.tsv.xz").write_bytes(lzma.compress(content))
    write_lines(folder / "tags.conll", [*["the\tO", "cat\tB", ""] * 3])
    write_lines(folder / "story.txt", ["Once upon a time there was a small dog .", ""] * 6)
    write_lines(folder / "tasks.jsonl", [json.dumps({"question": "1+1", "answer": "2"})] * 2)
    write_lines(folder / "terms.tsv", ["May\t05", "June\t06"])
    write_lines(folder / "template.txt", ["Q: {question}", "A: {answer}"])
    write_lines(folder / "plugin.py", ["KINDS = {}"])


def write_media(folder: Path) -> None:
    """Pictures in folders of classes, recordings and questions with metadata, features, and archives of them."""
    from PIL import Image

    values = np.random.default_rng(0)
    for name in ("red circle/a.png", "red circle/b.jpg", "blue square/c.png", "blue square/d.gif"):
        path = folder / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.integers(0, 255, (9, 11, 3), dtype=np.uint8)).save(path)
    rows = [{"file_name": f"red circle/{name}", "text": "a round one"} for name in ("a.png", "b.jpg")] * 2
    write_lines(folder / "captions.jsonl", [json.dumps(row) for row in rows])
    asked = [
        {"file_name": row["file_name"], "question": "what is it ?", "answer": row["file_name"][-5]} for row in rows
    ] * 2
    write_lines(folder / "questions.jsonl", [json.dumps(row) for row in asked])
    sounds = folder / "sounds"
    sounds.mkdir()
    for name in ("a.wav", "b.wav"):
        with wave.open(str(sounds / name), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
            file.writeframes(values.integers(-9000, 9000, 1600).astype("<i2").tobytes())
    write_sound(sounds / "c.flac", values.uniform(-0.5, 0.5, 800))
    texts = [json.dumps({"file_name": name, "text": "ab"}) for name in ("a.wav", "b.wav", "c.flac")]
    write_lines(sounds / "metadata.jsonl", texts)
    frames = {"features": values.random((40, 24), dtype=np.float32), "offsets": np.array([0, 9, 20, 31, 40])}
    np.savez(folder / "frames.npz", **frames, text=np.array(["ab", "b", "ba", "a"]))
    np.save(folder / "frames.npy", values.random((20, 24), dtype=np.float32))
    for name, mode in (("pictures.tar", "w"), ("pictures.tar.gz", "w:gz"), ("pictures.tar.xz", "w:xz")):
        with tarfile.open(folder / name, mode) as archive:  # type: ignore[call-overload]
            archive.add(folder / "pictures", arcname=".")
    with zipfile.ZipFile(folder / "pictures.zip", "w") as packed:
        packed.write(folder / "pictures/red circle/a.png", "a.png")


def write_sound(path: Path, samples: np.ndarray) -> None:
    try:
        import soundfile
    except ImportError:
        return
    soundfile.write(path, samples, 8000)


def write_foreign_models() -> None:
    """A Hugging Face folder of three families, and the header of a GGUF file."""
    from saccade.exchange.exporting import export_run

    for name in ("gpt2", "bert", "vit"):
        try:
            export_run(name, f"foreign/{name}")
        except ValueError:  # this form of the model has no counterpart
            continue
    key = b"general.architecture"
    header = (
        struct.pack("<4sIQQ", b"GGUF", 3, 1, 1)
        + struct.pack("<Q", len(key))
        + key
        + struct.pack("<IQ", 8, 5)
        + b"llama"
    )
    tensor = struct.pack("<Q", 17) + b"token_embd.weight" + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    Path("foreign/model.gguf").write_bytes(header + tensor + b"\0" * 200)


def write_special_files() -> None:
    """What paths can also be: empty, a loop of links, a link to nothing, a locked folder, files with odd names."""
    Path("empty").write_bytes(b"")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    Path("locked").mkdir(mode=0)
    Path("größe und mehr.txt").write_text("3 May 1999\n", encoding="utf-8")
    Path(os.fsdecode(b"latin-\xe9.txt")).write_text("3 May 1999\n")


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
