"""Acting by attention: show-attend-interact in the small world of pixels, with attention and without.

    python benchmarks/interact.py [--seeds 1 2 3] [--full] [--episodes 1000] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/interact.py --tiny

The recipe's `[tiny]` table is trained, which one core does in about two minutes; with --full, the recipe itself.
"success" is the share of held-out episodes that end with a handshake. "attention_lift" is the attention on the cells
of the guest, divided by their share of the image, in the mean over all images of these episodes.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minutes import read_metrics
from packs import build_row
from results import save

import saccade
from saccade.config.schema import Corpus
from saccade.predict.predictors.player import Player
from saccade.score.playing import evaluate_episodes

NAME, WORLD = "show-attend-interact", "embedded:greeting"
FORMS = {"soft attention": [], "no attention": ["writer.stack.attention=none"]}
FEW = ["train.steps=4", "train.batch_tokens=2560", "data.play.parallel_episodes=3", "reader.channels=[4,8]"]


def measure_training(
    what: str, changes: Sequence[str], run: Path, *, seed: int, args: argparse.Namespace
) -> list[dict]:
    """Train once, and evaluate the model in held-out episodes."""
    few = [*FEW, "data.valid.0.examples=2"] if args.tiny else []
    settings = [*few, *args.settings, *changes, f"train.seed={seed}"]
    worlds: dict[str, Any] = {"data": [[WORLD]], "valid": [[WORLD]]} if args.full else {}
    model = saccade.train(NAME, tiny=not args.full, run=run, overrides=settings, **worlds)
    assert isinstance(model, Player), "the recipe acts"
    found = evaluate_episodes(model, [Corpus(files=(WORLD,), examples=args.episodes)])
    weights = sum(weight.numel() for weight in model.model.parameters())
    rows = [
        build_row(f"{what}: {name}", score.value, "", seed, signature=score.signature)
        for name, score in found.scores.items()
    ]
    return [
        *rows,
        build_row(f"{what}: minutes of training", read_metrics(run)[-1]["seconds"] / 60, "min", seed),
        build_row(f"{what}: parameters", weights / 1e6, "M", seed),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--full", action="store_true", help="the recipe itself, and not its tiny table")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--tiny", action="store_true", help="a few steps, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    begin, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for what, changes in FORMS.items():
                run = Path(folder, f"{what.split()[0]}-{seed}")
                rows += measure_training(what, changes, run, seed=seed, args=args)
    for row in rows:
        print(f"{row['what']:60} {row['value']:,.2f} {row['unit']}")
    notes = f"{args.episodes:,} episodes; settings beside the recipe's: {' '.join(args.settings) or 'none'}."
    save("interact", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
