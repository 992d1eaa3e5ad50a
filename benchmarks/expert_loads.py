"""Load balance of a run's experts: positions of the busiest expert of each group, relative to the mean.

    python benchmarks/expert_loads.py RUN --data SRC TGT [--out benchmarks/results]

The run encodes all sources and decodes all targets with teacher forcing. 2 means twice the load of perfect balance.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from results import save

from saccade.config.schema import Corpus
from saccade.data.batching.batch import Batch, pad
from saccade.data.sources.pairs import read_pairs
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.model.run import load_run
from saccade.train.profiling.loads import compute_expert_loads

AT_ONCE = 128  # pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="source and target")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    begin, run = time.perf_counter(), load_run(args.run)
    pairs = list(read_pairs(Corpus(files=tuple(args.data))))
    rows = []
    for name, loads in compute_expert_loads(run.model, batches(pairs, run.tokenizers)).items():
        print(f"{name}: {'  '.join(f'{load:.2f}' for load in loads)}")
        what = f"{run.path.name}: busiest of {len(loads)} experts, {name}"
        rows.append({"what": what, "value": round(max(loads), 3), "unit": "times the mean load"})
    save("expert_loads", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)


def batches(pairs: Sequence[tuple[str, str]], tokenizers: Tokenizers) -> Iterator[Batch]:
    for begin in range(0, len(pairs), AT_ONCE):
        sources, targets = zip(*pairs[begin : begin + AT_ONCE], strict=True)
        ids = {"source": tokenizers.source.encode_all(sources), "target": tokenizers.target.encode_all(targets)}
        yield Batch({name: pad(rows) for name, rows in ids.items()})


if __name__ == "__main__":
    main()
