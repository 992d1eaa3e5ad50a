"""Decode pictures or recordings to arrays on disk; run as a program, decode one shard of many files.

The arrays of a shard are NAME.values, all items concatenated, NAME.lengths (int64, along the first axis of each item; 0
for an unreadable file) and NAME.json: dtype, shape of the other axes, unreadable files and why, and which of them are
only too long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from saccade.config.media import OwnMediaReader
from saccade.config.readers import Reader
from saccade.config.schema import FrameReader, MediaReader, PictureReader
from saccade.data.media.frames import read_frames
from saccade.data.media.pictures import MAX_PICTURE_PIXELS, read_picture
from saccade.data.media.sound import TooLongError
from saccade.data.sources.lines import build_missing_file_error
from saccade.errors import SaccadeError
from saccade.processes import describe_end, start_module

Decoder = Callable[[str], np.ndarray]
MODEL_SETTINGS = {"stack", "positions"}  # settings that decoding does not depend on, and that may be plugins
MIN_FILES_PER_PROCESS = 400  # with fewer files a process is not worth its start
MAX_PROCESSES = 16
# Names of settings in 0.8, which are a part of the keys of the cache
OLD_SOUND_NAMES = {
    "sample_rate": "rate", "mel_bands": "bands", "normalize": "normalise", "max_seconds": "longest",
    "pad_seconds": "pad",
}  # fmt: skip


def build_decoder(reader: MediaReader) -> Decoder:
    """Return a function from a path to an array (n, ...): n frames of a recording, or 1 picture."""
    return lambda path: decode(path, reader)


def decode(
    file: str | bytes, reader: MediaReader, *, name: str = "", max_pixels: int = MAX_PICTURE_PIXELS
) -> np.ndarray:
    """Decode a file, or the content of a file with a name; a picture may have at most `max_pixels`."""
    return get_medium(reader).decode(file, reader, name, max_pixels)


def get_decoding_key(reader: MediaReader) -> str:
    """Identify the settings that decoding depends on in keys of the cache; the text must not change."""
    return get_medium(reader).get_key(reader)


class Medium(NamedTuple):
    """How files of one medium are decoded, and the key of the settings that decoding depends on."""

    decode: Callable[[str | bytes, Any, str, int], np.ndarray]  # file, reader, name, most pixels
    get_key: Callable[[Any], str]


def _decode_picture(file: str | bytes, reader: PictureReader, name: str, max_pixels: int) -> np.ndarray:
    return read_picture(
        file,
        size=reader.image_shape,
        fit=reader.fit,
        resample=reader.resample,
        margin=reader.margin,
        name=name,
        max_pixels=max_pixels,
    )[None]


def _get_picture_key(reader: PictureReader) -> str:
    high, wide = reader.image_shape
    plain = reader.resample == "bilinear" and not reader.margin
    options = "" if plain else f" {reader.resample} {reader.margin}"
    return f"picture {high} {reader.fit}" + (f" {wide}" if wide != high else "") + options


def _decode_sound(file: str | bytes, reader: FrameReader, name: str, max_pixels: int) -> np.ndarray:
    return read_frames(file, reader.sound, name=name)


def _get_sound_key(reader: FrameReader) -> str:
    formats = "" if find_spec("soundfile") else " WAV alone"
    settings = reader.sound.model_dump_json()
    for name, old in OLD_SOUND_NAMES.items():
        settings = settings.replace(f'"{name}":', f'"{old}":')
    return f"sound {settings}{formats} soxr"  # features that were resampled by other means are computed again


def _decode_own(file: str | bytes, reader: OwnMediaReader, name: str, max_pixels: int) -> np.ndarray:
    """Decode a file by the user's function; whatever that raises makes the file an unreadable one."""
    name = name or str(file)
    if isinstance(file, str) and not os.path.isfile(file):  # False for names that are too long, Path.is_file raises
        raise build_missing_file_error(Path(file))
    try:
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        values = np.asarray(reader.decode(data, name), dtype=np.float32)
    except Exception as error:
        raise SaccadeError(f"{name} cannot be read: {type(error).__name__}: {error}") from None
    if values.ndim < 2 or not len(values):
        raise SaccadeError(f"{name}: decode of reader '{reader.kind}' must give an array (T, ...), got {values.shape}")
    return values


def _get_own_key(reader: OwnMediaReader) -> str:
    return f"own {reader.fingerprint}"


OWN_MEDIUM = Medium(_decode_own, _get_own_key)
MEDIA = {"picture": Medium(_decode_picture, _get_picture_key), "sound": Medium(_decode_sound, _get_sound_key)}


def get_medium(reader: MediaReader) -> Medium:
    return OWN_MEDIUM if reader.is_custom else MEDIA[reader.medium]


def decode_all(paths: Sequence[str], reader: MediaReader, folder: Path) -> list[str]:
    """Decode files into shards in a folder, with several processes if they are many; return the names of the shards."""
    count = max(1, min(os.cpu_count() or 1, MAX_PROCESSES, len(paths) // MIN_FILES_PER_PROCESS))
    count = 1 if reader.is_custom else count  # another process would not have the user's code
    bounds = np.linspace(0, len(paths), count + 1).astype(int)
    shards = [(f"part-{i}", list(paths[bounds[i] : bounds[i + 1]])) for i in range(count)]
    if count == 1:
        decode_part(shards[0][1], build_decoder(reader), folder / shards[0][0])
        return [shards[0][0]]
    processes = [_start_process(files, reader, folder / name) for name, files in shards]
    exit_codes = [process.wait() for process in processes]
    for code in filter(None, exit_codes):
        raise SaccadeError(f"a process that decodes {reader.medium_plural} {describe_end(code)}; try again")
    return [name for name, _ in shards]


def decode_part(paths: Sequence[str], decode: Decoder, name: Path) -> None:
    """Decode files one after the other; only one is in memory at a time."""
    lengths, broken, too_long, dtype, shape = [], {}, list[int](), "uint8", list[int]()
    with name.with_suffix(".values").open("wb") as values:
        for number, path in enumerate(paths):
            try:
                item = decode(path)
            except SaccadeError as error:
                broken[number] = str(error)
                too_long += [number] * isinstance(error, TooLongError)
                lengths.append(0)
                continue
            dtype, shape = str(item.dtype), list(item.shape[1:])
            lengths.append(len(item))
            values.write(item.tobytes())
    np.array(lengths, dtype=np.int64).tofile(name.with_suffix(".lengths"))
    meta = {"dtype": dtype, "shape": shape, "broken": broken, "too_long": too_long}
    name.with_suffix(".json").write_text(json.dumps(meta), encoding="utf-8")


def _start_process(paths: Sequence[str], reader: MediaReader, name: Path) -> subprocess.Popen[str]:
    """Start this module as a program that decodes one shard."""
    process = start_module("saccade.data.media.decoding")
    assert process.stdin is not None, "opened as a pipe"
    request = {"reader": reader.model_dump(exclude=MODEL_SETTINGS), "paths": list(paths), "name": str(name)}
    with suppress(BrokenPipeError), process.stdin as pipe:  # if it has ended, its exit code says so
        json.dump(request, pipe)
    return process


def main(request: dict[str, Any]) -> None:
    reader: Any = TypeAdapter(Reader).validate_python(request["reader"])
    decode_part(request["paths"], build_decoder(reader), Path(request["name"]))


if __name__ == "__main__":
    try:
        main(json.load(sys.stdin))
    except (json.JSONDecodeError, KeyboardInterrupt):  # the process that asked has ended, or the user stopped both
        sys.exit(1)
