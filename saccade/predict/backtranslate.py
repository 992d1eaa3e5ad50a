"""Back-translation: a parallel corpus from monolingual target text and a target-to-source run (Sennrich et al. 2016).

Lines are decoded in blocks. After each block, its pairs are on disk, and a file beside the corpus says how far it got,
so that a command that was interrupted continues there. All random numbers of a block depend on the seed and the block
only: the corpus is the same with and without interruptions.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources import pairs
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.parsing import read_json_object
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor

LINES_PER_BLOCK = 1024
EMBEDDED_LINES = 1_000  # of `embedded:NAME`, unless another number is given
SECONDS_BETWEEN_REPORTS = 10
SEED_STRIDE = 0x9E3779B97F4A7C15  # an odd number, so that blocks of nearby seeds get different random numbers
HEADER = "source\ttarget\n"
FILLER = "<BLANK>"  # replaces words of noised sources (Edunov et al. 2018)
MAX_SHUFFLE_DISTANCE = 3  # positions that noise moves a word by, at most (Edunov et al. 2018)
REASONS = ("empty", "too long for the model", "truncated", "length ratio")  # why a line or an output is left out


@dataclass(frozen=True)
class BacktranslationOptions:
    """How synthetic sources are decoded, filtered and marked."""

    decoding: Decoding
    tag: str = ""  # put before each synthetic source (Caswell et al. 2019)
    max_ratio: float = 3.0  # between the numbers of tokens of source and target
    noise: float = 0.0  # probability that a word of the source is dropped, and that it is replaced


@dataclass
class BacktranslationProgress:
    """How far a corpus is written, and what was left out."""

    settings: Mapping[str, Any]  # all that the corpus depends on
    lines: int = 0  # of the input
    bytes: int = len(HEADER)  # of the corpus
    pairs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # by reason

    def describe(self) -> str:
        reasons = ", ".join(f"{self.left_out[reason]:,} {reason}" for reason in REASONS)
        return f"{self.lines:,} lines, {self.pairs:,} pairs; left out: {reasons}"


def backtranslate(
    predictor: Predictor,
    inputs: Sequence[str],
    output: Path,
    *,
    options: BacktranslationOptions,
    run_key: str = "",
    report: Callable[[str], None] = print,
) -> BacktranslationProgress:
    """Write `output`, a .tsv file of synthetic sources and the real target lines of `inputs`; return the counts.

    If an earlier call was interrupted, it is continued; `run_key` identifies the weights of the predictor then.
    """
    check_translates(predictor)
    if output.suffix != ".tsv":
        raise SaccadeError(f"the corpus is a .tsv file of source and target, got the name '{output}'; end it with .tsv")
    if not output.parent.is_dir():
        raise SaccadeError(f"cannot write {output}: folder '{output.parent}' does not exist; create it")
    settings = describe_settings(inputs, options, run_key)
    progress_file = output.with_name(f"{output.name}.progress")
    progress = load_progress(progress_file, output, settings)
    if progress.lines:
        report(f"continuing after {progress.lines:,} lines")
    else:
        save_progress(progress_file, progress)  # before the corpus: whoever finds that alone thinks it is complete
        atomic_write(output, HEADER.encode())
    lines, first = islice(read_targets(inputs), progress.lines, None), progress.lines
    begin = last = time.monotonic()
    with output.open("r+b") as file:
        file.truncate(progress.bytes)  # to the end of the last complete block
        file.seek(progress.bytes)
        while block := list(islice(lines, LINES_PER_BLOCK)):
            for source, target in translate_block(predictor, block, options, progress):
                file.write(f"{source}\t{target}\n".encode())
                progress.pairs += 1
            progress.lines += len(block)
            file.flush()
            os.fsync(file.fileno())
            progress.bytes = file.tell()
            save_progress(progress_file, progress)
            if (now := time.monotonic()) - last > SECONDS_BETWEEN_REPORTS:
                last = now
                report(f"{progress.describe()}; {(progress.lines - first) / (now - begin):,.0f} lines/s")
    progress_file.unlink(missing_ok=True)
    return progress


def check_translates(predictor: Predictor) -> None:
    """Refuse a run that does not write a text about a text."""
    task = predictor.recipe.task
    if predictor.medium or not task.supports_fusion:
        raise SaccadeError(
            f'back-translation needs a run that translates the target language, got task = "{task.name}"; '
            "train one with --data TGT SRC"
        )


def describe_settings(inputs: Sequence[str], options: BacktranslationOptions, run_key: str) -> dict[str, Any]:
    """Return all that the corpus depends on, for comparison with an interrupted call."""
    if "-" in inputs:
        raise SaccadeError("back-translation can be interrupted and continued, which stdin cannot; give files")
    embedded = [name.startswith(pairs.EMBEDDED_PREFIX) for name in inputs]
    keys = [
        name if is_embedded else pairs.hash_file(Path(name)) for name, is_embedded in zip(inputs, embedded, strict=True)
    ]
    others = {key: value for key, value in vars(options).items() if key != "decoding"}
    return {"input": keys, "run": run_key, **options.decoding.model_dump(mode="json"), **others}


def save_progress(file: Path, progress: BacktranslationProgress) -> None:
    atomic_write(file, json.dumps(vars(progress)).encode())


def load_progress(file: Path, output: Path, settings: Mapping[str, Any]) -> BacktranslationProgress:
    """Load how far an interrupted call got; refuse one with other settings, and a corpus that is complete."""
    if not file.exists():
        if output.exists():
            raise SaccadeError(f"{output} exists already; delete it, or choose another --output")
        return BacktranslationProgress(settings)
    try:
        values = read_json_object(file)
        progress = BacktranslationProgress(**{**values, "left_out": Counter(values["left_out"])})
        changed = [key for key in settings if progress.settings.get(key) != settings[key]]
        is_whole = output.exists() and output.stat().st_size >= progress.bytes
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SaccadeError(f"{file} cannot be read; delete it and {output} to start again") from None
    if not progress.lines:
        return BacktranslationProgress(settings)
    if not is_whole:
        raise SaccadeError(f"{output} has less than {file} says; delete both to start again")
    if changed:
        before, now = (str(one.get(changed[0]))[:40] for one in (progress.settings, settings))
        raise SaccadeError(
            f"{output} was begun with {changed[0]} = {before}, got {now}; give the same settings to continue, "
            f"or delete {file.name} and {output.name} to start again"
        )
    return progress


def read_targets(inputs: Sequence[str]) -> Iterator[str]:
    """Yield the lines of text files, and the targets of embedded data."""
    for name in inputs:
        if name.startswith(pairs.EMBEDDED_PREFIX):
            corpus = Corpus(files=(name,), examples=EMBEDDED_LINES)
            yield from (target for _, target in pairs.read_pairs(corpus))
        else:
            yield from pairs.read_lines(name)


def translate_block(
    predictor: Predictor, block: Sequence[str], options: BacktranslationOptions, progress: BacktranslationProgress
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of one block of lines, and count what is left out."""
    max_length, seed = predictor.recipe.data.max_length, options.decoding.seed
    lengths = [len(ids) - 1 for ids in predictor.tokenizers.source.encode_all(block)]
    decodable = [i for i, line in enumerate(block) if line.strip() and lengths[i] < max_length]
    blank = sum(not line.strip() for line in block)
    progress.left_out["empty"] += blank
    progress.left_out["too long for the model"] += len(block) - blank - len(decodable)
    number = progress.lines // LINES_PER_BLOCK
    decoding = options.decoding.model_copy(update={"seed": (seed + number * SEED_STRIDE) % 2**63})
    outputs = predictor.candidates([block[i] for i in decodable], decoding=decoding, scored=decoding.n_best > 1)
    for i, hypotheses in zip(decodable, outputs, strict=True):
        for rank, item in enumerate(hypotheses):
            if reason := choose_reason(item, lengths[i], options.max_ratio):
                progress.left_out[reason] += 1
                continue
            text = item.text
            if options.noise:
                text = add_noise(text, options.noise, Random(f"{seed}/{progress.lines + i}/{rank}"))
            yield clean(f"{options.tag} {text}" if options.tag else text), clean(block[i])


def choose_reason(output: Hypothesis, length: int, max_ratio: float) -> str:
    """Return why an output for a line of `length` tokens is left out; empty if it is kept."""
    if not output.text.strip():
        return "empty"
    if output.finish == "length":
        return "truncated"
    is_odd = max(len(output.ids), length) > max_ratio * min(len(output.ids), length)
    return "length ratio" if is_odd else ""


def add_noise(text: str, probability: float, random: Random) -> str:
    """Drop words, replace words by FILLER, and move words by up to 3 positions (Edunov et al. 2018, section 3)."""
    words = text.split()
    kept = [word for word in words if random.random() >= probability] or words[:1]
    replaced = [FILLER if random.random() < probability else word for word in kept]
    places = [index + random.uniform(0, MAX_SHUFFLE_DISTANCE + 1) for index in range(len(replaced))]
    return " ".join(word for _, word in sorted(zip(places, replaced, strict=True)))


def clean(text: str) -> str:
    """Replace tabs and line breaks, which separate columns and lines of the corpus, by spaces."""
    return text.translate({9: " ", 10: " ", 13: " "}).strip()
