"""What int8 costs in BLEU: the same run, data and search on the CPU, once in float32 and once in int8.

    python benchmarks/int8_quality.py RUN --data SRC REF [--out benchmarks/results] [beam=5 ...]

Any `key=value` is a setting of the search. The int8 weights are made when the run has none, and kept in it.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from results import save

from saccade.cli.predict import build_decoding
from saccade.config.schema import Corpus
from saccade.data.sources.pairs import read_pairs
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.threads import use_all_cores
from saccade.runs import find_run
from saccade.score.evaluate import Evaluation, evaluate

MOST = 0.2  # BLEU that int8 may cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="source and reference")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    own = parser.parse_intermixed_args()
    use_all_cores()
    begin = time.perf_counter()
    pairs = list(read_pairs(Corpus(files=tuple(own.data))))
    found = {kind: score_run(find_run(own.run), pairs, own.changes, kind) for kind in ("fp32", "int8")}
    rows = compare_precisions(found, name=f"{Path(own.run).name}, {' and '.join(Path(file).name for file in own.data)}")
    save("int8_quality", rows, minutes=(time.perf_counter() - begin) / 60, folder=own.out)
    for row in rows:
        print(f"{row['what']}: {row['value']} {row['unit']}")


def score_run(run: Path, pairs: list[tuple[str, str]], changes: list[str], precision: str) -> Evaluation:
    predictor = Predictor.load(run, device="cpu", precision=precision)
    return evaluate(predictor, pairs, metrics=("bleu",), decoding=build_decoding(predictor.recipe, changes))


def compare_precisions(found: dict[str, Evaluation], *, name: str) -> list[dict[str, Any]]:
    """Compare BLEU and speed in both precisions: the loss of BLEU, and the share of equal outputs."""
    exact, short = found["fp32"], found["int8"]
    rows: list[dict[str, Any]] = []
    for kind, evaluation in found.items():
        score = evaluation.scores["bleu"]
        details = {"unit": "BLEU", "signature": score.signature, "detail": True}
        rows.append({"what": f"BLEU in {kind}, {name}", "value": round(score.value, 2), **details})
        assert evaluation.speed is not None
        speed = round(evaluation.speed.sentences_per_second, 2)
        rows.append({"what": f"speed in {kind}, {name}", "value": speed, "unit": "sentences/s", "detail": True})
    lost = exact.scores["bleu"].value - short.scores["bleu"].value
    rows.append({"what": f"BLEU that int8 costs, {name}", "value": round(lost, 2), "unit": f"at most {MOST}"})
    same = sum(a == b for a, b in zip(exact.hypotheses, short.hypotheses, strict=True)) / exact.sentences
    rows.append(
        {
            "what": f"outputs that int8 leaves as they are, {name}",
            "value": round(same, 3),
            "unit": "share",
            "detail": True,
        }
    )
    return rows


if __name__ == "__main__":
    main()
