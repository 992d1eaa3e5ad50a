"""Store small runs in tests/stored, so that tests can check that later versions load, predict with and resume them.

    python benchmarks/golden.py --store

writes tests/stored/VERSION/NAME for each of RUNS: a run folder with one checkpoint, its training data, and
expected.json with what this version predicts and how its training goes on. Do this once for each release, with the code
of that release; tests/stored/test_stored_runs.py finds the new folder by itself.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MORE = 5  # steps after the stored ones
LARGEST = 400_000  # bytes of one stored run
LETTERS = "abcdef"
SENTENCES = ["a small fox sees the moon", "the old fox likes rain", "our red bird hears a tall tree"]
SMALL = "{ kind = 'transformer', layers = 1, dim = 24, heads = 2, ff = 32, dropout = 0.1 }"
EVERY = [
    "train.precision=fp32",
    "train.device=cpu",
    "train.batch_tokens=512",
    "train.report_every=20",
    "train.keep_checkpoints=1",
]


class Kind(NamedTuple):
    recipe: str
    data: Callable[[Path], str]  # writes training data into a folder and gives its path
    steps: int
    inputs: list[str]
    overrides: list[str]


def reversed_letters(folder: Path) -> str:
    rng = random.Random(1)
    rows = ["".join(rng.choices(LETTERS, k=rng.randint(1, 4))) for _ in range(300)]
    return write_lines(folder / "pairs.tsv", [f"{row}\t{row[::-1]}" for row in rows])


def sentences(folder: Path) -> str:
    rng = random.Random(1)
    return write_lines(folder / "sentences.txt", rng.choices(SENTENCES, k=200))


def stripes(folder: Path) -> str:
    """Write pictures of 16 x 16 pixels with stripes, in one folder for each direction."""
    import numpy as np
    from PIL import Image

    rng = random.Random(1)
    for number in range(40):
        pixels = np.zeros((16, 16, 3), np.uint8)
        pixels[rng.randint(0, 3) :: 4] = [rng.randint(120, 255) for _ in range(3)]
        across = number % 2 == 0
        path = folder / ("across" if across else "down") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels if across else pixels.swapaxes(0, 1)).save(path)
    return str(folder)


def write_lines(file: Path, lines: list[str]) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(file)


RUNS = {
    "transformer": Kind(
        "transformer", reversed_letters, 400, ["ab", "cab", "dd", "fb"],
        ["tokenizer.kind=characters", f"reader.stack={SMALL}", f"writer.stack={SMALL}", "data.max_length=16",
         "train.schedule={kind = 'cosine', lr = 0.01, warmup_steps = 50}", "train.average={kind = 'none'}"],
    ),
    "gpt2": Kind(
        "gpt2", sentences, 150, ["a small", "the old fox", "our"],
        ["tokenizer={kind = 'words'}", f"writer.stack={SMALL}", "writer.positions.length=48", "data.max_length=48",
         "train.schedule={kind = 'cosine', lr = 0.01, warmup_steps = 20}", "train.accumulate=1",
         "predict.sample=false"],
    ),
    "vit": Kind(
        "vit", stripes, 60, ["data/across/00.png", "data/down/01.png", "data/down/39.png"],
        ["reader.size=16", f"reader.stack={SMALL}", "reader.augment={flip = 0.5, crop = 1}", "train.epochs=none",
         "objectives=[{kind = 'label', label_smoothing = 0.1}]",
         "train.schedule={kind = 'cosine', lr = 0.01, warmup_steps = 10}",
         "train.ema=0.9"],
    ),
}  # fmt: skip


def store(root: Path) -> None:
    """Store RUNS, created by the package in `root` in separate processes."""
    os.environ |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    version = saccade("--version").split()[-1]
    folder = root / "tests" / "stored" / version.rpartition(".")[0]
    for name, kind in RUNS.items():
        if (folder / name).exists():
            print(f"{folder / name}: is there already and stays as it is")
            continue
        with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
            os.environ |= {"SACCADE_CACHE": f"{work}/cache", "SACCADE_RUNS": f"{work}/runs"}
            made = store_run(kind, Path(work))
            size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
            if size > LARGEST:
                raise SystemExit(f"error: {name} has {size:,} bytes, at most {LARGEST:,} are wanted; make it smaller")
            shutil.copytree(made, folder / name)
        print(f"{folder / name}: {size:,} bytes")


def store_run(kind: Kind, work: Path) -> Path:
    """Create a run folder with its data and expected.json."""
    data, half = kind.data(Path("data")), kind.steps // 2
    steps = [f"train.steps={kind.steps}", f"train.valid_every={half}", f"train.save_every={half}"]
    saccade("train", kind.recipe, "--data", data, "--valid", "0.1", "--run", "made", *EVERY, *kind.overrides, *steps)
    run = work / "runs" / "made"
    for spare in (*run.glob("*.png"), *run.glob(".*")):
        spare.unlink()
    shutil.copytree(work / "data", run / "data")
    with contextlib.chdir(run):
        ways = {"greedy": ["--beam", "1"], "beam": ["--n-best", "2"]}
        predictions = {way: predict_inputs(run, kind.inputs, words) for way, words in ways.items()}
    resumed = work / "resumed"
    shutil.copytree(run, resumed)
    with contextlib.chdir(resumed):
        saccade("train", "--resume", str(resumed), f"train.steps={kind.steps + MORE}", "train.report_every=1")
    lines = [json.loads(line) for line in (resumed / "metrics.jsonl").read_text("utf-8").splitlines()]
    kept = ("step", "loss", "epoch", "lr")
    trained = [{key: line[key] for key in kept} for line in lines if line["event"] == "train"]
    expected = {"steps": kind.steps, "inputs": kind.inputs, "predictions": predictions}
    expected["resumed"] = [line for line in trained if line["step"] > kind.steps]
    (run / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return run


def predict_inputs(run: Path, inputs: list[str], words: list[str]) -> list[Any]:
    output = saccade("predict", str(run), "--json", *words, *inputs)
    return [json.loads(line) for line in output.splitlines()]


def saccade(*words: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-m", "saccade", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"saccade {' '.join(words)}\n{done.stderr}")
    return done.stdout
