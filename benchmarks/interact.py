"""Acting by attention: show-attend-interact in small worlds of pixels, with attention and without.

    python benchmarks/interact.py [--streams] [--seeds 1 2 3] [--full] [--episodes 1000] [--run FOLDER] [--out FOLDER]
        [KEY=VALUE ...]
    python benchmarks/interact.py --tiny

The recipe's `[tiny]` table is trained, which one core does in about two minutes; with --full, the recipe itself. With
--streams it is the recipe with the streams of grayscale and depth pictures, in the waiting room. "success" is the share
of held-out episodes that end with a handshake. "attention_lift" is the attention on the cells of the guest, divided by
their share of the image, in the mean over all images of these episodes.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minutes import read_metrics
from packs import build_row, summarize_seeds
from results import save

import saccade
from saccade.config.schema import Corpus
from saccade.runs import CARD
from saccade_worlds.playing.predictor import Player
from saccade_worlds.playing.scores import evaluate_episodes

FORMS = {"soft attention": [], "no attention": ["writer.stack.attention=none"]}
FEW = ["train.steps=4", "train.batch_tokens=2560", "data.play.parallel_episodes=3", "reader.channels=[4,8]"]


def measure_training(
    what: str, changes: Sequence[str], run: Path, *, seed: int, args: argparse.Namespace
) -> list[dict]:
    """Train once, and evaluate the model in held-out episodes."""
    few = [*FEW, "data.valid.0.examples=2"] if args.tiny else []
    settings = [*few, *args.settings, *changes, f"train.seed={seed}"]
    name, world = "show-attend-interact", "embedded:greeting"
    if args.streams:
        name, world = "show-attend-interact-streams", "embedded:waiting-room"
    worlds: dict[str, Any] = {"data": [[world]], "valid": [[world]]} if args.full else {}
    model = (
        saccade.load(run)
        if (run / CARD).exists()
        else saccade.train(name, tiny=not args.full, run=run, overrides=settings, **worlds)
    )
    assert isinstance(model, Player), "the recipe acts"
    found = evaluate_episodes(model, [Corpus(files=(world,), examples=args.episodes)])
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
    parser.add_argument("--streams", action="store_true", help="the recipe with two streams, in the waiting room")
    parser.add_argument("--full", action="store_true", help="the recipe itself, and not its tiny table")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept; finished ones are only scored")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    begin, rows = time.perf_counter(), list[dict[str, Any]]()
    name = "interact_streams" if args.streams else "interact"
    notes = f"{args.episodes:,} episodes; settings beside the recipe's: {' '.join(args.settings) or 'none'}."
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for what, changes in FORMS.items():
                run = (args.run or Path(folder)) / f"{name}-{what.split()[0]}-{seed}"
                rows += measure_training(what, changes, run, seed=seed, args=args)
                means = summarize_seeds(rows, ": success", ": attention_lift")
                minutes = (time.perf_counter() - begin) / 60
                save(name, [*means, *rows], minutes=minutes, folder=args.out, notes=notes)  # what there is so far
    for row in rows:
        print(f"{row['what']:60} {row['value']:,.2f} {row['unit']}")


if __name__ == "__main__":
    main()
