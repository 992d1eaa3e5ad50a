"""Non-autoregressive translation against its teacher: BLEU, and sentences a second one at a time, on the same device.

    python benchmarks/nat_speed.py NAT_RUN TEACHER_RUN --data SOURCE TARGET [--device cuda|cpu] [--out FOLDER]

The student decodes in one pass, and with refinement (`mask-predict`) or noisy parallel decoding of 10 candidates by the
teacher (`nat`); the teacher searches with a beam of 4. Each is measured in every
precision that is asked for, in turn, and its fastest counts; on a CPU the time is the process's CPU time. BLEU is that
of the fastest. Outputs of all sentences are made once before, so that graphs and buffers are there.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import save

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import read_pairs
from saccade.model.run import pick_device
from saccade.predict.decode import prepare_at_once
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import find_run
from saccade.score.metrics.bleu import corpus_scores

PRECISIONS = {"cuda": ["fp32", "bf16"], "cpu": ["fp32"]}
ONE, REFINED, TEACHER = "one step", "refined", "teacher, beam 4"
NOISY, CANDIDATES = "noisy parallel decoding of 10", 10
WANTED = {ONE: {"bleu": 30, "ratio": 5}, REFINED: {"bleu": 36, "ratio": 2}}
NOTES = "Sentences one at a time, from text to text; medians of {rounds} rounds in turn; {wanted}."


class Measured(NamedTuple):
    precision: str
    speed: float  # sentences a second
    bleu: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student")
    parser.add_argument("teacher")
    parser.add_argument("--data", nargs=2, required=True, metavar="FILE", help="source and target")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precisions", nargs="+", help="fp32, bf16, or on a CPU int8; default: those of the device")
    parser.add_argument("--iterations", type=int, default=4, help="passes of the refinement")
    parser.add_argument("--lengths", type=int, default=1, help="lengths tried side by side, in one step and refined")
    parser.add_argument("--limit", type=int, help="only the first N sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    own = parser.parse_args()
    begin, device = time.perf_counter(), pick_device(own.device)
    pairs = list(itertools.islice(read_pairs(Corpus(files=tuple(own.data))), own.limit))
    precisions = own.precisions or PRECISIONS.get(device.type, ["fp32"])
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    found: dict[str, Measured] = {}
    for precision in precisions:
        student, teacher = (
            Predictor.load(find_run(run), device=str(device), precision=precision) for run in (own.student, own.teacher)
        )
        for predictor in (student, teacher):
            prepare_at_once(predictor.model)
        systems = build_systems(student, teacher, find_run(own.teacher), iterations=own.iterations, lengths=own.lengths)
        for name, measured in race_systems(systems, pairs, precision=precision, rounds=own.rounds, clock=clock).items():
            if name not in found or measured.speed > found[name].speed:
                found[name] = measured
    what = f"{Path(own.data[0]).name} -> {Path(own.data[1]).name}, {device.type}"
    rows = compare_systems(found, what=what, name=student.recipe.name)
    args = "; ".join(f"{name}: BLEU {w['bleu']} and {w['ratio']} x wanted" for name, w in WANTED.items())
    notes = NOTES.format(rounds=own.rounds, wanted=args)
    save(f"nat_speed_{device.type}", rows, minutes=(time.perf_counter() - begin) / 60, folder=own.out, notes=notes)
    for row in rows:
        print(f"{row['what']}: {row['value']} {row['unit']}" + (f", ratio {row['ratio']}" if "ratio" in row else ""))


def build_systems(
    student: Predictor, teacher: Predictor, teacher_run: Path, *, iterations: int, lengths: int
) -> dict[str, Callable[[Sequence[str]], list[str]]]:
    """Build the systems to compare: the student in one pass, and refined or noisy, and its teacher."""
    own = student.recipe.predict
    beam = teacher.recipe.predict.model_copy(update={"beam": 4, "n_best": 1, "sample": False})

    def predicting(predictor: Predictor, decoding: Decoding) -> Callable[[Sequence[str]], list[str]]:
        return lambda texts: [predictor.predict([text], decoding=decoding)[0] for text in texts]

    if student.recipe.writer.predicts_fertilities:
        one = own.model_copy(update={"npd": 1, "teacher": "", "n_best": 1})
        noisy = one.model_copy(update={"npd": CANDIDATES, "teacher": str(teacher_run)})
        return {
            ONE: predicting(student, one), NOISY: predicting(student, noisy), TEACHER: predicting(teacher, beam)
        }  # fmt: skip
    one, refined = (
        own.model_copy(update={"iterations": n, "length_candidates": lengths, "n_best": 1}) for n in (1, iterations)
    )
    return {
        ONE: predicting(student, one), REFINED: predicting(student, refined), TEACHER: predicting(teacher, beam)
    }  # fmt: skip


def race_systems(
    systems: dict[str, Callable[[Sequence[str]], list[str]]],
    pairs: Sequence[tuple[str, str]],
    *,
    precision: str,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, Measured]:
    """Measure BLEU and speed of each system in turns, so that a busy machine affects all."""
    texts, references = [source for source, _ in pairs], [target for _, target in pairs]
    scores = {
        name: corpus_scores(system(texts), references, metrics=("bleu",))["bleu"] for name, system in systems.items()
    }
    for system in systems.values():  # what came once gets its graph when it comes again
        system(texts)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            begin = clock()
            system(texts)
            seconds[name].append(clock() - begin)
    return {name: Measured(precision, len(texts) / statistics.median(seconds[name]), scores[name]) for name in systems}


def compare_systems(found: dict[str, Measured], *, what: str, name: str = "mask-predict") -> list[dict[str, Any]]:
    """Return BLEU of all systems, and the student's speed compared with its teacher's."""
    rows: list[dict[str, Any]] = []
    for way, (precision, speed, bleu) in found.items():
        about = f"`{name}` and its teacher, {what}: {way}, {precision}"
        rows.append(
            {"what": f"{about}, BLEU", "value": round(bleu.value, 2), "unit": "BLEU", "signature": bleu.signature}
        )
        row: dict[str, Any] = {"what": f"{about}, batch 1", "value": round(speed, 2), "unit": "sentences/s"}
        if way != TEACHER:
            peer = found[TEACHER]
            row |= {"peer": f"{TEACHER}, {peer.precision}", "peer_value": round(peer.speed, 2)}
            row["ratio"] = round(speed / peer.speed, 2)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
