"""Synthetic parallel corpora: back-translation (Sennrich et al. 2016) and distillation (Kim and Rush 2016).

Back-translation pairs target text with what a target-to-source run makes of it. Sequence-level knowledge distillation
pairs source text with the translations of a teacher, from which a student learns.

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
from typing import Any, ClassVar

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

    title: ClassVar[str] = "back-translation"
    needed_run: ClassVar[str] = "a run that translates the target language"
    side: ClassVar[int] = 1  # of pairs that are given as input: the target
    decoding: Decoding
    tag: str = ""  # put before each synthetic source (Caswell et al. 2019)
    max_ratio: float = 3.0  # between the numbers of tokens of source and target
    noise: float = 0.0  # probability that a word of the source is dropped, and that it is replaced

    def make_pair(self, line: str, output: str, key: str) -> tuple[str, str]:
        """Return source and target; random numbers depend on the seed and `key`."""
        if self.noise:
            output = add_noise(output, self.noise, Random(f"{self.decoding.seed}/{key}"))
        return f"{self.tag} {output}" if self.tag else output, line


@dataclass(frozen=True)
class DistillationOptions:
    """How a teacher's translations are decoded and filtered."""

    title: ClassVar[str] = "distillation"
    needed_run: ClassVar[str] = "a run that translates the source language, the teacher"
    side: ClassVar[int] = 0
    decoding: Decoding
    max_ratio: float = 3.0  # between the numbers of tokens of source and target
    kind: str = "distillation"  # so that no back-translation is continued

    def make_pair(self, line: str, output: str, key: str) -> tuple[str, str]:
        return line, output


Options = BacktranslationOptions | DistillationOptions
Input = str | Corpus  # a text file, embedded:NAME, or pairs of which one side is taken


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
    inputs: Sequence[Input],
    output: Path,
    *,
    options: Options,
    run_key: str = "",
    report: Callable[[str], None] = print,
) -> BacktranslationProgress:
    """Write `output`, a .tsv file of the lines of `inputs` and what was decoded from each; return the counts.

    If an earlier call was interrupted, it is continued; `run_key` identifies the weights of the predictor then.
    """
    check_translates(predictor, options)
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
    lines, first = islice(read_side(inputs, options.side), progress.lines, None), progress.lines
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


def check_translates(predictor: Predictor, options: Options) -> None:
    """Refuse a run that does not write a text about a text."""
    task = predictor.recipe.task
    if predictor.medium or not task.supports_fusion:
        files = "TGT SRC" if options.side else "SRC TGT"
        raise SaccadeError(
            f'{options.title} needs {options.needed_run}, got task = "{task.name}"; train one with --data {files}'
        )


def describe_settings(inputs: Sequence[Input], options: Options, run_key: str) -> dict[str, Any]:
    """Return all that the corpus depends on, for comparison with an interrupted call."""
    if "-" in inputs:
        raise SaccadeError(f"{options.title} can be interrupted and continued, which stdin cannot; give files")
    keys = [describe_input(one) for one in inputs]
    others = {key: value for key, value in vars(options).items() if key != "decoding"}
    return {"input": keys, "run": run_key, **options.decoding.model_dump(mode="json"), **others}


def describe_input(given: Input) -> str:
    """Return what identifies an input: the hash of its content, or its name and size if it is generated."""
    files = (given,) if isinstance(given, str) else given.files
    names = [name if name.startswith(pairs.EMBEDDED_PREFIX) else pairs.hash_file(Path(name)) for name in files]
    return " ".join(names if isinstance(given, str) else [*names, str(given.examples)])


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


def read_side(inputs: Sequence[Input], side: int) -> Iterator[str]:
    """Yield the lines of text files, and one side of embedded data and of other pairs: 0 source, 1 target."""
    for given in inputs:
        if isinstance(given, str) and not given.startswith(pairs.EMBEDDED_PREFIX):
            yield from pairs.read_lines(given)
            continue
        corpus = Corpus(files=(given,), examples=EMBEDDED_LINES) if isinstance(given, str) else given
        yield from (pair[side] for pair in pairs.read_pairs(corpus))


def translate_block(
    predictor: Predictor, block: Sequence[str], options: Options, progress: BacktranslationProgress
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
            source, target = options.make_pair(block[i], item.text, f"{progress.lines + i}/{rank}")
            yield clean(source), clean(target)


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
