"""The bottleneck of one context vector: accuracy of reversing letters by length, with and without attention.

    python benchmarks/bottleneck.py [--longest 200] [--steps 6000] [--out benchmarks/results] [KEY=VALUE ...]

The recipe `bahdanau` is trained twice on texts of 1 to 200 random letters, with the same settings and steps, and with
writer.stack.attention=none and additive; KEY=VALUE are further settings of both. Most letters are in short texts,
since the model has to learn short texts well before its capacity shows: eight of fourteen parts of all letters are in
texts of at most 10, two in those of at most 200, and one each in those of at most 20, 50, 100 and 150. Training is in
float32, since rounding reduces the capacity of the vector. Accuracy is the share of letters in the right position of
greedy outputs for held-out texts.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from results import save

import saccade
from saccade.data.synthetic.sequences import generate_letters
from saccade.predict.predictors.predictor import Predictor

ATTENTION = ("none", "additive")
TESTED = 400  # texts of each length
PARTS = (8, 1, 1, 1, 1, 2)  # of all letters, in the texts up to each tested length
SAME = [
    "tokenizer.kind=characters",
    "reader.dropout=0",
    "reader.stack.dropout=0",
    "writer.dropout=0",
    "writer.stack.dropout=0",
    "objectives=[{ kind = 'next-token', label_smoothing = 0.0 }]",
    "train.metric=loss",
    "train.precision=fp32",
    "train.valid_predictions=0",
    "predict.beam=1",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=200)
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--attention", default=",".join(ATTENTION), help="only these, by commas")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    begin, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        data = write_pairs(Path(folder), args.examples, args.longest)
        for attention in args.attention.split(","):
            run = train_system(data, attention, longest=args.longest, steps=args.steps, settings=args.settings)
            for length in list_test_lengths(args.longest):
                share = measure_accuracy(run, length)
                what = f"reverse, trained on 1 to {args.longest} letters, attention={attention}: right at {length}"
                rows.append({"what": what, "value": round(share, 2), "unit": "%"})
    save("bottleneck", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)


def write_pairs(folder: Path, count: int, longest: int) -> list[Path]:
    """Write files of texts and reversed texts for training and validation; PARTS distributes letters over lengths."""
    files = []
    bounds = list_test_lengths(longest)
    texts = [part / bound for part, bound in zip(PARTS, bounds, strict=False)]
    shares = {bound: number / sum(texts) for number, bound in zip(texts, bounds, strict=True)}
    for name, number, heldout in (("train", count, False), ("valid", max(count // 200, 20 * len(bounds)), True)):
        files.append(folder / f"{name}.tsv")
        with files[-1].open("w", encoding="utf-8") as file:
            for bound in bounds:
                some = round(number * shares[bound])
                pairs = generate_letters(some, seed=1, reverse=True, heldout=heldout, lengths=(1, bound))
                file.writelines(f"{source}\t{target}\n" for source, target in pairs)
    return files


def train_system(
    data: Sequence[Path], attention: str, *, longest: int, steps: int, settings: Sequence[str]
) -> Predictor:
    train, valid = data
    overrides = [
        *SAME,
        f"data.train=['{train}']",
        f"data.valid=['{valid}']",
        f"data.max_length={longest + 1}",
        f"predict.max_length={longest}",
        f"writer.stack.attention={attention}",
        f"train.steps={steps}",
        f"train.valid_every={steps}",
        f"train.save_every={steps}",
        *settings,
    ]
    return saccade.train("bahdanau", run=train.parent / attention, overrides=overrides)


def list_test_lengths(longest: int) -> list[int]:
    """Return 10, 20, 50, 100, 200, ... up to the longest."""
    return sorted({length for length in (10, 20, 50, 100, 150, 200, 500, 1000) if length < longest} | {longest})


def measure_accuracy(run: Predictor, length: int) -> float:
    """Return the percentage of letters in the right position."""
    pairs = list(generate_letters(TESTED, seed=2, reverse=True, heldout=True, lengths=(length, length)))
    outputs = run.predict([source for source, _ in pairs])
    right = 0
    for output, (_, target) in zip(outputs, pairs, strict=True):
        right += sum(a == b for a, b in zip(output, target, strict=False))
    return 100 * right / (length * len(pairs))


if __name__ == "__main__":
    main()
