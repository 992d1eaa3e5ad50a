"""Decode uploaded files in a process of its own, with a memory limit; `FileDecoder` starts this module as a program.

Requests and replies are frames on stdin and stdout: two lengths (big-endian, 4 bytes each), JSON, and the bytes of a
file or of a decoded array.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from functools import lru_cache
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from saccade.config.readers import Reader
from saccade.data.media.decoding import decode
from saccade.errors import SaccadeError

LENGTHS = struct.Struct(">II")
Frame = tuple[dict[str, Any], bytearray]


def write_frame(pipe: BinaryIO, content: dict[str, Any], data: bytes | memoryview = b"") -> None:
    encoded = json.dumps(content).encode()
    pipe.write(LENGTHS.pack(len(encoded), len(data)) + encoded)
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: BinaryIO, max_bytes: int) -> Frame | None:
    """Read a frame; None at the end of the pipe, and for one that is longer than `max_bytes`."""
    head = pipe.read(LENGTHS.size)
    if len(head) < LENGTHS.size or sum(lengths := LENGTHS.unpack(head)) > max_bytes:
        return None
    encoded, data = bytearray(lengths[0]), bytearray(lengths[1])
    if any(pipe.readinto(part) < len(part) for part in (encoded, data) if part):  # type: ignore[attr-defined]
        return None
    return json.loads(encoded), data


def limit_memory(max_bytes: int) -> None:
    """Limit the memory that this process may take in addition to what it has, where the system can."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + max_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        return  # not on Linux; the limits of pixels and seconds hold nevertheless


@lru_cache(maxsize=16)
def parse_reader(settings: str) -> Any:
    """Parse the settings of a reader, which takes longer than to decode a small picture."""
    return TypeAdapter(Reader).validate_json(settings)


def decode_request(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a file; what is wrong with it becomes a message."""
    name = request["name"]
    try:
        values = decode(data, parse_reader(request["reader"]), name=name, max_pixels=request["max_pixels"])
        return {"dtype": str(values.dtype), "shape": values.shape}, values.tobytes()
    except SaccadeError as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": f"{name} needs too much memory to be decoded; make it smaller"}, b""
    except Exception as error:  # of a decoding library, about a file that is damaged in an unusual way
        return {"error": f"{name} cannot be decoded ({type(error).__name__}); save it again"}, b""


def main(max_bytes: int) -> None:
    """Decode files until stdin ends; what libraries print goes nowhere."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    limit_memory(max_bytes)
    write_frame(replies, {"ready": True})
    while (frame := read_frame(requests, sys.maxsize)) is not None:
        request, data = frame
        write_frame(replies, *decode_request(request, bytes(data)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
