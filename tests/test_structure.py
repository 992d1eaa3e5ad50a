"""The structure of the package in numbers: what a first reading of it depends on must not creep back.

Each limit has a reason in CONTRIBUTING.md. Run with `-s` to see all numbers.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "saccade"
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in TREES}
TASKS = {path.stem.replace("_", "-") for path in (PACKAGE / "tasks").glob("[a-z]*.py")}
PARTS = {"stack", "reader", "writer", "model", "predictor", "state"}


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {ast.unparse(node)[:90]}"


def outside(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    """All nodes of all files that are not in one of these folders of the package."""
    apart = tuple(str(PACKAGE / folder) for folder in folders)
    return ((path, node) for path, tree in TREES.items() if not str(path).startswith(apart) for node in ast.walk(tree))


def inspects_type(node: ast.AST) -> bool:
    """isinstance, issubclass, hasattr, getattr with a default, `type(x) is`, a class pattern in `case`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        return name in ("isinstance", "issubclass", "hasattr") or (name == "getattr" and len(node.args) == 3)
    if isinstance(node, ast.Compare):
        left = node.left
        return isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "type"
    return isinstance(node, ast.MatchClass)


def test_few_places_inspect_types():
    """At most 8 per 1,000 lines: objects have methods and declare their capabilities."""
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in TREES)
    found = Counter(path.relative_to(PACKAGE).parts[0] for path, node in outside("-") if inspects_type(node))
    print(f"type inspections: {found.total()} in {lines} lines, {1000 * found.total() / lines:.1f} per 1,000", found)
    assert 1000 * found.total() / lines <= 8


def is_task(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    inner = isinstance(node, ast.Attribute) and name == "name" and is_task(node.value)
    return name == "task" or inner


def tells_tasks_apart(node: ast.AST) -> bool:
    """A comparison with a task, a look-up by one, a `match` on one, or a dictionary or tuple of task names."""
    if isinstance(node, ast.Compare):
        return any(map(is_task, [node.left, *node.comparators]))
    if isinstance(node, ast.Subscript):
        return is_task(node.slice)
    if isinstance(node, ast.Match):
        return is_task(node.subject)
    if isinstance(node, ast.Dict):
        return len({key.value for key in node.keys if isinstance(key, ast.Constant)} & TASKS) > 1
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return len({item.value for item in node.elts if isinstance(item, ast.Constant)} & TASKS) > 1
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
        return any(map(is_task, node.args))
    return False


def test_only_tasks_know_which_task_it_is():
    assert {"translate", "language-model", "classify"} <= TASKS
    assert not [where(path, node) for path, node in outside("tasks", "config") if tells_tasks_apart(node)]
    pages = list(PACKAGE.rglob("*.js"))
    assert pages and not [path.name for path in pages if re.search(r"\btask(\]| *[!=]==)", path.read_text("utf-8"))]


def test_few_places_compare_kinds():
    def compares(node: ast.AST) -> bool:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.subject] if isinstance(node, ast.Match) else []
        return any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)

    found = [where(path, node) for path, node in outside("config", "model/build") if compares(node)]
    print("comparisons of kinds:", *found, sep="\n  ")
    assert len(found) <= 10


def test_core_parameters_have_a_type():
    found = [
        where(path, argument)
        for path, node in outside("-")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg in PARTS and argument.annotation and re.search(r"\bAny\b", ast.unparse(argument.annotation))
    ]
    assert not found


def imported_modules(path: Path, *, everywhere: bool = True) -> set[str]:
    """The modules of ours that a file imports from; `everywhere` counts imports inside functions too."""
    tree = TREES[path]
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "saccade":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


def test_no_module_imports_from_many_others():
    """At most 20 modules of ours; model/build, where recipes meet classes, is exempt."""
    found = {name: len(imported_modules(path)) for name, path in MODULES.items() if ".model.build" not in name}
    print("imports from most modules:", Counter(found).most_common(5))
    assert not {name: count for name, count in found.items() if count > 20}


def test_no_import_cycle():
    """Imports at the top of files form no cycle: repeatedly take away modules that import nothing that is left."""
    left = {name: imported_modules(path, everywhere=False) for name, path in MODULES.items()}
    while done := [name for name, needs in left.items() if not needs & left.keys() - {name}]:
        for name in done:
            del left[name]
    assert not left


MAX_FILES = 22  # in one folder


def test_no_folder_has_many_files():
    found = Counter(str(path.parent.relative_to(ROOT)) for path in TREES)
    print("files in one folder:", found.most_common(5))
    full = [f"{folder} has {n} files, at most {MAX_FILES}" for folder, n in found.items() if n > MAX_FILES]
    assert not full, f"{', '.join(full)}: merge two or make a sub-package"
