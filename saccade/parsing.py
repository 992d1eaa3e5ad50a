"""Parse what others have written: JSON with limits, and errors of one line that name the file and the row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError

SURROGATE = re.compile("[\ud800-\udfff]")
MAX_NESTING = 64  # levels of objects and lists of a JSON text
MAX_JSON_BYTES = 2**30  # of a file that is read as a whole; a tokenizer.json has up to about 40 million


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse a JSON text; `where` names the file and the row in errors."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")  # json would pass lone surrogates
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SaccadeError(f"{where}: not valid JSON ({error})") from None
    except RecursionError:
        raise build_nesting_error(where) from None
    except UnicodeDecodeError as error:
        raise SaccadeError(f"{where}: not valid UTF-8 (byte {error.start}); convert it to UTF-8") from None
    except ValueError:  # the only other one that Python raises here: more digits than it converts
        raise SaccadeError(f"{where}: has a number of more than 4,300 digits; write it with fewer") from None
    check_nesting(values, where)
    if "\\ud" in text.lower() and SURROGATE.search(json.dumps(values, ensure_ascii=False)):
        raise SaccadeError(f"{where}: text holds half a character (a lone surrogate); give valid Unicode")
    return values


def check_nesting(values: Any, where: str) -> None:
    """Raise if values are nested so deeply that functions that descend into them could fail."""
    level = [values]
    for _ in range(MAX_NESTING):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner.extend(item for item in value.values() if isinstance(item, dict | list))
            elif isinstance(value, list):
                inner.extend(item for item in value if isinstance(item, dict | list))
        if not inner:
            return
        level = inner
    raise build_nesting_error(where)


def build_nesting_error(where: str) -> SaccadeError:
    return SaccadeError(f"{where}: nested too deeply, expected at most {MAX_NESTING} levels; write it with fewer")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return parse_json(read_bytes(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that is one object."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise SaccadeError(f"{path}: expected a JSON object, got {type(values).__name__}; restore the file")
    return values


def read_text(path: Path) -> str:
    """Read a text file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SaccadeError(f"{path}: not valid UTF-8 (byte {error.start}); convert it to UTF-8") from None


def read_bytes(path: Path) -> bytes:
    """Read a file that is small enough to be read as a whole."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise SaccadeError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_JSON_BYTES:
        raise SaccadeError(f"{path} has more than {MAX_JSON_BYTES:,} bytes; is it the right file?")
    return content
