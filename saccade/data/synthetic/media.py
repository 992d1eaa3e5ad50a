"""Pictures and sound that saccade makes itself: `embedded:NAME` is then a folder of files in the cache."""

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
from saccade.files import default_cache

METADATA = "metadata.jsonl"


@dataclass(frozen=True)
class Maker:
    """Makes so many (medium, text); how many where the recipe does not say; its column, and how a file is written.

    A text may be several, by their columns.
    """

    made: Callable[[int], Any]
    count: int
    column: str
    suffix: str
    code: str  # the files with the code that makes it, by commas


MAKERS: dict[str, Maker] = {
    "shapes": Maker(lambda n: shapes.one_shape(n, seed=1), 6_000, "label", ".png", "shapes.py"),
    "shapes-heldout": Maker(lambda n: shapes.one_shape(n, seed=1, heldout=True), 1_000, "label", ".png", "shapes.py"),
    "scenes": Maker(lambda n: shapes.scenes(n, seed=1), 6_000, "text", ".png", "shapes.py"),
    "scenes-heldout": Maker(lambda n: shapes.scenes(n, seed=1, heldout=True), 1_000, "text", ".png", "shapes.py"),
    "questions": Maker(lambda n: shapes.questions(n, seed=1), 6_000, "", ".png", "shapes.py"),
    "questions-heldout": Maker(lambda n: shapes.questions(n, seed=1, heldout=True), 1_000, "", ".png", "shapes.py"),
    "words": Maker(lambda n: rendering.spelled(n, seed=1), 6_000, "text", ".png", "rendering.py"),
    "words-heldout": Maker(lambda n: rendering.spelled(n, seed=1, heldout=True), 500, "text", ".png", "rendering.py"),
    "tones": Maker(lambda n: tones.dialled(n, seed=1), 3_000, "text", ".wav", "tones.py"),
    "tones-heldout": Maker(lambda n: tones.dialled(n, seed=1, heldout=True), 300, "text", ".wav", "tones.py"),
}


def made_folder(name: str, examples: int | None) -> Path:
    """The folder with files and metadata of that name, made where it is not there yet."""
    maker, count = _find(name), examples or _find(name).count
    folder = default_cache() / f"embedded-{name}-{sha256(version(name, examples).encode()).hexdigest()[:16]}"
    if not (folder / METADATA).is_file():
        write_folder(folder, lambda temporary: _write(temporary, maker, count))
    return folder


def _write(folder: Path, maker: Maker, count: int) -> None:
    with (folder / METADATA).open("w", encoding="utf-8") as notes:
        for number, (medium, text) in enumerate(islice(maker.made(count), count), start=1):
            name = f"{number:05d}{maker.suffix}"
            medium.save(folder / name)
            columns = text if isinstance(text, dict) else {maker.column: text}
            notes.write(json.dumps({"file_name": name, **columns}) + "\n")


def version(name: str, examples: int | None) -> str:
    """What the files depend on: the text of our code, and how many there are."""
    code = b"".join(Path(__file__).with_name(file).read_bytes() for file in _find(name).code.split(","))
    return f"{name} {examples or _find(name).count} {sha256(code).hexdigest()}"


def _find(name: str) -> Maker:
    if name not in MAKERS:
        known = ", ".join(f"embedded:{other}" for other in MAKERS)
        raise SaccadeError(f"no embedded pictures or sound {name!r}{did_you_mean(name, MAKERS)} (known: {known})")
    return MAKERS[name]
