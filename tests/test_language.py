"""The code speaks the field's language: functions are verbs, and words of our own do not come back.

`python tests/test_language.py [FOLDER ...]` lists what these tests would object to.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("saccade", "saccade_worlds", "benchmarks", "docs", "tests")
MAX_PARTICIPLES = 40

IRREGULAR = """
    begun bent bound bought bred brought built caught chosen dealt done drawn driven fed felt found frozen given
    gone grown heard held hidden hung kept known laid led left lent lit lost made meant met paid risen rung said
    seen sent shown slid sold sought spent spoken stood struck stuck swept taken taught thought thrown told torn
    undrawn understood unwritten withdrawn woken won worn woven written
""".split()  # noqa: SIM905
NOT_PARTICIPLES = {"embed", "feed", "seed", "reseed", "need", "speed", "shed", "exceed", "proceed", "succeed"}

# As a whole name, or as one word of a name: `told`, `tell_told`, `WasTold`.
BANNED_WORDS = """told spoiled wearing settled entered undrawn misfits misfit fitting judged adviser advised evened
    looks looked listened hearing worn""".split()  # noqa: SIM905
BANNED_CLASSES = {"Late", "Way", "Asked", "Wanted", "Ground", "Wish", "Voice", "Desk", "Room", "Rooms", "Looked"}
BANNED_IN_PROSE = re.compile(
    r"\b(told|spoiled|wearing|settled|undrawn|misfits?|adviser|advised|evened|looks? (?:drawn|at what|of)|"
    r"what (?:is|was) (?:written|said|looked at|told|drawn)|of those, so many|passed by|stands? around)\b"
)


def is_participle(name: str) -> bool:
    """Whether the whole name is one past participle, as in `turned`."""
    word = name.strip("_")
    if "_" in word or not word.islower() or word in NOT_PARTICIPLES:
        return False
    return word.endswith("ed") or word in IRREGULAR


def words_of(name: str) -> list[str]:
    """The words of an identifier, lower-case: of `tell_WasTold`, tell, was, told."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def python_files(folders: tuple[str, ...] = SOURCES) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "__pycache__" not in path.parts and path != Path(__file__).resolve():
                yield path


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def find_participles(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"


def find_banned_names(path: Path) -> Iterator[str]:
    for name, line in definitions(ast.parse(path.read_text(encoding="utf-8"))):
        if name in BANNED_CLASSES or not set(words_of(name)).isdisjoint(BANNED_WORDS):
            yield f"{path.relative_to(ROOT)}:{line}: {name}"


def find_banned_prose(path: Path) -> Iterator[str]:
    """Docstrings and comments with words of our own."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = BANNED_IN_PROSE.search(ast.get_docstring(node) or "")
            if found:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: docstring: {found[0]}"
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)# (.*)", line)
        found = BANNED_IN_PROSE.search(comment[1]) if comment else None
        if found:
            yield f"{path.relative_to(ROOT)}:{number}: comment: {found[0]}"


def test_functions_are_verbs() -> None:
    found = [each for path in python_files(("saccade",)) for each in find_participles(path)]
    assert len(found) <= MAX_PARTICIPLES, "\n".join(found)


def test_banned_names_do_not_come_back() -> None:
    found = [each for path in python_files() for each in find_banned_names(path)]
    assert not found, "\n".join(found)


def test_banned_words_do_not_come_back_in_docstrings_and_comments() -> None:
    found = [each for path in python_files() for each in find_banned_prose(path)]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    asked_for = tuple(sys.argv[1:]) or SOURCES
    for each_path in python_files(asked_for):
        for line_found in [*find_participles(each_path), *find_banned_names(each_path), *find_banned_prose(each_path)]:
            print(line_found)
