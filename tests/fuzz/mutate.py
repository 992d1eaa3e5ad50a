"""Seeded mutations of words, bytes and nested values; everything comes from the given random generator."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, MutableMapping, MutableSequence
from random import Random
from typing import Any

import tomli_w

NUMBERS = (
    "0", "-0", "1", "-1", "2", "7", "0.5", "-0.5", "1e-320", "1e308", "1e309", "-1e400", "nan", "inf", "-inf", "1_000",
    "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "1" + "0" * 30, "9" * 5000, "0x10", "1e6",
    "400000", "1000000", "١٢", "²", "½", "1.", ".1", "1e", "00", "+3",
)  # fmt: skip
WORDS = (
    "", " ", "\t", "\n", "-", "--", "---", "-h", "=", "a=b", "=1", "a.b.c=1", ".", "..", "...", "/", "//", "~",
    "~nobody",
    "none", "null", "true", "false", "[]", "{}", "[[]]", "[" * 2000, "{" * 2000, '"', "'", "\\", "%s", "{0}", "{x}",
    "$HOME",
    "*", "?", "[a-z]", "a" * 300, "a" * 5000, "é" * 300, "日本語", "\u202e", "\ufeff", "\udcff", "a\udc80b", "🙂", "ﬁ",
    "İ", "ß", "\r", "\x1b[31m", "\x01", "\x7f", ",", ",,", "a,b", "a,,b", ":", "a:b", "http://127.0.0.1:1/x", "hf:x/y",
    "embedded:", "embedded:dates", "embedded:nothing", "embedded:../x", "embedded:copy", "embedded:shapes",
    "/dev/null", "/dev/full", "/dev/zero/x", "/dev/fd/9", "/proc/self/mem", "/proc/1/root", "/root", "/nonexistent/a/b",
    "/etc", "x/" * 100, "x" * 255, "x" * 256, "loop", "pipe", "locked", "empty", "folder",
)  # fmt: skip
SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 1000, 10**6, 10**9, 2**31, 2**63, 2**64, 10**30, 0.0, -0.0, 0.5, -0.5,
    1.5,
    1e-300, 1e300, float("nan"), float("inf"), float("-inf"), "", " ", "a", "none", "0", "nan", "é", "日本語", "\u0000",
    "\ud800", "a" * 5000, "..", "/", "/etc/passwd", [], [[]], {}, [0], [""], [None], {"": 0}, {"kind": 0}, {"kind": ""},
    {"kind": "none"}, [1, 2, 3], ["a", "b"], {"a": {"b": {}}},
)  # fmt: skip
MAGIC = (
    b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"\xfd7zXZ\x00", b"BZh9", b"\x93NUMPY\x01\x00", b"PAR1", b"GGUF", b"RIFF",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff\xe0", b"GIF89a", b"fLaC", b"OggS", b"{", b"[" * 3000, b'{"a":' * 3000, b"\xef\xbb\xbf",
    b"\xff\xfe", b"\x00" * 64,
    b"\xff" * 64, b"\x80", b"\xed\xa0\x80", b"\n" * 50, b"," * 50, b'"' * 7, b"9" * 5000, b"1e999", b"NaN", b"\x00",
)  # fmt: skip


def mutate_word(random: Random, word: str) -> str:
    """Change some characters of a word, or replace it by another one."""
    choice = random.randrange(8)
    at = random.randrange(len(word) + 1)
    if choice == 0:
        return random.choice(WORDS)
    if choice == 1:
        return random.choice(NUMBERS)
    if choice == 2 and word:
        return word[:at] + word[at + random.randint(1, 3) :]
    if choice == 3:
        return word[:at] + random.choice(WORDS)[:300] + word[at:]
    if choice == 4 and "=" in word:
        return f"{word.partition('=')[0]}={random.choice((*WORDS, *NUMBERS))}"
    if choice == 5:
        return re.sub(r"\d+", lambda _: random.choice(NUMBERS), word, count=1)
    if choice == 6:
        return word[:at] + chr(random.choice((random.randint(1, 255), random.randint(256, 0xD7FF)))) + word[at + 1 :]
    return word + random.choice((".", "/", "=", " ", word, ".0.x", "\n"))


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """Flip, cut, insert, repeat or overwrite parts of a file."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        size = len(data)
        at = random.randrange(size + 1) if random.random() < 0.5 else min(random.randrange(128), size)
        choice = random.randrange(7)
        if choice == 0 and at < size:
            data[at] ^= 1 << random.randrange(8)
        elif choice == 1:
            data[at:] = b""
        elif choice == 2:
            data[at:at] = random.choice(MAGIC)
        elif choice == 3:
            data[at : at + random.randint(1, 40)] = b""
        elif choice == 4:
            data[at : at + 8] = random.choice((b"\xff" * 8, b"\x00" * 8, random.randbytes(8), b"\x00" * 7 + b"\x80"))
        elif choice == 5:
            part = bytes(data[at : at + random.randint(1, 200)])
            data[at:at] = part * random.choice((1, 2, 50))
        else:
            data[:at] = random.choice(MAGIC)
    return bytes(data[:2_000_000])


