"""The code speaks the field's language: functions are verbs, and words of our own do not come back.

`python tests/test_language.py [FOLDER ...]` lists what these tests would object to.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("saccade", "benchmarks", "docs", "scripts", "tests")
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
    r"\b(told|spoiled|wearing|settled|undrawn|misfits?|adviser|advised|evened|gazes?|looks? (?:drawn|at what|of)|"
    r"what (?:is|was) (?:written|said|looked at|told|drawn|wanted)|of those, so many|passed by|stands? around|"
    r"said to be|\d[\d,]{3,} numbers|no family can hold)\b"
)
TEXT_SUFFIXES = {".c", ".h", ".js", ".css", ".html", ".toml", ".md"}


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


def text_files() -> Iterator[Path]:
    """Sources in other languages, recipes and pages; not the changelog, which names what was renamed."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder in SOURCES:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES)


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
    """Docstrings, messages and comments with words of our own."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            found = BANNED_IN_PROSE.search(node.value)
            if found:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: text: {found[0]}"
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)# (.*)", line)
        found = BANNED_IN_PROSE.search(comment[1]) if comment else None
        if found:
            yield f"{path.relative_to(ROOT)}:{number}: comment: {found[0]}"


def find_banned_in_text(path: Path) -> Iterator[str]:
    """Words of our own in a file that is not Python: in prose, and in code also as names."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = BANNED_IN_PROSE.search(line)
        names = re.findall(r"[A-Za-z_]\w*", line) if path.suffix in (".c", ".h", ".js") else []
        named = [name for name in names if name in BANNED_CLASSES or not set(words_of(name)).isdisjoint(BANNED_WORDS)]
        if found or named:
            yield f"{path.relative_to(ROOT)}:{number}: {found[0] if found else named[0]}"


def test_functions_are_verbs() -> None:
    found = [each for path in python_files(("saccade",)) for each in find_participles(path)]
    assert len(found) <= MAX_PARTICIPLES, "\n".join(found)


def test_banned_names_do_not_come_back() -> None:
    found = [each for path in python_files() for each in find_banned_names(path)]
    assert not found, "\n".join(found)


def test_banned_words_do_not_come_back_in_docstrings_messages_and_comments() -> None:
    found = [each for path in python_files() for each in find_banned_prose(path)]
    assert not found, "\n".join(found)


def test_banned_words_do_not_come_back_in_c_javascript_recipes_and_pages() -> None:
    paths = list(text_files())
    assert {path.suffix for path in paths} == TEXT_SUFFIXES
    found = [each for path in paths for each in find_banned_in_text(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.c", "typedef struct { int64_t beams; } Wish;", "a.c:1: Wish"),
        ("a.js", "const wasTold = listen();", "a.js:1: wasTold"),
        ("a.md", "The model has 173,483 numbers.", "a.md:1: 173,483 numbers"),
        ("a.py", 'raise SaccadeError(f"{path} is not said to be JSON")', "a.py:1: text: said to be"),
        ("b.py", "x = 1  # spoiled by NaN", "b.py:1: comment: spoiled"),
        ("c.py", '"""What was told."""', "c.py:1: text: told"),
    ],
)
def test_each_kind_of_file_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, found: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    find = find_banned_prose if name.endswith(".py") else find_banned_in_text
    assert list(find(tmp_path / name)) == [found]


if __name__ == "__main__":
    asked_for = tuple(sys.argv[1:]) or SOURCES
    for each_path in python_files(asked_for):
        for line_found in [*find_participles(each_path), *find_banned_names(each_path), *find_banned_prose(each_path)]:
            print(line_found)
    for each_path in text_files():
        if each_path.relative_to(ROOT).parts[0] in (*asked_for, "README.md", "CONTRIBUTING.md"):
            print(*find_banned_in_text(each_path), sep="\n", end="")
