"""Files of pictures or sound to arrays on the disk; also a program, which does this for a part of many files.

The arrays of one part are NAME.values, one item after the other, NAME.lengths (int64, along the first axis of each
item; 0 where a file is broken) and NAME.json: kind of numbers, shape of what is left of each item, broken files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

import saccade
from saccade.config.readers import Reader
from saccade.config.schema import FrameReader, MediaReader, PictureReader
from saccade.data.media.frames import read_frames
from saccade.data.media.pictures import MOST_PIXELS, read_picture
from saccade.errors import SaccadeError

Decoder = Callable[[str], np.ndarray]
OF_MODELS = {"stack", "positions"}  # settings that decide nothing here, and may be a user's own
FEW = 400  # files that are not worth another process
MOST_PROCESSES = 16


def decoder_of(reader: MediaReader) -> Decoder:
    """What makes an array (n, ...) of a file: frames of sound; a picture is one item."""
    return lambda path: decode(path, reader)


def decode(file: str | bytes, reader: MediaReader, *, name: str = "", pixels: int = MOST_PIXELS) -> np.ndarray:
    """The array of one file, or of the bytes of one with a name; `pixels` are those that a picture may have."""
    return MEDIA[reader.medium].decode(file, reader, name, pixels)


def settings_of(reader: MediaReader) -> str:
    """What decides the arrays: settings of a reader, and whether there is what reads other sound than WAV."""
    return MEDIA[reader.medium].settings(reader)


class Medium(NamedTuple):
    """How files of one medium become arrays, and which settings of a reader decide them."""

    decode: Callable[[str | bytes, Any, str, int], np.ndarray]  # file, reader, name, most pixels
    settings: Callable[[Any], str]


def _decode_picture(file: str | bytes, reader: PictureReader, name: str, pixels: int) -> np.ndarray:
    return read_picture(
        file, size=reader.sides, fit=reader.fit, resample=reader.resample, margin=reader.margin, name=name, most=pixels
    )[None]


def _picture_settings(reader: PictureReader) -> str:
    high, wide = reader.sides
    plain = reader.resample == "bilinear" and not reader.margin
    how = "" if plain else f" {reader.resample} {reader.margin}"
    return f"picture {high} {reader.fit}" + (f" {wide}" if wide != high else "") + how


def _decode_sound(file: str | bytes, reader: FrameReader, name: str, pixels: int) -> np.ndarray:
    return read_frames(file, reader.sound, name=name)


def _sound_settings(reader: FrameReader) -> str:
    readable = "" if find_spec("soundfile") else " WAV alone"
    return f"sound {reader.sound.model_dump_json()}{readable}"


MEDIA = {"picture": Medium(_decode_picture, _picture_settings), "sound": Medium(_decode_sound, _sound_settings)}


def decode_all(paths: Sequence[str], reader: MediaReader, folder: Path) -> list[str]:
    """Decodes all files into parts in a folder, by several processes where they are many; gives the parts' names."""
    count = max(1, min(os.cpu_count() or 1, MOST_PROCESSES, len(paths) // FEW))
    bounds = np.linspace(0, len(paths), count + 1).astype(int)
    parts = [(f"part-{i}", list(paths[bounds[i] : bounds[i + 1]])) for i in range(count)]
    if count == 1:
        decode_part(parts[0][1], decoder_of(reader), folder / parts[0][0])
        return [parts[0][0]]
    processes = [_start(files, reader, folder / name) for name, files in parts]
    problems = [process.wait() for process in processes]
    if any(problems):
        raise SaccadeError("a process that decodes files has failed; is there enough memory? try again")
    return [name for name, _ in parts]


def decode_part(paths: Sequence[str], decode: Decoder, name: Path) -> None:
    """Decodes one file after the other; only one is in memory at a time."""
    lengths, broken, kind, shape = [], {}, "uint8", list[int]()
    with name.with_suffix(".values").open("wb") as values:
        for number, path in enumerate(paths):
            try:
                made = decode(path)
            except SaccadeError as error:
                broken[number] = str(error)
                lengths.append(0)
                continue
            kind, shape = str(made.dtype), list(made.shape[1:])
            lengths.append(len(made))
            values.write(made.tobytes())
    np.array(lengths, dtype=np.int64).tofile(name.with_suffix(".lengths"))
    found = {"dtype": kind, "shape": shape, "broken": broken}
    name.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")


def _start(paths: Sequence[str], reader: MediaReader, name: Path) -> subprocess.Popen[str]:
    """A process of its own program: a copy of this one might hold locks, or run the user's script again."""
    home = str(Path(saccade.__file__).parents[1])
    known = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "saccade.data.media.decoding"], stdin=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": known},
    )  # fmt: skip
    assert process.stdin is not None, "it was asked for"
    with process.stdin as pipe:
        json.dump({"reader": reader.model_dump(exclude=OF_MODELS), "paths": list(paths), "name": str(name)}, pipe)
    return process


def main(asked: dict[str, Any]) -> None:
    reader: Any = TypeAdapter(Reader).validate_python(asked["reader"])
    decode_part(asked["paths"], decoder_of(reader), Path(asked["name"]))


if __name__ == "__main__":
    main(json.load(sys.stdin))