def mutate_value(random: Random, value: Any) -> Any:
    """Change one or several places of a nested value of dictionaries and lists."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(list_places(value))
        if not places:
            return random.choice(SCALARS)
        parent, key = random.choice(places)
        mutate_place(random, parent, key)
    return value


def list_places(value: Any) -> list[tuple[Any, Any]]:
    """Each container and key of a nested value, outside first."""
    keys: list[Any] = []
    if isinstance(value, MutableMapping):
        keys = [*value]
    elif isinstance(value, MutableSequence):
        keys = [*range(min(len(value), 50))]
    return [(value, key) for key in keys] + [place for key in keys for place in list_places(value[key])]


def mutate_place(random: Random, parent: Any, key: Any) -> None:
    choice = random.randrange(8)
    if choice == 0:
        del parent[key]
    elif choice == 1 and isinstance(parent, MutableMapping):
        parent[random.choice(("", "x", "kind", "²", "0", mutate_word(random, str(key))))] = parent.pop(key)
    elif choice == 2:
        parent[key] = [parent[key]] * random.choice((1, 2, 40))
    elif choice == 3:
        parent[key] = {"kind": parent[key]}
    elif choice == 4 and isinstance(parent[key], str):
        parent[key] = mutate_word(random, parent[key])
    elif choice == 5 and isinstance(parent[key], int | float):
        parent[key] *= random.choice((-1, 0, 2, 3, 1000, 10**7))
    else:
        parent[key] = copy.deepcopy(random.choice(SCALARS))


def mutate_json(random: Random, content: bytes) -> bytes:
    """Change values of a JSON file or of one line of a .jsonl file; bytes where it is neither."""
    lines = content.splitlines()
    try:
        values = [json.loads(content)]
    except ValueError:
        try:
            values = [json.loads(line) for line in lines]
        except ValueError:
            return mutate_bytes(random, content)
    if not values:
        return mutate_bytes(random, content)
    at = random.randrange(len(values))
    values[at] = mutate_value(random, values[at])
    text = "\n".join(json.dumps(value, ensure_ascii=random.random() < 0.5) for value in values)
    return text.encode("utf-8", "surrogatepass")


def mutate_toml(random: Random, content: bytes) -> bytes:
    """Change values of a TOML file; bytes where the result cannot be written as TOML."""
    try:
        return tomli_w.dumps(mutate_value(random, tomllib.loads(content.decode()))).encode()
    except (AttributeError, TypeError, ValueError):
        return mutate_bytes(random, content)


STRUCTURED: dict[str, Callable[[Random, bytes], bytes]] = {
    ".json": mutate_json,
    ".jsonl": mutate_json,
    ".toml": mutate_toml,
}


def mutate_file(random: Random, name: str, content: bytes) -> bytes:
    """Mutate a file by its format in two of three cases, otherwise its bytes."""
    mutate = STRUCTURED.get(name[name.rfind(".") :], mutate_bytes) if random.random() < 0.67 else mutate_bytes
    return mutate(random, content)
