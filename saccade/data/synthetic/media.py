"""Generated pictures and sound: `embedded:NAME` is written to a folder of files in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.data.sources.lines import did_you_mean
from saccade.data.store.arrays import write_folder
from saccade.data.synthetic import rendering, shapes, tones
from saccade.errors import SaccadeError
from saccade.files import get_cache_folder

METADATA_FILE = "metadata.jsonl"


@dataclass(frozen=True)
class MediaGenerator:
    """A kind of generated files: `generate(n)` yields pairs of something to save and its text, or its texts by column.

    `version` is part of the keys of cached data and of the state that a run resumes from. Replace it by any other text
    when a generator gives other files than before (tests/data/synthetic/test_versions.py fails then).
    """

    generate: Callable[[int], Any]
    count: int  # of examples, unless the recipe sets it
    column: str  # of the text in the metadata
    suffix: str  # of the files
    version: str


# Hashes of the code of 0.8, whose files are the same.
SHAPES = "aefa425169ced29778bb8c10ac3558d9eab326a0190a37e447ede3c2c6f327f2"
QUESTIONS = "4e688f802f1243f6be0a6efe42e1d6eb93bbda79556665cfdc1a351a549f0feb"
WORDS = "a4d710b8e98763e6c1148640de170ef3267b333c58e9c3681384ae85d4923daa"
TONES = "9745e00c233e8c281348da64af081cf0369d6359244f5da4a8fdf3f4578aa861"

GENERATORS: dict[str, MediaGenerator] = {
    "shapes": MediaGenerator(lambda n: shapes.generate_shapes(n, seed=1), 6_000, "label", ".png", SHAPES),
    "shapes-heldout": MediaGenerator(
        lambda n: shapes.generate_shapes(n, seed=1, heldout=True), 1_000, "label", ".png", SHAPES
    ),
    "scenes": MediaGenerator(lambda n: shapes.generate_scenes(n, seed=1), 6_000, "text", ".png", SHAPES),
    "scenes-heldout": MediaGenerator(
        lambda n: shapes.generate_scenes(n, seed=1, heldout=True), 1_000, "text", ".png", SHAPES
    ),
    "questions": MediaGenerator(lambda n: shapes.generate_questions(n, seed=1), 6_000, "", ".png", QUESTIONS),
    "questions-heldout": MediaGenerator(
        lambda n: shapes.generate_questions(n, seed=1, heldout=True), 1_000, "", ".png", QUESTIONS
    ),
    "words": MediaGenerator(lambda n: rendering.generate_word_pictures(n, seed=1), 6_000, "text", ".png", WORDS),
    "words-heldout": MediaGenerator(
        lambda n: rendering.generate_word_pictures(n, seed=1, heldout=True), 500, "text", ".png", WORDS
    ),
    "tones": MediaGenerator(lambda n: tones.generate_recordings(n, seed=1), 3_000, "text", ".wav", TONES),
    "tones-heldout": MediaGenerator(
        lambda n: tones.generate_recordings(n, seed=1, heldout=True), 300, "text", ".wav", TONES
    ),
}


def open_or_generate(name: str, examples: int | None) -> Path:
    """Return the folder with the files and metadata.jsonl of a name; generate it if the cache does not have it."""
    generator = _find_generator(name)
    folder = get_cache_folder() / f"embedded-{name}-{sha256(get_version(name, examples).encode()).hexdigest()[:16]}"
    if not (folder / METADATA_FILE).is_file():
        write_folder(folder, lambda temporary: _write(temporary, generator, examples or generator.count))
    return folder


def _write(folder: Path, generator: MediaGenerator, count: int) -> None:
    with (folder / METADATA_FILE).open("w", encoding="utf-8") as metadata:
        for number, (medium, text) in enumerate(islice(generator.generate(count), count), start=1):
            name = f"{number:05d}{generator.suffix}"
            medium.save(folder / name)
            columns = text if isinstance(text, dict) else {generator.column: text}
            metadata.write(json.dumps({"file_name": name, **columns}) + "\n")


def get_version(name: str, examples: int | None) -> str:
    """Identify the files of a name and their number in keys of the cache."""
    generator = _find_generator(name)
    return f"{name} {examples or generator.count} {generator.version}"


def _find_generator(name: str) -> MediaGenerator:
    if name not in GENERATORS:
        known = ", ".join(f"embedded:{other}" for other in GENERATORS)
        raise SaccadeError(f"no embedded pictures or sound {name!r}{did_you_mean(name, GENERATORS)} (known: {known})")
    return GENERATORS[name]
