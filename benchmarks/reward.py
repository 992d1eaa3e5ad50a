"""The second stage of GNMT: continue a run with the GLEU of its outputs as reward, and with maximum likelihood.

    python benchmarks/reward.py --data FOLDER [--base RUN] [--steps 1000] [--tiny] [--out FOLDER] [KEY=VALUE ...]

FOLDER holds gzipped `train` and `val` files of multi30k, English and German. Without --base, `gnmt` is trained on them
first. Both continuations begin with its weights and have the same steps, batches, schedule and choice of the best step,
those of the recipe `gnmt-reward`; likelihood keeps the objective and the dropout of `gnmt`. KEY=VALUE are settings of
the continuation by reward. GLEU and BLEU are those on val of each, word by word and searched as the recipe says; the
best step is chosen on all of val. --tiny takes embedded dates and the recipes' tiny tables.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from results import save

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Recipe
from saccade.data.sources.pairs import read_pairs
from saccade.score.evaluate import evaluate

METRICS = ("gleu", "bleu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    if (args.data is None) != args.tiny:
        parser.error("give --data FOLDER, or --tiny")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        base = args.base or Path(folder, "base")
        if args.base is None:
            saccade.train(load("gnmt", tiny=args.tiny, overrides=data(args.data)), run=base)
        more = [f"train.steps={args.steps}"] if args.steps else []
        both = continuations(base, args.data, tiny=args.tiny, overrides=more, settings=args.settings)
        rows = scores("before", base)
        for name, recipe in both.items():
            saccade.train(recipe, run=Path(folder, name))
            rows += scores(f"{both[name].train.steps} steps by {name}", Path(folder, name))
    for row in rows:
        print(f"{row['what']:60} {row['value']:.2f}")
    save("reward", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)


def data(folder: Path | None) -> list[str]:
    """Return the overrides for the files; embedded data is already in the recipe."""
    if folder is None:
        return []
    parts = (("train", "train"), ("valid", "val"))
    return [f"data.{key}=['{folder / name}.en.gz', '{folder / name}.de.gz']" for key, name in parts]


def continuations(
    base: Path, folder: Path | None, *, tiny: bool, overrides: Sequence[str], settings: Sequence[str]
) -> dict[str, Recipe]:
    """Build two recipes that start from the weights of a run and have the same training budget."""
    same = [*data(folder), f"init={base}", "train.valid_predictions=2000", *overrides]
    rewarded = load("gnmt-reward", tiny=tiny, overrides=same)
    sizes = []
    if tiny:  # layers as the base has them
        first = load(base / "recipe.toml")
        sizes = [f"{side}.stack.layers={first.reader.stack.layers}" for side in ("reader", "writer")]
    likelihood = load("gnmt", tiny=tiny, overrides=same).model_copy(update={"train": rewarded.train})
    return {"likelihood": likelihood, "reward": override(rewarded, [*sizes, *settings])}


def scores(what: str, run: Path) -> list[dict[str, object]]:
    """Return GLEU and BLEU of a run on its validation data."""
    predictor = saccade.load(run)
    valid = predictor.recipe.data.valid
    assert isinstance(valid, tuple), "validation data are files of their own"
    pairs = [pair for corpus in valid for pair in read_pairs(corpus)]
    rows = []
    for how, decoding in (("word by word", {"beam": 1, "coverage_penalty": 0.0}), ("searched", {})):
        settings = predictor.recipe.predict.model_copy(update=decoding)
        found = evaluate(predictor, pairs, metrics=METRICS, decoding=settings).scores
        rows += [
            {"what": f"`gnmt`, {what}, {how}: {name.upper()} on val", "value": round(found[name].value, 2),
             "unit": "points", "signature": found[name].signature}
            for name in METRICS
        ]  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
