"""Character language model of Shakespeare's plays in nanoGPT's size: loss on the last tenth, and training time.

    python benchmarks/shakespeare.py --data FOLDER [--seeds 1] [--out FOLDER] [KEY=VALUE ...]

FOLDER holds `tinyshakespeare/input.txt.gz`; its first 90 % of letters are for training, as there. The loss is that of
`saccade evaluate`: every letter of the rest once, in windows of 256 that do not overlap. Seconds are those that the run
counts, from the first step to the last with all validations. KEY=VALUE are settings of the recipe.
"""

import argparse
import gzip
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minutes import read_metrics
from results import save

import saccade
from saccade.config.schema import Corpus
from saccade.score.evaluate import evaluate_corpora

PEER = ("nanoGPT, about 3 minutes on an A100", 1.4697)  # as its README says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    begin, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        parts = split_text(args.data / "tinyshakespeare" / "input.txt.gz", Path(folder))
        for seed in args.seeds:
            rows += measure_training(
                parts, Path(folder, f"run-{seed}"), [*args.settings, f"train.seed={seed}"], seed=seed
            )
    for row in rows:
        print(f"{row['what']:70} {row['value']:.4f} {row['unit']}")
    notes = f"Settings beside the recipe's: {' '.join(args.settings) or 'none'}."
    save("shakespeare", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


def split_text(packed: Path, folder: Path) -> list[Path]:
    """Write the files for training and validation."""
    text = gzip.decompress(packed.read_bytes()).decode()
    border = int(0.9 * len(text))
    files = [folder / "train.txt", folder / "valid.txt"]
    for path, part in zip(files, (text[:border], text[border:]), strict=True):
        path.write_text(part, encoding="utf-8")
    return files


def measure_training(parts: Sequence[Path], run: Path, settings: Sequence[str], *, seed: int) -> list[dict[str, Any]]:
    """Train once; return loss and seconds."""
    train, valid = parts
    model = saccade.train("shakespeare", data=train, valid=valid, run=run, overrides=settings)
    loss = evaluate_corpora(model, [Corpus(files=(str(valid),))]).loss  # type: ignore[union-attr]
    what = "tinyshakespeare by characters, nanoGPT's size"
    peer, value = PEER
    return [
        {"what": f"{what}: validation loss", "value": round(loss, 4), "unit": "nats", "seed": seed,
         "peer": peer, "peer_value": value, "ratio": round(loss / value, 4)},
        {"what": f"{what}: seconds of training", "value": read_metrics(run)[-1]["seconds"], "unit": "s", "seed": seed},
    ]  # fmt: skip


if __name__ == "__main__":
    main()
